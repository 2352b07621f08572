//! Arithmetic decoding of sequential and progressive scans.
//!
//! In: entropy-coded bytes without stuffing. Out: the coefficients of blocks.
//! Invariant: all bytes are read safely.
//! Source: ITU-T T.81, annexes D, F.1.4.4 and G.1.3. The registers are those of libjpeg's
//! `jdarith.c`.

use super::coefficients::Coefficients;
use super::header::{Scan, Tables};

/// Probability states (table D.3). The two high bytes are the size of the less probable interval.
/// The third byte is the next state after the more probable outcome. The highest bit of the low
/// byte swaps the outcomes. Its other bits are the next state after the less probable outcome.
#[rustfmt::skip]
const STATES: [u32; 114] = [
    0x5A1D_0181, 0x2586_020E, 0x1114_0310, 0x080B_0412, 0x03D8_0514, 0x01DA_0617, 0x00E5_0719, 0x006F_081C,
    0x0036_091E, 0x001A_0A21, 0x000D_0B23, 0x0006_0C09, 0x0003_0D0A, 0x0001_0D0C, 0x5A7F_0F8F, 0x3F25_1024,
    0x2CF2_1126, 0x207C_1227, 0x17B9_1328, 0x1182_142A, 0x0CEF_152B, 0x09A1_162D, 0x072F_172E, 0x055C_1830,
    0x0406_1931, 0x0303_1A33, 0x0240_1B34, 0x01B1_1C36, 0x0144_1D38, 0x00F5_1E39, 0x00B7_1F3B, 0x008A_203C,
    0x0068_213E, 0x004E_223F, 0x003B_2320, 0x002C_0921, 0x5AE1_25A5, 0x484C_2640, 0x3A0D_2741, 0x2EF1_2843,
    0x261F_2944, 0x1F33_2A45, 0x19A8_2B46, 0x1518_2C48, 0x1177_2D49, 0x0E74_2E4A, 0x0BFB_2F4B, 0x09F8_304D,
    0x0861_314E, 0x0706_324F, 0x05CD_3330, 0x04DE_3432, 0x040F_3532, 0x0363_3633, 0x02D4_3734, 0x025C_3835,
    0x01F8_3936, 0x01A4_3A37, 0x0160_3B38, 0x0125_3C39, 0x00F6_3D3A, 0x00CB_3E3B, 0x00AB_3F3D, 0x008F_203D,
    0x5B12_41C1, 0x4D04_4250, 0x412C_4351, 0x37D8_4452, 0x2FE8_4553, 0x293C_4654, 0x2379_4756, 0x1EDF_4857,
    0x1AA9_4957, 0x174E_4A48, 0x1424_4B48, 0x119C_4C4A, 0x0F6B_4D4A, 0x0D51_4E4B, 0x0BB6_4F4D, 0x0A40_304D,
    0x5832_51D0, 0x4D1C_5258, 0x438E_5359, 0x3BDD_545A, 0x34EE_555B, 0x2EAE_565C, 0x299A_575D, 0x2516_4756,
    0x5570_59D8, 0x4CA9_5A5F, 0x44D9_5B60, 0x3E22_5C61, 0x3824_5D63, 0x32B4_5E63, 0x2E17_565D, 0x56A8_60DF,
    0x4F46_6165, 0x47E5_6266, 0x41CF_6367, 0x3C3D_6468, 0x375E_5D63, 0x5231_6669, 0x4C0F_676A, 0x4639_686B,
    0x415E_6367, 0x5627_6AE9, 0x50E7_6B6C, 0x4B85_676D, 0x5597_6D6E, 0x504F_6B6F, 0x5A10_6FEE, 0x5522_6D70,
    0x59EB_6FF0, 0x5A1D_7171,
];

/// State of a binary decision. The highest bit is the more probable outcome.
type Bin = u8;

/// The fixed state of a decision with equal probabilities.
const EVEN: Bin = 113;

/// Registers of the decoder and the remaining bytes.
struct Registers<'a> {
    bytes: &'a [u8],
    /// Code relative to the interval's start, with `shift` more bits.
    code: u32,
    interval: u32,
    shift: i32,
}

impl<'a> Registers<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            code: 0,
            interval: 0,
            shift: -16,
        }
    }

    /// Reads bytes until the interval has 16 bits. Encoders omit zeros at the end.
    fn widen(&mut self) {
        while self.interval < 0x8000 {
            self.shift -= 1;
            if self.shift < 0 {
                let byte = self
                    .bytes
                    .split_off_first()
                    .map_or(0, |byte| u32::from(*byte));
                self.code = self.code << 8 | byte;
                self.shift += 8;
                // The first decision needs two bytes.
                if self.shift < 0 {
                    self.shift += 1;
                    if self.shift == 0 {
                        self.interval = 0x8000;
                    }
                }
            }
            self.interval <<= 1;
        }
    }

    fn decide(&mut self, bin: &mut Bin) -> bool {
        self.widen();
        let probable = *bin & 0x80;
        let [size_1, size_0, after_probable, after_other] =
            STATES[usize::from(*bin & 0x7F)].to_be_bytes();
        let size = u32::from(u16::from_be_bytes([size_1, size_0]));
        self.interval -= size;
        let bound = self.interval << self.shift;
        let is_upper = self.code >= bound;
        if !is_upper && self.interval >= 0x8000 {
            return probable != 0;
        }
        // The upper interval is the less probable outcome, unless it is larger than the lower
        // interval.
        let is_probable = is_upper == (self.interval < size);
        if is_upper {
            self.code -= bound;
            self.interval = size;
        }
        *bin = probable
            ^ if is_probable {
                after_probable
            } else {
                after_other
            };
        is_probable == (probable != 0)
    }

    fn decide_evenly(&mut self) -> bool {
        self.decide(&mut { EVEN })
    }
}

/// Arithmetic decoder of a scan.
pub(super) struct Arithmetic<'a> {
    tables: &'a Tables,
    scan: &'a Scan,
    is_progressive: bool,
    registers: Registers<'a>,
    means: [u16; 4],
    /// First bin of the next DC difference, for each component.
    contexts: [usize; 4],
    dc_bins: [[Bin; 64]; 4],
    ac_bins: [[Bin; 256]; 4],
}

impl<'a> Arithmetic<'a> {
    pub(super) fn new(tables: &'a Tables, scan: &'a Scan, is_progressive: bool) -> Self {
        Self {
            tables,
            scan,
            is_progressive,
            registers: Registers::new(&[]),
            means: [0; 4],
            contexts: [0; 4],
            dc_bins: [[0; 64]; 4],
            ac_bins: [[0; 256]; 4],
        }
    }

    pub(super) fn restart(&mut self, bytes: &'a [u8]) {
        *self = Self {
            registers: Registers::new(bytes),
            ..Self::new(self.tables, self.scan, self.is_progressive)
        };
    }

    pub(super) fn block(&mut self, index: usize, block: &mut Coefficients) -> Option<()> {
        let (_, [dc, ac]) = self.scan.components[index];
        let ac = ac - 4;
        if !self.is_progressive {
            self.mean(index, dc, block)?;
            return self.first_bits(ac, block);
        }
        match (self.scan.places[0], self.scan.bits[0]) {
            (0, 0) => self.mean(index, dc, block),
            (0, _) => {
                block[0] |= i16::from(self.registers.decide_evenly()) << self.scan.bits[1];
                Some(())
            }
            (_, 0) => self.first_bits(ac, block),
            _ => self.next_bit(ac, block),
        }
    }

    fn mean(&mut self, index: usize, table: usize, block: &mut Coefficients) -> Option<()> {
        let registers = &mut self.registers;
        let bins = &mut self.dc_bins[table];
        let context = self.contexts[index];
        self.contexts[index] = 0;
        if registers.decide(&mut bins[context]) {
            let is_negative = registers.decide(&mut bins[context + 1]);
            let mut bin = context + 2 + usize::from(is_negative);
            let mut size = u32::from(registers.decide(&mut bins[bin]));
            if size > 0 {
                bin = 20;
                size = magnitude(registers, bins, &mut bin, size)?;
            }
            let [least, most] = self.tables.bounds[table].map(|bits| (1 << bits) >> 1);
            if size >= least {
                self.contexts[index] =
                    if size > most { 12 } else { 4 } + 4 * usize::from(is_negative);
            }
            let difference = value(registers, &mut bins[bin + 14], size, is_negative);
            self.means[index] = self.means[index].wrapping_add_signed(difference);
        }
        block[0] = (self.means[index] << self.scan.bits[1]) as i16;
        Some(())
    }

    fn first_bits(&mut self, table: usize, block: &mut Coefficients) -> Option<()> {
        let registers = &mut self.registers;
        let bins = &mut self.ac_bins[table];
        let [first, last] = self.scan.places;
        let mut place = first.max(1);
        while place <= last && !registers.decide(&mut bins[3 * (place - 1)]) {
            while !registers.decide(&mut bins[3 * (place - 1) + 1]) {
                place += 1;
                if place > last {
                    return None;
                }
            }
            let is_negative = registers.decide_evenly();
            let mut bin = 3 * (place - 1) + 2;
            let mut size = u32::from(registers.decide(&mut bins[bin]));
            if size > 0 && registers.decide(&mut bins[bin]) {
                bin = if place <= usize::from(self.tables.low_places[table]) {
                    189
                } else {
                    217
                };
                size = magnitude(registers, bins, &mut bin, 2)?;
            }
            let value = value(registers, &mut bins[bin + 14], size, is_negative);
            block[place] = value << self.scan.bits[1];
            place += 1;
        }
        Some(())
    }

    fn next_bit(&mut self, table: usize, block: &mut Coefficients) -> Option<()> {
        let registers = &mut self.registers;
        let bins = &mut self.ac_bins[table];
        let [mut place, last] = self.scan.places;
        let one = 1i16 << self.scan.bits[1];
        // Last nonzero coefficient that earlier scans decoded.
        let end = (1..=last)
            .rev()
            .find(|place| block[*place] != 0)
            .unwrap_or(0);
        while place <= last && !(place > end && registers.decide(&mut bins[3 * (place - 1)])) {
            loop {
                let value = &mut block[place];
                let bin = 3 * (place - 1);
                if *value != 0 {
                    if registers.decide(&mut bins[bin + 2]) {
                        *value = value.wrapping_add(if *value < 0 { -one } else { one });
                    }
                    break;
                }
                if registers.decide(&mut bins[bin + 1]) {
                    *value = if registers.decide_evenly() { -one } else { one };
                    break;
                }
                place += 1;
                if place > last {
                    return None;
                }
            }
            place += 1;
        }
        Some(())
    }
}

/// Reads the magnitude category of a value, starting at `bin`. Returns the highest bit of the value
/// minus 1, at least `size`.
fn magnitude(
    registers: &mut Registers,
    bins: &mut [Bin],
    bin: &mut usize,
    mut size: u32,
) -> Option<u32> {
    while registers.decide(&mut bins[*bin]) {
        size <<= 1;
        if size == 0x8000 {
            return None;
        }
        *bin += 1;
    }
    Some(size)
}

/// Reads the bits of a value below the highest bit.
fn value(registers: &mut Registers, bin: &mut Bin, size: u32, is_negative: bool) -> i16 {
    let mut bits = size >> 1;
    let mut value = size;
    while bits > 0 {
        if registers.decide(bin) {
            value |= bits;
        }
        bits >>= 1;
    }
    let value = value as i32 + 1;
    (if is_negative { -value } else { value }) as i16
}
