//! Tiles: registers of 16 rows of 64 bytes, and products of two tiles (AMX-BF16, Sapphire Rapids
//! and later).
//!
//! In: a CPU with tiles, or an emulation in plain Rust, which also checks the CPU.
//! Out: [`Tiles`].
//! Invariant: [`is_available`] returns true only if a product by instructions equalled the
//! emulation's in this process. So a wrong encoding or layout cannot change a result. On hardware
//! the bits were equal also for rounded and subnormal products and sums.
//! Source: Intel, Software Developer's Manual, volume 2, LDTILECFG, TILELOADD, TDPBF16PS; Linux,
//! `arch/x86/xstate.rst`.

#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
mod emulated;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod hardware;
#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
mod product;

#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) use emulated::Emulated;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use hardware::{Hardware, is_available};

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Values of bf16 in a row of a factor's tile.
pub(crate) const TILE_VALUES: usize = 32;

/// Eight tiles, given up on drop: 0 to 3 are sums (`[rows, 16]` of f32), 4 and 5 left factors
/// (`[rows, 32]` of bf16), 6 and 7 right factors (`[16, 16, 2]` of bf16: pairs of a row).
///
/// # Safety
/// Every method demands that the implementor's instructions exist, those with a pointer that the
/// tile's rows of 64 bytes, `stride` bytes apart, lie inside one allocation each, and all but
/// `configure` that no other value of the trait has been configured on this thread since.
#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) trait Tiles: Sized {
    /// Returns tiles of 1 to 16 `rows`, all zero.
    unsafe fn configure(rows: usize) -> Self;
    unsafe fn zero<const SUM: usize>(&mut self);
    unsafe fn load<const TILE: usize>(&mut self, p: *const u8, stride: usize);
    /// Adds the product of two factors to a sum: in each element the sums of the even and of the
    /// odd products, each in f32 with one rounding per product, then both together. Subnormal
    /// values are zero.
    unsafe fn multiply<const SUM: usize, const LEFT: usize, const RIGHT: usize>(&mut self);
    unsafe fn store<const SUM: usize>(&self, p: *mut u8, stride: usize);
}

/// Returns whether tile number `tile` has as many rows as configured, not all 16.
#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
fn has_given_rows(tile: usize) -> bool {
    tile < 6
}

/// Returns whether this process may use tiles and they compute correctly.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) fn is_available() -> bool {
    false
}
