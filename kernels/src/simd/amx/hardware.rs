//! Tiles by the instructions of the CPU.
//!
//! In, out: as [`Tiles`].
//! Invariant: used only if [`is_available`]. No code is compiled with AMX as a target feature, so
//! the compiler uses no tile registers: they keep their values between these instructions.

use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::OnceLock;

use super::product::of_whole_numbers;
use super::{Emulated, TILE_ROWS, Tiles, has_given_rows};

/// The thread's tile registers.
pub(crate) struct Hardware(());

/// Operand of LDTILECFG.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

// SAFETY of all methods: the trait's contract, instructions and addresses, is passed on to the
// caller.
impl Tiles for Hardware {
    #[inline(always)]
    unsafe fn configure(rows: usize) -> Self {
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for tile in 0..8 {
            config.row_bytes[tile] = 64;
            config.rows[tile] = if has_given_rows(tile) {
                rows
            } else {
                TILE_ROWS
            } as u8;
        }
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const config, options(readonly, nostack, preserves_flags))
        };
        Self(())
    }

    #[inline(always)]
    unsafe fn zero<const SUM: usize>(&mut self) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { asm!("tilezero tmm{}", const SUM, options(nomem, nostack, preserves_flags)) };
    }

    #[inline(always)]
    unsafe fn load<const TILE: usize>(&mut self, p: *const u8, stride: usize) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe {
            asm!("tileloadd tmm{tile}, [{p} + {stride}*1]", tile = const TILE, p = in(reg) p, stride = in(reg) stride,
                options(readonly, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn multiply<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe {
            asm!("tdpbf16ps tmm{}, tmm{}, tmm{}", const SUM, const LEFT, const RIGHT,
                options(nomem, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    unsafe fn store<const SUM: usize>(&self, p: *mut u8, stride: usize) {
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe {
            asm!("tilestored [{p} + {stride}*1], tmm{sum}", sum = const SUM, p = in(reg) p, stride = in(reg) stride,
                options(nostack, preserves_flags));
        }
    }
}

impl Drop for Hardware {
    /// Gives the registers up: while they are in use each switch of threads saves their 8 kB.
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the instruction exists, or there were no value. It clears the registers, and no
        // other value of this thread is used any more, since this one was configured later.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// Returns whether this process may use tiles and they compute correctly. Checks once.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        processor_has_tiles() && system_permits_tiles() && products_equal_the_emulation()
    })
}

/// Returns whether there are AMX-TILE and AMX-BF16, and the system saves their state.
fn processor_has_tiles() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled_states() -> u64 {
        // SAFETY: the register of enabled states exists where XSAVE does.
        unsafe { _xgetbv(0) }
    }
    let features = __cpuid_count(7, 0).edx;
    let has_instructions = features >> 24 & 1 == 1 && features >> 22 & 1 == 1;
    // SAFETY: a processor with the feature, as just asked.
    has_instructions
        && is_x86_feature_detected!("xsave")
        && unsafe { enabled_states() } >> 17 & 0b11 == 0b11
}

/// Asks Linux for the tiles' state, for all threads of this process.
fn system_permits_tiles() -> bool {
    const ARCH_PRCTL: usize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let status: isize;
    // SAFETY: a system call that touches no memory of ours; it overwrites rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => status, in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    status == 0
}

fn products_equal_the_emulation() -> bool {
    // SAFETY: the processor and the system were asked before.
    [1, 7, TILE_ROWS].iter().all(|&rows| unsafe {
        of_whole_numbers::<Hardware>(rows).map(f32::to_bits)
            == of_whole_numbers::<Emulated>(rows).map(f32::to_bits)
    })
}

#[cfg(test)]
mod tests {
    use super::super::product::{of, of_whole_numbers};
    use super::*;

    /// Returns whether there are tiles to test, and prints the answer.
    fn has_tiles() -> bool {
        let has_tiles = processor_has_tiles() && system_permits_tiles();
        println!(
            "tile registers: {}",
            if has_tiles {
                "tested"
            } else {
                "not offered here"
            }
        );
        has_tiles
    }

    #[test]
    fn where_processor_and_system_offer_tiles_they_are_used() {
        assert_eq!(has_tiles(), is_available());
    }

    #[test]
    fn threads_other_than_the_one_that_asked_may_use_tiles() {
        if has_tiles() {
            // SAFETY: just asked.
            let product = || unsafe { of_whole_numbers::<Hardware>(TILE_ROWS) };
            let threads = [0; 4].map(|_| std::thread::spawn(product));
            assert!(
                threads
                    .into_iter()
                    .all(|thread| thread.join().unwrap() == product())
            );
        }
    }

    #[test]
    fn products_round_as_the_emulation_says() {
        let mut state = 7u64;
        for round in 0..200 {
            // Any bits but those of infinities and NaNs: of magnitudes that meet, or from subnormal
            // to the largest.
            let (least, spread) = if round % 2 == 0 { (0x3e, 3) } else { (0, 0x7f) };
            let mut value = |_| {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let bits = state >> 33;
                (bits & 0x80ff | (least + (bits >> 16) % spread) << 8) as u16
            };
            let values: Vec<u16> = (0..4096).map(&mut value).collect();
            let value = |index: usize| values[index % values.len()];
            if has_tiles() {
                // SAFETY: just asked; the emulation needs no instructions.
                let [by_tiles, expected] = unsafe {
                    [
                        of::<Hardware>(TILE_ROWS, value),
                        of::<Emulated>(TILE_ROWS, value),
                    ]
                };
                for (index, (got, expected)) in by_tiles.iter().zip(expected).enumerate() {
                    let same =
                        got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
                    assert!(
                        same,
                        "round {round}, sum {index}: {got:e}, expected {expected:e}"
                    );
                }
            }
        }
    }
}
