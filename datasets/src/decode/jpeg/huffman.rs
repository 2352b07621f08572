//! Huffman codes of runs and sizes, each followed by the bits of a value: bit by bit, and the
//! blocks of a sequential scan.
//!
//! In: a [`Table`] as a file defines it, and bytes without their stuffing. Out: the 64 values of a
//! block, quantisation undone.
//! Invariant: any bytes are read safely; what no code stands for gives `None`.
//! Source: ITU-T T.81, annexes C and F.2.

use super::inverse::Group;

/// Codes of at most so many bits are found by one look.
const LOOK_BITS: u32 = 10;

/// The run of an end of block: beyond all others.
const TO_THE_END: u8 = 128;

/// The run of a symbol that no 8-bit image has: beyond a block, not beyond [`TO_THE_END`].
const IMPOSSIBLE: u8 = 64;

/// The kind of values that a table codes.
#[derive(Clone, Copy)]
pub(super) enum Class {
    /// Differences of blocks' means.
    Dc,
    /// Runs of zeros and what ends them.
    Ac,
}

/// A code and what it stands for.
#[derive(Clone, Copy, Default)]
#[repr(align(4))]
struct Code {
    /// Its bits; 0 where it is longer than a look.
    length: u8,
    /// With those of the value behind it.
    total: u8,
    /// Zeros before the value.
    run: u8,
    symbol: u8,
}

impl Code {
    /// In an 8-bit image differences of means have 11 bits at most, other values 10.
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

/// One table of codes.
#[derive(Clone)]
pub(super) struct Table {
    /// The code that the next bits begin with.
    looks: Box<[Code; 1 << LOOK_BITS]>,
    /// For each length: the first 16 bits after its codes, and the place of its symbols less that
    /// of its first code.
    longer: [(u32, i32); 17],
    symbols: Vec<u8>,
    class: Class,
}

impl Table {
    /// Returns the table of a DHT segment: the number of codes of each length, 1 to 16, and their
    /// symbols, shortest first.
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
            // No code is all ones.
            if *count > 0 && code >= 1 << length {
                return None;
            }
            table.longer[length as usize].0 = code << (16 - length);
            code <<= 1;
        }
        Some(table)
    }

    /// Returns a code longer than a look, with which these 16 bits begin.
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

/// The meaning of a code of a progressive scan.
pub(super) enum Run {
    /// Zeros, then a value.
    Value(usize, i32),
    /// The ends of so many blocks.
    Ends(u32),
}

/// The bits of a scan, or of what lies between two of its restarts.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    position: usize,
    /// The next bits, from the highest; `count` of them are taken from `bytes`.
    buffer: u64,
    count: u32,
}

impl<'a> Bits<'a> {
    /// # Shapes
    /// `bytes`: followed by at least 16 bytes that do not belong to them.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            position: 0,
            buffer: 0,
            count: 0,
        }
    }

    /// None if more bits were used than so many bytes have.
    pub(super) fn end(&self, len: usize) -> Option<()> {
        (8 * self.position - self.count as usize <= 8 * len).then_some(())
    }

    /// Makes sure of 56 bits: those of two codes and their values.
    #[inline(always)]
    fn refill(&mut self) -> Option<()> {
        let word = self.bytes.get(self.position..)?.first_chunk()?;
        self.buffer |= u64::from_be_bytes(*word) >> self.count;
        self.position += (63 - self.count as usize) / 8;
        self.count |= 56;
        Some(())
    }

    /// Takes up to 16 bits.
    pub(super) fn take(&mut self, count: u32) -> Option<i32> {
        if self.count < count {
            self.refill()?;
        }
        let bits = self.buffer >> 1 >> (63 - count);
        self.buffer <<= count;
        self.count -= count;
        Some(bits as i32)
    }

    /// Takes a difference of means.
    pub(super) fn difference(&mut self, table: &Table) -> Option<i32> {
        self.refill()?;
        let (code, value) = self.next(table)?;
        (code.run == 0).then_some(value)
    }

    /// Takes zeros and the value behind them, or how many blocks end.
    pub(super) fn run(&mut self, table: &Table) -> Option<Run> {
        self.refill()?;
        let (code, value) = self.next(table)?;
        match code.run {
            TO_THE_END => Some(Run::Ends(self.ended_blocks(code.symbol >> 4)?)),
            IMPOSSIBLE => None,
            zeros => Some(Run::Value(zeros.into(), value)),
        }
    }

    /// Takes the bits behind the end of a block: how many blocks end, this one among them.
    fn ended_blocks(&mut self, size: u8) -> Option<u32> {
        Some((1 << size) + self.take(size.into())? as u32)
    }

    /// Takes the next code with its value.
    #[inline(always)]
    fn next(&mut self, table: &Table) -> Option<(Code, i32)> {
        let mut code = table.looks[(self.buffer >> (64 - LOOK_BITS)) as usize];
        if code.length == 0 {
            code = table.long((self.buffer >> 48) as u32)?;
        }
        // None of these wraps; other operations would ask so in development builds, each time.
        let length = u32::from(code.length);
        let total = u32::from(code.total);
        let bits = self.buffer.wrapping_shl(length);
        let size = total.wrapping_sub(length);
        self.buffer = self.buffer.wrapping_shl(total);
        self.count = self.count.wrapping_sub(total);
        let value = (bits >> 1).wrapping_shr(63 ^ size) as i32;
        // Those that begin with 0 are negative numbers, as far from the largest of their size as
        // they are from zero.
        let largest = 1i32.wrapping_shl(size).wrapping_sub(1);
        let negative = !((bits as i64 >> 63) as i32);
        Some((code, value.wrapping_sub(largest & negative)))
    }

    /// Reads the next value of a block, which comes after zeros from `place` on.
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

    /// Reads a block, the first value of which is a difference to `mean`, and writes it, times
    /// `quantization`, to a lane of a group; without one it is passed over.
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
        // A run may end beyond the block only where that is how blocks end.
        (impossible == 0 && (place == 64 || place > u32::from(TO_THE_END))).then_some(())
    }
}
