//! Huffman decoding: single codes with the bits of their values, and blocks of a sequential scan.
//!
//! In: a [`Table`] from a file, and entropy-coded bytes without stuffing. Out: the 64 dequantised
//! coefficients of a block.
//! Invariant: all bytes are read safely. Undefined codes give `None`.
//! Source: ITU-T T.81, annexes C and F.2.

use super::inverse::Group;

/// Largest length of a code that one table lookup decodes.
const LOOK_BITS: u32 = 10;

/// Run of an end-of-block code, larger than all other runs.
const TO_THE_END: u8 = 128;

/// Run of a symbol that no 8-bit image has. It leads beyond the block but is below [`TO_THE_END`].
const IMPOSSIBLE: u8 = 64;

/// The kind of coefficients that a table codes.
#[derive(Clone, Copy)]
pub(super) enum Class {
    /// Differences of DC coefficients.
    Dc,
    /// AC coefficients: runs of zeros and the coefficients after them.
    Ac,
}

/// A decoded Huffman code.
#[derive(Clone, Copy, Default)]
#[repr(align(4))]
struct Code {
    /// Length of the code in bits. 0 if the code is longer than a lookup.
    length: u8,
    /// Length of the code and of the value's bits after the code.
    total: u8,
    /// Number of zeros before the value.
    run: u8,
    symbol: u8,
}

impl Code {
    /// Returns a decoded code. In 8-bit images DC differences have at most 11 bits, and other
    /// coefficients at most 10.
    fn new(class: Class, symbol: u8, length: u32) -> Self {
        let (run, size) = match class {
            Class::Dc if symbol > 11 => (IMPOSSIBLE, 0),
            Class::Dc => (0, symbol),
            Class::Ac if symbol & 15 == 0 && symbol >> 4 != 15 => (TO_THE_END, 0),
            Class::Ac if symbol & 15 > 10 => (IMPOSSIBLE, 0),
            Class::Ac => (symbol >> 4, symbol & 15),
        };
        Self {
            length: length as u8,
            total: length as u8 + size,
            run,
            symbol,
        }
    }
}

/// A Huffman table.
#[derive(Clone)]
pub(super) struct Table {
    /// Code at the start of the next bits, for all values of these bits.
    looks: Box<[Code; 1 << LOOK_BITS]>,
    /// For each length: the first 16-bit value after the codes of this length, and the offset from
    /// a code to the index of its symbol.
    longer: [(u32, i32); 17],
    symbols: Vec<u8>,
    class: Class,
}

impl Table {
    /// Returns the table of a DHT segment. `counts` has the number of codes of each length, 1 to
    /// 16. `symbols` has the symbols, shortest codes first.
    pub(super) fn new(class: Class, counts: &[u8; 16], symbols: &[u8]) -> Option<Self> {
        let mut table = Self {
            looks: Box::new([Code::default(); 1 << LOOK_BITS]),
            longer: [(0, 0); 17],
            symbols: symbols.to_vec(),
            class,
        };
        let mut code = 0u32;
        let mut place = 0;
        for (length, count) in (1..=16).zip(counts) {
            table.longer[length as usize].1 = place as i32 - code as i32;
            for _ in 0..*count {
                let symbol = *symbols.get(place)?;
                let found = Code::new(class, symbol, length);
                if code >= 1 << length {
                    return None;
                }
                if length <= LOOK_BITS {
                    let free = LOOK_BITS - length;
                    table.looks[(code << free) as usize..((code + 1) << free) as usize].fill(found);
                }
                code += 1;
                place += 1;
            }
            // A code of only ones is invalid.
            if *count > 0 && code >= 1 << length {
                return None;
            }
            table.longer[length as usize].0 = code << (16 - length);
            code <<= 1;
        }
        Some(table)
    }

    /// Returns the code at the start of these 16 bits, if the code is longer than a lookup.
    #[cold]
    fn long(&self, bits: u32) -> Option<Code> {
        let length = (LOOK_BITS + 1..=16).find(|length| bits < self.longer[*length as usize].0)?;
        let place = self.longer[length as usize].1 + (bits >> (16 - length)) as i32;
        Some(Code::new(
            self.class,
            *self.symbols.get(place as usize)?,
            length,
        ))
    }
}

/// Meaning of a code of a progressive scan.
pub(super) enum Run {
    /// A number of zeros, then a value.
    Value(usize, i32),
    /// Number of blocks in an end-of-band run.
    Ends(u32),
}

/// Bits of a scan, or of a restart interval.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    position: usize,
    /// Next bits, highest first. The first `count` bits are those that were taken from `bytes`.
    buffer: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    /// Returns a reader of bits.
    ///
    /// # Shapes
    /// `bytes`: includes at least 16 more bytes after the entropy-coded bytes.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            position: 0,
            buffer: 0,
            count: 0,
        }
    }

    /// Returns `None` if more bits were used than `len` bytes have.
    pub(super) fn end(&self, len: usize) -> Option<()> {
        (8 * self.position - self.count as usize <= 8 * len).then_some(())
    }

    /// Fills the buffer to at least 56 bits, enough for two codes and their values.
    #[inline(always)]
    fn refill(&mut self) -> Option<()> {
        let word = self.bytes.get(self.position..)?.first_chunk()?;
        self.buffer |= u64::from_be_bytes(*word) >> self.count;
        self.position += (63 - self.count as usize) / 8;
        self.count |= 56;
        Some(())
    }

    /// Reads up to 16 bits.
    pub(super) fn take(&mut self, count: u32) -> Option<i32> {
        if self.count < count {
            self.refill()?;
        }
        let bits = self.buffer >> 1 >> (63 - count);
        self.buffer <<= count;
        self.count -= count;
        Some(bits as i32)
    }

    /// Reads a DC difference.
    pub(super) fn difference(&mut self, table: &Table) -> Option<i32> {
        self.refill()?;
        let (code, value) = self.next(table)?;
        (code.run == 0).then_some(value)
    }

    /// Reads a run of zeros and the value after the run, or an end-of-band run.
    pub(super) fn run(&mut self, table: &Table) -> Option<Run> {
        self.refill()?;
        let (code, value) = self.next(table)?;
        match code.run {
            TO_THE_END => Some(Run::Ends(self.ended_blocks(code.symbol >> 4)?)),
            IMPOSSIBLE => None,
            zeros => Some(Run::Value(zeros.into(), value)),
        }
    }

    /// Reads the length of an end-of-band run, which includes the current block.
    fn ended_blocks(&mut self, size: u8) -> Option<u32> {
        Some((1 << size) + self.take(size.into())? as u32)
    }

    /// Reads the next code with its value.
    #[inline(always)]
    fn next(&mut self, table: &Table) -> Option<(Code, i32)> {
        let mut code = table.looks[(self.buffer >> (64 - LOOK_BITS)) as usize];
        if code.length == 0 {
            code = table.long((self.buffer >> 48) as u32)?;
        }
        // These operations cannot overflow. In development builds the usual operators would check
        // each time.
        let length = u32::from(code.length);
        let total = u32::from(code.total);
        let bits = self.buffer.wrapping_shl(length);
        let size = total.wrapping_sub(length);
        self.buffer = self.buffer.wrapping_shl(total);
        self.count = self.count.wrapping_sub(total);
        let value = (bits >> 1).wrapping_shr(63 ^ size) as i32;
        // Values whose bits start with 0 are negative: the number is the value of the bits minus
        // the largest value of this size.
        let largest = 1i32.wrapping_shl(size).wrapping_sub(1);
        let negative = !((bits as i64 >> 63) as i32);
        Some((code, value.wrapping_sub(largest & negative)))
    }

    /// Reads the next coefficient of a block. The zeros before the coefficient start at `place`.
    #[inline(always)]
    fn value(
        &mut self,
        table: &Table,
        place: &mut u32,
        quantization: &[i32; 64],
        output: &mut Option<(&mut Group, usize)>,
    ) -> Option<()> {
        let (code, value) = self.next(table)?;
        let at = place.wrapping_add(code.run.into());
        if let Some((group, lane)) = output {
            group.set(
                at as u8,
                *lane,
                value.wrapping_mul(quantization[at as usize & 63]),
            );
        }
        *place = at.wrapping_add(1);
        Some(())
    }

    /// Reads a block, whose first value is a difference to `mean`. Writes the dequantised
    /// coefficients to a lane of `output`. Skips the block if `output` is `None`.
    #[inline(always)]
    pub(super) fn block(
        &mut self,
        [dc, ac]: [&Table; 2],
        mean: &mut i32,
        quantization: &[i32; 64],
        mut output: Option<(&mut Group, usize)>,
    ) -> Option<()> {
        self.refill()?;
        let (
            Code {
                run: impossible, ..
            },
            difference,
        ) = self.next(dc)?;
        *mean = mean.wrapping_add(difference);
        if let Some((group, lane)) = &mut output {
            group.set(0, *lane, mean.wrapping_mul(quantization[0]));
        }
        let mut place = 1;
        self.value(ac, &mut place, quantization, &mut output)?;
        while place < 64 {
            self.refill()?;
            self.value(ac, &mut place, quantization, &mut output)?;
            if place < 64 {
                self.value(ac, &mut place, quantization, &mut output)?;
            }
        }
        // Only an end-of-block code may lead beyond the block.
        (impossible == 0 && (place == 64 || place > u32::from(TO_THE_END))).then_some(())
    }
}
