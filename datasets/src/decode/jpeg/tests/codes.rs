//! Huffman codes of coefficients, for the files that the tests of file families write.

/// Huffman-coded bits of a scan.
#[derive(Default)]
pub(super) struct Codes {
    /// True if all codes have 16 bits, or 8 and 9 bits.
    has_long_codes: bool,
    bits: Vec<bool>,
    /// Number of blocks in the current end-of-band run, and the bits to write after the code of the
    /// run.
    num_ended: u32,
    due: Vec<bool>,
}

impl Codes {
    pub(super) fn new(has_long_codes: bool) -> Self {
        Self {
            has_long_codes,
            ..Self::default()
        }
    }

    pub(super) fn bits(&mut self, value: u32, count: u32) {
        self.bits
            .extend((0..count).rev().map(|bit| value >> bit & 1 == 1));
    }

    fn symbol(&mut self, symbol: u8) {
        match symbol {
            _ if self.has_long_codes => self.bits(symbol.into(), 16),
            254 => self.bits(508, 9),
            _ => self.bits(symbol.into(), 8),
        }
    }

    /// Writes a run of zeros and the value after the run.
    pub(super) fn value(&mut self, run: usize, value: i16) {
        let size = 16 - value.unsigned_abs().leading_zeros();
        self.symbol((run << 4) as u8 | size as u8);
        let value = i32::from(value);
        self.bits(
            if value < 0 {
                value - 1 + (1 << size)
            } else {
                value
            } as u32,
            size,
        );
    }

    fn end_blocks(&mut self) {
        if self.num_ended > 0 {
            let size = self.num_ended.ilog2();
            self.symbol((size << 4) as u8);
            self.bits(self.num_ended - (1 << size), size);
            self.bits.append(&mut self.due);
            self.num_ended = 0;
        }
    }

    pub(super) fn first_bits(&mut self, values: &[i16], low: u32, counts_ends: bool) {
        let mut run = 0;
        for value in values {
            // The division rounds towards zero.
            let value = value / (1 << low);
            if value == 0 {
                run += 1;
                continue;
            }
            self.end_blocks();
            while run > 15 {
                self.symbol(0xF0);
                run -= 16;
            }
            self.value(run, value);
            run = 0;
        }
        if run > 0 {
            self.num_ended += 1;
            if !counts_ends {
                self.end_blocks();
            }
        }
    }

    pub(super) fn next_bit(&mut self, values: &[i16], low: u32) {
        let sizes: Vec<u16> = values
            .iter()
            .map(|value| value.unsigned_abs() >> low)
            .collect();
        let last_new = sizes.iter().rposition(|size| *size == 1);
        let mut run = 0;
        let mut corrections = Vec::new();
        for (place, size) in sizes.iter().enumerate() {
            if *size == 0 {
                run += 1;
                continue;
            }
            while run > 15 && Some(place) <= last_new {
                self.end_blocks();
                self.symbol(0xF0);
                self.bits.append(&mut corrections);
                run -= 16;
            }
            if *size > 1 {
                corrections.push(size & 1 == 1);
                continue;
            }
            self.end_blocks();
            self.symbol((run << 4) as u8 | 1);
            self.bits((values[place] > 0).into(), 1);
            self.bits.append(&mut corrections);
            run = 0;
        }
        if run > 0 || !corrections.is_empty() {
            self.num_ended += 1;
            self.due.append(&mut corrections);
        }
    }

    /// Pads the last byte and writes all bytes with stuffing.
    pub(super) fn end(&mut self, bytes: &mut Vec<u8>) {
        self.end_blocks();
        for piece in std::mem::take(&mut self.bits).chunks(8) {
            let byte = (0..8).fold(0, |byte, bit| {
                byte << 1 | u8::from(*piece.get(bit).unwrap_or(&true))
            });
            bytes.push(byte);
            if byte == 0xFF {
                bytes.push(0);
            }
        }
    }
}
