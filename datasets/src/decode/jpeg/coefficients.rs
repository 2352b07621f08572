//! Scans of progressive and arithmetic files. Each scan adds to the coefficients of all blocks.
//!
//! In: the entropy-coded bytes of a scan. Out: 64 coefficients per block, in zigzag order, before
//! dequantisation.
//! Invariant: all bytes are read safely. Codes that no encoder writes give `None`.
//! Source: ITU-T T.81, annexes G.1 (progressive), F.1.4.4 and G.1.3 (arithmetic), as in
//! libjpeg-turbo.

use super::arithmetic::Arithmetic;
use super::header::{Header, Scan, Tables};
use super::huffman::{Bits, Run, Table};

/// Coefficients of a block in zigzag order.
pub(super) type Coefficients = [i16; 64];

/// Decoder of a scan's blocks, in the order of the scan.
pub(super) enum Coder<'a> {
    Huffman(Progressive<'a>),
    Arithmetic(Box<Arithmetic<'a>>),
}

impl<'a> Coder<'a> {
    /// Returns the decoder of a scan, or `None` if a table is missing. [`restart`](Self::restart)
    /// sets the bytes to decode.
    pub(super) fn new(header: &Header, tables: &'a Tables, scan: &'a Scan) -> Option<Self> {
        if header.is_arithmetic {
            return Some(Self::Arithmetic(
                Arithmetic::new(tables, scan, header.is_progressive).into(),
            ));
        }
        let needs_table = scan.places[0] > 0 || scan.bits[0] == 0;
        let table =
            |[dc, ac]: [usize; 2]| tables.codes[if scan.places[0] == 0 { dc } else { ac }].as_ref();
        let tables: Vec<_> = scan
            .components
            .iter()
            .map(|(_, numbers)| table(*numbers))
            .collect();
        if needs_table && tables.iter().any(Option::is_none) {
            return None;
        }
        Some(Self::Huffman(Progressive {
            scan,
            tables,
            bits: Bits::new(&[]),
            means: [0; 4],
            blocks_to_skip: 0,
        }))
    }

    /// Starts a restart interval. Its first `len` bytes of `codes` precede the next restart marker.
    pub(super) fn restart(&mut self, codes: &'a [u8], len: usize) {
        match self {
            Self::Huffman(coder) => {
                coder.bits = Bits::new(codes);
                coder.means = [0; 4];
                coder.blocks_to_skip = 0;
            }
            Self::Arithmetic(coder) => coder.restart(&codes[..len]),
        }
    }

    /// Returns `None` if the decoder has read more than `len` bytes since the last restart.
    /// Arithmetic decoding may do so, because encoders omit zeros at the end.
    pub(super) fn end(&self, len: usize) -> Option<()> {
        match self {
            Self::Huffman(coder) => coder.bits.end(len),
            Self::Arithmetic(_) => Some(()),
        }
    }

    /// Decodes a block of the component at `index` of the scan.
    pub(super) fn block(&mut self, index: usize, block: &mut Coefficients) -> Option<()> {
        match self {
            Self::Huffman(coder) => coder.block(index, block),
            Self::Arithmetic(coder) => coder.block(index, block),
        }
    }
}

/// Huffman decoder of a progressive scan.
pub(super) struct Progressive<'a> {
    scan: &'a Scan,
    /// Table of each component, or `None` if the scan needs no table.
    tables: Vec<Option<&'a Table>>,
    bits: Bits<'a>,
    means: [i32; 4],
    /// Remaining blocks of an end-of-band run.
    blocks_to_skip: u32,
}

impl Progressive<'_> {
    fn block(&mut self, index: usize, block: &mut Coefficients) -> Option<()> {
        let low = self.scan.bits[1];
        match (self.scan.places[0], self.scan.bits[0]) {
            (0, 0) => {
                let mean = &mut self.means[index];
                *mean = mean.wrapping_add(self.bits.difference(self.tables[index]?)?);
                block[0] = (*mean << low) as i16;
                Some(())
            }
            (0, _) => {
                block[0] |= (self.bits.take(1)? << low) as i16;
                Some(())
            }
            (_, 0) => self.first_bits(block),
            _ => self.next_bit(block),
        }
    }

    fn first_bits(&mut self, block: &mut Coefficients) -> Option<()> {
        if self.blocks_to_skip > 0 {
            self.blocks_to_skip -= 1;
            return Some(());
        }
        let table = self.tables[0]?;
        let [mut place, last] = self.scan.places;
        let values = &mut block[..=last];
        while place <= last {
            match self.bits.run(table)? {
                Run::Value(zeros, value) => {
                    place += zeros;
                    *values.get_mut(place)? = (value << self.scan.bits[1]) as i16;
                    place += 1;
                }
                Run::Ends(blocks) => {
                    self.blocks_to_skip = blocks - 1;
                    break;
                }
            }
        }
        Some(())
    }

    /// Decodes one more bit of each coefficient in a refinement scan.
    fn next_bit(&mut self, block: &mut Coefficients) -> Option<()> {
        let table = self.tables[0]?;
        let [mut place, last] = self.scan.places;
        let one = 1i16 << self.scan.bits[1];
        let values = &mut block[..=last];
        while self.blocks_to_skip == 0 && place <= last {
            let (mut zeros, new) = match self.bits.run(table)? {
                // A newly nonzero coefficient has only this scan's bit.
                Run::Value(zeros, value @ -1..=1) => (zeros, one * value as i16),
                Run::Value(..) => return None,
                Run::Ends(blocks) => {
                    self.blocks_to_skip = blocks;
                    break;
                }
            };
            while let Some(value) = values.get_mut(place) {
                if *value != 0 {
                    self.correct(value)?;
                } else if zeros == 0 {
                    break;
                } else {
                    zeros -= 1;
                }
                place += 1;
            }
            if new != 0 {
                *values.get_mut(place)? = new;
            }
            place += 1;
        }
        if self.blocks_to_skip > 0 {
            for value in values.get_mut(place..).unwrap_or_default() {
                if *value != 0 {
                    self.correct(value)?;
                }
            }
            self.blocks_to_skip -= 1;
        }
        Some(())
    }

    /// Increases the magnitude of a coefficient if the next bit is set.
    fn correct(&mut self, value: &mut i16) -> Option<()> {
        let one = 1i16 << self.scan.bits[1];
        if self.bits.take(1)? == 1 && *value & one == 0 {
            *value = value.wrapping_add(if *value > 0 { one } else { -one });
        }
        Some(())
    }
}
