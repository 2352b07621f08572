//! Segments of a JPEG file: size, colours, tables and scans.
//!
//! In: the bytes of a file. Out: a [`Header`] up to the first scan, then further [`Scan`]s.
//! Invariant: all bytes are validated.
//! Source: ITU-T T.81, annex B.

use std::borrow::Cow;

use super::huffman::{Class, Table};
use super::{Reason, Result};

const START_OF_IMAGE: u8 = 0xD8;
const END_OF_IMAGE: u8 = 0xD9;
const START_OF_SCAN: u8 = 0xDA;

/// Markers of frames. Three markers in this range have other meanings.
const FRAMES: std::ops::RangeInclusive<u8> = 0xC0..=0xCF;
const NO_FRAMES: [u8; 3] = [0xC4, 0xC8, 0xCC];

pub(super) const TRUNCATED: Reason =
    Cow::Borrowed("the JPEG file is truncated: it has no end-of-image marker");

/// Largest number of scans: one for each of 64 coefficients of four components.
const MAX_SCANS: usize = 256;

/// A colour component of an image.
#[derive(Debug)]
pub(super) struct Component {
    id: u8,
    /// Blocks across and down in each MCU of an interleaved scan.
    pub(super) sampling: [usize; 2],
    /// Index of the quantisation table.
    pub(super) quantization: usize,
}

/// Colour space of the components.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Colours {
    Grey,
    Ycc,
    Rgb,
    Cmyk,
    Ycck,
}

/// Tables that may change between scans.
#[derive(Clone)]
pub(super) struct Tables {
    /// Quantisation steps in zigzag order.
    pub(super) quantizations: [Option<[i32; 64]>; 4],
    /// Four Huffman tables for DC coefficients, then four for AC coefficients.
    pub(super) codes: [Option<Table>; 8],
    /// Conditioning of arithmetic decoding: bounds of small DC differences, and of low AC indices.
    pub(super) bounds: [[u8; 2]; 4],
    pub(super) low_places: [u8; 4],
    /// MCUs between two restart markers. 0 without restarts.
    pub(super) restart_interval: usize,
}

/// A scan: one pass over some of the components.
#[derive(Clone, Debug)]
pub(super) struct Scan {
    /// Index of each component, and its two tables in [`Tables::codes`] or in the arithmetic
    /// decoder.
    pub(super) components: Vec<(usize, [usize; 2])>,
    /// First and last zigzag index of the coefficients.
    pub(super) places: [usize; 2],
    /// Lowest bit of earlier scans, or 0, and lowest bit of this scan.
    pub(super) bits: [u32; 2],
}

/// Content of the file before the entropy-coded bytes of the first scan.
pub(in crate::decode) struct Header {
    pub(super) size: [usize; 2],
    pub(super) components: Vec<Component>,
    pub(super) colours: Colours,
    pub(super) is_progressive: bool,
    pub(super) is_arithmetic: bool,
    pub(super) tables: Tables,
    pub(super) scan: Scan,
    /// Position of the first scan's entropy-coded bytes.
    pub(super) codes_at: usize,
}

impl Header {
    /// Reads the segments up to the first scan.
    pub(in crate::decode) fn read(bytes: &[u8]) -> Result<Self> {
        let mut tables = Tables::new();
        let mut frame = None;
        let mut is_jfif = false;
        let mut adobe = None;
        let mut segments = Segments { bytes, position: 2 };
        loop {
            let (marker, body) = segments.next().ok_or(TRUNCATED)?;
            match marker {
                START_OF_SCAN => {
                    let (kind, size, components): (u8, _, Vec<Component>) =
                        frame.ok_or("the scan has no frame")?;
                    let colours = colours(&components, is_jfif, adobe);
                    let is_progressive = kind & 3 == 2;
                    let is_arithmetic = kind > 0xC8;
                    let scan = Scan::read(body, &components, is_progressive)?;
                    let codes_at = segments.position;
                    return Ok(Self {
                        size,
                        components,
                        colours,
                        is_progressive,
                        is_arithmetic,
                        tables,
                        scan,
                        codes_at,
                    });
                }
                START_OF_IMAGE | END_OF_IMAGE => {
                    return Err(format!("marker 0x{marker:02X} before the scan").into());
                }
                0xE0 if body.starts_with(b"JFIF\0") && body.len() >= 14 => is_jfif = true,
                0xEE if body.starts_with(b"Adobe") => adobe = body.get(11).copied().or(adobe),
                _ if FRAMES.contains(&marker) && !NO_FRAMES.contains(&marker) => {
                    if frame.is_some() {
                        return Err("two frames".into());
                    }
                    let (size, components) = read_frame(marker, body)?;
                    frame = Some((marker, size, components));
                }
                _ => tables.read(marker, body)?,
            }
        }
    }

    /// Returns the width and the height, which are above 0.
    pub(in crate::decode) fn size(&self) -> [u32; 2] {
        self.size.map(|side| side as u32)
    }

    /// Reads the segments from `position` up to the next scan. Returns `None` at the end of the
    /// image.
    ///
    /// `num_scans` is the number of scans that were read before.
    pub(super) fn next_scan(
        &self,
        bytes: &[u8],
        position: usize,
        num_scans: usize,
        tables: &mut Cow<'_, Tables>,
    ) -> Result<Option<(Scan, usize)>> {
        let mut segments = Segments { bytes, position };
        loop {
            match segments.next().ok_or(TRUNCATED)? {
                (END_OF_IMAGE, _) => return Ok(None),
                (START_OF_SCAN, _) if num_scans == MAX_SCANS => {
                    return Err(format!("more than {MAX_SCANS} scans").into());
                }
                (START_OF_SCAN, body) => {
                    let scan = Scan::read(body, &self.components, self.is_progressive)?;
                    return Ok(Some((scan, segments.position)));
                }
                (START_OF_IMAGE, _) => return Err("an image inside the image".into()),
                (marker @ (0xC4 | 0xCC | 0xDB | 0xDD), body) => {
                    tables.to_mut().read(marker, body)?
                }
                (marker, _) if FRAMES.contains(&marker) => return Err("two frames".into()),
                _ => {}
            }
        }
    }
}

/// Returns true if an end-of-image marker follows `position`.
pub(super) fn ends_after(bytes: &[u8], position: usize) -> bool {
    // The search starts at the end of the file, where the marker usually is.
    bytes
        .get(position..)
        .unwrap_or_default()
        .windows(2)
        .rev()
        .any(|pair| pair == [0xFF, END_OF_IMAGE])
}

/// Returns the colour space by libjpeg's rules. A JFIF file is grey or YCbCr. Otherwise the last
/// byte of an Adobe segment decides. Without that segment the components' ids decide.
fn colours(components: &[Component], is_jfif: bool, adobe: Option<u8>) -> Colours {
    let is_named_rgb = || components.iter().map(|component| component.id).eq(*b"RGB");
    match (components.len(), adobe) {
        (1, _) => Colours::Grey,
        (3, adobe) if !is_jfif && adobe.map_or_else(is_named_rgb, |transform| transform == 0) => {
            Colours::Rgb
        }
        (3, _) => Colours::Ycc,
        (_, None | Some(0)) => Colours::Cmyk,
        _ => Colours::Ycck,
    }
}

/// Reads a SOF segment: the size of the image and its components.
fn read_frame(marker: u8, body: &[u8]) -> Result<([usize; 2], Vec<Component>)> {
    if !matches!(marker, 0xC0..=0xC2 | 0xC9 | 0xCA) {
        return Err(format!(
            "JPEG process {} is not supported (lossless or hierarchical)",
            marker & 15
        )
        .into());
    }
    let (&[precision, h1, h0, w1, w0, num_components], rest) =
        body.split_first_chunk().ok_or("the frame is too short")?;
    let size = [[w1, w0], [h1, h0]].map(|side| usize::from(u16::from_be_bytes(side)));
    let [width, height] = size;
    if precision != 8 {
        return Err(format!("{precision} bits a value are not supported (expected 8)").into());
    }
    if width == 0 || height == 0 || rest.len() != 3 * usize::from(num_components) {
        return Err(
            format!("the frame has {width}x{height} pixels, {num_components} components").into(),
        );
    }
    let mut components: Vec<Component> = rest
        .as_chunks()
        .0
        .iter()
        .map(|&[id, sampling, quantization]| Component {
            id,
            sampling: [sampling >> 4, sampling & 15].map(usize::from),
            quantization: usize::from(quantization),
        })
        .collect();
    match &mut components[..] {
        // An image with one component has one block per MCU, for all sampling factors.
        [grey] => grey.sampling = [1; 2],
        others if matches!(others.len(), 3 | 4) => {
            let most = most_sampling(others);
            for Component { sampling, .. } in others {
                if sampling
                    .iter()
                    .zip(most)
                    .any(|(own, most)| !(1..=4).contains(own) || most % own != 0)
                {
                    return Err(
                        format!("sampling {sampling:?} with {most:?} is not supported").into(),
                    );
                }
            }
        }
        _ => {
            return Err(format!(
                "{num_components} components are not supported (expected 1, 3 or 4)"
            )
            .into());
        }
    }
    Ok((size, components))
}

/// Returns the largest horizontal and the largest vertical sampling of all components.
pub(super) fn most_sampling(components: &[Component]) -> [usize; 2] {
    [0, 1].map(|side| {
        components
            .iter()
            .map(|component| component.sampling[side])
            .max()
            .unwrap_or(1)
    })
}

impl Scan {
    /// Reads a SOS segment: the components with their tables, and the coded part of the
    /// coefficients.
    fn read(body: &[u8], of_frame: &[Component], is_progressive: bool) -> Result<Self> {
        let read = || {
            let (&num_components, rest) = body.split_first()?;
            let (ids, &[first, last, bits]) =
                rest.split_at_checked(2 * usize::from(num_components))?
            else {
                return None;
            };
            let mut components: Vec<(usize, [usize; 2])> = Vec::new();
            for &[id, tables] in ids.as_chunks().0 {
                let is_free = |index: &usize| components.iter().all(|(other, _)| other != index);
                let index = (0..of_frame.len())
                    .find(|index| of_frame[*index].id == id && is_free(index))?;
                let [dc, ac] = [tables >> 4, tables & 15].map(usize::from);
                if dc > 3 || ac > 3 {
                    return None;
                }
                components.push((index, [dc, 4 + ac]));
            }
            // Sequential files ignore these numbers, as in libjpeg.
            let [first, last, high, low] = if is_progressive {
                [first, last, bits >> 4, bits & 15]
            } else {
                [0, 63, 0, 0]
            };
            let is_band = if first == 0 {
                last == 0
            } else {
                first <= last && last < 64 && components.len() == 1
            };
            let is_sound = !components.is_empty() && (!is_progressive || is_band) && low <= 13;
            (is_sound && (high == 0 || high == low + 1)).then(|| Self {
                components,
                places: [first, last].map(usize::from),
                bits: [high, low].map(u32::from),
            })
        };
        read().ok_or_else(|| "the header of a scan contradicts the frame".into())
    }
}

impl Tables {
    fn new() -> Self {
        Self {
            quantizations: [None; 4],
            codes: [const { None }; 8],
            bounds: [[0, 1]; 4],
            low_places: [5; 4],
            restart_interval: 0,
        }
    }

    /// Reads a segment of tables. Skips other segments.
    fn read(&mut self, marker: u8, body: &[u8]) -> Result<()> {
        let read = match marker {
            0xC4 => self.read_codes(body),
            0xCC => self.read_conditioning(body),
            0xDB => self.read_quantizations(body),
            0xDD => body.try_into().ok().map(|interval| {
                self.restart_interval = usize::from(u16::from_be_bytes(interval));
            }),
            _ => Some(()),
        };
        read.ok_or_else(|| format!("the tables of marker 0x{marker:02X} are damaged").into())
    }

    /// Reads a DQT segment, which contains any number of tables.
    fn read_quantizations(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((&kind, rest)) = body.split_first() {
            let bytes = if kind >> 4 == 0 { 1 } else { 2 };
            let (values, rest) = rest.split_at_checked(64 * bytes)?;
            let value = |place: usize| {
                values[place * bytes..(place + 1) * bytes]
                    .iter()
                    .fold(0, |value, byte| value << 8 | i32::from(*byte))
            };
            *self.quantizations.get_mut(usize::from(kind & 15))? = Some(std::array::from_fn(value));
            body = rest;
        }
        Some(())
    }

    /// Reads a DHT segment, which contains any number of tables.
    fn read_codes(&mut self, mut body: &[u8]) -> Option<()> {
        while let Some((&kind, rest)) = body.split_first() {
            let (counts, rest) = rest.split_first_chunk()?;
            let (symbols, rest) =
                rest.split_at_checked(counts.iter().map(|count| usize::from(*count)).sum())?;
            if symbols.len() > 256 || kind & 15 > 3 {
                return None;
            }
            let class = if kind >> 4 == 0 { Class::Dc } else { Class::Ac };
            let place = 4 * usize::from(kind >> 4) + usize::from(kind & 15);
            *self.codes.get_mut(place)? = Some(Table::new(class, counts, symbols)?);
            body = rest;
        }
        Some(())
    }

    /// Reads a DAC segment, which contains any number of conditionings.
    fn read_conditioning(&mut self, body: &[u8]) -> Option<()> {
        for &[kind, value] in body.as_chunks().0 {
            let table = usize::from(kind & 15);
            match kind >> 4 {
                0 if value & 15 <= value >> 4 => {
                    *self.bounds.get_mut(table)? = [value & 15, value >> 4]
                }
                1 => *self.low_places.get_mut(table)? = value,
                _ => return None,
            }
        }
        Some(())
    }
}

/// Iterator over the segments from a position on: marker and body. Markers without a length are
/// skipped, except start and end of the image.
struct Segments<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Iterator for Segments<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        loop {
            let &[first, marker, ref rest @ ..] = self.bytes.get(self.position..)? else {
                return None;
            };
            if first != 0xFF || marker == 0xFF {
                // libjpeg also skips bytes between segments. 0xFF may be padding before a marker.
                self.position += 1;
                continue;
            }
            self.position += 2;
            match marker {
                0x00 | 0x01 | 0xD0..=0xD7 => continue,
                START_OF_IMAGE | END_OF_IMAGE => return Some((marker, &[])),
                _ => {}
            }
            let len = usize::from(u16::from_be_bytes(*rest.first_chunk()?)).max(2);
            self.position += len;
            return Some((marker, rest.get(2..len)?));
        }
    }
}
