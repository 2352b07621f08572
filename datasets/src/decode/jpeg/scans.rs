//! The scans of an image in the order of the file.
//!
//! In: a header and the bytes of its file. Out: each scan with its tables, its blocks, and its
//! entropy-coded bytes without stuffing.

use std::borrow::Cow;
use std::ops::Range;

use super::header::{Header, Scan, TRUNCATED, Tables, ends_after, most_sampling};
use super::{Layout, Reason, Result};

/// Zigzag indices of coefficients that are estimated if no scan contains them.
pub(super) const SMOOTHED: Range<usize> = 1..10;

/// State of a component after the scans so far.
pub(super) struct State {
    /// Quantisation table at the first scan of the component.
    pub(super) quantization: [i32; 64],
    /// Lowest known bit of each coefficient. `None` before its first scan.
    pub(super) lowest_bits: [Option<u32>; 64],
}

/// The current scan and the state after earlier scans.
pub(super) struct Scans<'a> {
    header: &'a Header,
    pub(super) tables: Cow<'a, Tables>,
    pub(super) scan: Cow<'a, Scan>,
    pub(super) state: Vec<State>,
    /// Position after the last read byte.
    position: usize,
    num_scans: usize,
}

impl<'a> Scans<'a> {
    pub(super) fn of(header: &'a Header) -> Self {
        let state = || State {
            quantization: [0; 64],
            lowest_bits: [None; 64],
        };
        Self {
            header,
            tables: Cow::Borrowed(&header.tables),
            scan: Cow::Borrowed(&header.scan),
            state: header.components.iter().map(|_| state()).collect(),
            position: header.codes_at,
            num_scans: 0,
        }
    }

    /// Advances to the entropy-coded bytes of the next scan. Returns false after the last scan.
    pub(super) fn next(&mut self, bytes: &[u8]) -> Result<bool> {
        let missing = self
            .state
            .iter()
            .position(|state| state.lowest_bits[0].is_none());
        if !self.header.is_progressive && missing.is_none() {
            // The decoder ignores data after the last component of a sequential image.
            return if ends_after(bytes, self.position) {
                Ok(false)
            } else {
                Err(TRUNCATED)
            };
        }
        if self.num_scans > 0 {
            let next =
                self.header
                    .next_scan(bytes, self.position, self.num_scans, &mut self.tables)?;
            let Some((scan, position)) = next else {
                return missing.map_or(Ok(false), |index| {
                    Err(format!("no scan has component {index}").into())
                });
            };
            self.scan = Cow::Owned(scan);
            self.position = position;
        }
        self.num_scans += 1;
        let [first, last] = self.scan.places;
        for (index, _) in &self.scan.components {
            let state = &mut self.state[*index];
            if state.lowest_bits.iter().all(Option::is_none) {
                let number = self.header.components[*index].quantization;
                let table = self
                    .tables
                    .quantizations
                    .get(number)
                    .and_then(Option::as_ref);
                state.quantization =
                    *table.ok_or_else(|| format!("quantization table {number} is missing"))?;
            }
            state.lowest_bits[first..=last].fill(Some(self.scan.bits[1]));
        }
        Ok(true)
    }

    /// Returns true if a progressive file ends before its scans contain all bits of the lowest
    /// frequencies.
    pub(super) fn leaves_bits_open(&self) -> bool {
        let has_open_bits = |state: &State| {
            state.lowest_bits[SMOOTHED]
                .iter()
                .any(|bit| *bit != Some(0))
        };
        let is_quantized = |state: &State| {
            state.quantization[..SMOOTHED.end]
                .iter()
                .all(|step| *step != 0)
        };
        self.state.iter().any(has_open_bits) && self.state.iter().all(is_quantized)
    }

    pub(super) fn damaged(&self) -> Reason {
        format!(
            "scan {} has a code that no table has, or too few codes",
            self.num_scans
        )
        .into()
    }

    /// Copies the entropy-coded bytes of the scan without the zero that is stuffed after each 0xFF.
    /// Returns the position of each restart and the end.
    #[inline(always)]
    pub(super) fn unstuff(
        &mut self,
        bytes: &[u8],
        sweep: &Sweep,
        codes: &mut Vec<u8>,
    ) -> Result<Vec<usize>> {
        let num_units = sweep.size[0] * sweep.size[1];
        let mut rest = bytes.get(self.position..).unwrap_or_default();
        codes.clear();
        codes.reserve(rest.len() + 16);
        let mut ends = Vec::new();
        loop {
            // Most 32-byte pieces contain no 0xFF.
            while let Some(piece) = rest
                .first_chunk::<32>()
                .filter(|piece| !piece.iter().fold(false, |any, byte| any | (*byte == 0xFF)))
            {
                codes.extend_from_slice(piece);
                rest = &rest[32..];
            }
            let (before, behind) = rest.split_at(
                rest.iter()
                    .position(|byte| *byte == 0xFF)
                    .ok_or(TRUNCATED)?,
            );
            codes.extend_from_slice(before);
            match behind.get(1).ok_or(TRUNCATED)? {
                0 => codes.push(0xFF),
                // This 0xFF is padding before a marker.
                0xFF => {
                    rest = &behind[1..];
                    continue;
                }
                marker @ 0xD0..=0xD7 => {
                    if usize::from(marker & 7) != ends.len() % 8 || ends.len() >= num_units {
                        return Err(format!(
                            "restart {} of scan {} is out of order",
                            ends.len(),
                            self.num_scans
                        )
                        .into());
                    }
                    ends.push(codes.len());
                }
                _ => {
                    ends.push(codes.len());
                    codes.extend([0; 16]);
                    self.position = bytes.len() - behind.len();
                    return Ok(ends);
                }
            }
            rest = &behind[2..];
        }
    }
}

/// The blocks of a scan, MCU by MCU.
pub(super) struct Sweep {
    /// Number of MCUs across and down.
    pub(super) size: [usize; 2],
    /// Columns and rows of the MCUs that become pixels.
    pub(super) wanted: [Range<usize>; 2],
    /// Blocks across and down in an MCU, for each component of the scan.
    pub(super) blocks: Vec<[usize; 2]>,
}

impl Sweep {
    pub(super) fn of(header: &Header, layout: &Layout, scan: &Scan) -> Self {
        match scan.components[..] {
            // A scan of one component has one block per MCU, and no blocks beyond the component's
            // size.
            [(index, _)] => {
                let most = most_sampling(&header.components);
                let sampling = header.components[index].sampling;
                let size = [0, 1]
                    .map(|side| (header.size[side] * sampling[side]).div_ceil(8 * most[side]));
                let mut wanted = layout.blocks(sampling);
                wanted
                    .iter_mut()
                    .zip(size)
                    .for_each(|(wanted, size)| wanted.end = wanted.end.min(size));
                Self {
                    size,
                    wanted,
                    blocks: vec![[1; 2]],
                }
            }
            _ => Self {
                size: layout.size,
                wanted: layout.units.clone(),
                blocks: scan
                    .components
                    .iter()
                    .map(|(index, _)| header.components[*index].sampling)
                    .collect(),
            },
        }
    }
}
