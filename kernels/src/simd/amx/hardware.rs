//! Tiles by the processor's instructions.
//!
//! In, out: as [`Tiles`]. Invariant: reached only where [`is_available`].
//! The compiler uses no tile registers, since nothing is compiled with AMX as a target feature: they keep their values from
//! one instruction written here to the next.

use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::OnceLock;

use super::product::of_whole_numbers;
use super::{Emulated, TILE_ROWS, Tiles, has_given_rows};

/// The thread's tile registers.
pub(crate) struct Hardware(());

/// What LDTILECFG reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

// SAFETY of all methods: the trait's contract, instructions and addresses, is passed on to the caller.
impl Tiles for Hardware {
    #[inline(always)]
    unsafe fn configure(rows: usize) -> Self {
        let mut config = Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for tile in 0..8 {
            config.row_bytes[tile] = 64;
            config.rows[tile] = if has_given_rows(tile) { rows } else { TILE_ROWS } as u8;
        }
        // SAFETY: the trait's contract, which the caller keeps.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(readonly, nostack, preserves_flags)) };
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

/// Whether this process may use tiles and they do what they should. Asks once.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| processor_has_tiles() && system_permits_tiles() && products_equal_the_emulation())
}

/// AMX-TILE and AMX-BF16, and that the system saves their state.
fn processor_has_tiles() -> bool {
    #[target_feature(enable = "xsave")]
    fn enabled_states() -> u64 {
        // SAFETY: the register of enabled states exists where XSAVE does.
        unsafe { _xgetbv(0) }
    }
    let features = __cpuid_count(7, 0).edx;
    let has_instructions = features >> 24 & 1 == 1 && features >> 22 & 1 == 1;
    // SAFETY: a processor with the feature, as just asked.
    has_instructions && is_x86_feature_detected!("xsave") && unsafe { enabled_states() } >> 17 & 0b11 == 0b11
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
        of_whole_numbers::<Hardware>(rows).map(f32::to_bits) == of_whole_numbers::<Emulated>(rows).map(f32::to_bits)
    })
}
