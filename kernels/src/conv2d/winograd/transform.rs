//! The transforms of Winograd's F(4x4, 3x3), vectorised over channels.
//!
//! Source: Lavin and Gray 2015, arXiv 1509.09308, section 4.3: y = A^T [ (G g G^T) * (B^T d B) ] A
//! with the interpolation points 0, 1, -1, 2, -2 and infinity.

use crate::simd::Simd;

/// Side of an input tile, and positions of a transformed one.
pub(crate) const TILE: usize = 6;
pub(crate) const POSITIONS: usize = TILE * TILE;
/// Side of an output tile.
pub(crate) const OUT_TILE: usize = 4;

/// The interpolation points are 0, +-A, +-B and infinity.
const A: f64 = 0.75;
const B: f64 = 1.5;

/// `G`: a kernel row of three taps to six values.
pub(crate) const KERNEL_ROWS: [[f64; 3]; TILE] = {
    let near = 1.0 / (2.0 * A * A * (A * A - B * B));
    let far = 1.0 / (2.0 * B * B * (B * B - A * A));
    [
        [1.0 / (A * A * B * B), 0.0, 0.0],
        [near, near * A, near * A * A],
        [near, -near * A, near * A * A],
        [far, far * B, far * B * B],
        [far, -far * B, far * B * B],
        [0.0, 0.0, 1.0],
    ]
};

/// Returns `G g` of three taps.
///
/// # Safety
/// As the methods of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn kernel_1d<S: Simd>(g: [S::V; 3]) -> [S::V; 6] {
    // SAFETY: passed on.
    unsafe {
        let of = |row: usize, column: usize| S::splat(KERNEL_ROWS[row][column] as f32);
        let near = S::fma(of(1, 2), g[2], S::mul(of(1, 0), g[0]));
        let far = S::fma(of(3, 2), g[2], S::mul(of(3, 0), g[0]));
        [
            S::mul(of(0, 0), g[0]),
            S::fma(of(1, 1), g[1], near),
            S::fma(of(2, 1), g[1], near),
            S::fma(of(3, 1), g[1], far),
            S::fma(of(4, 1), g[1], far),
            g[2],
        ]
    }
}

/// Returns half of `B^T d` of six values: the first three or the last three.
///
/// Halves, since 36 intermediate values would not fit into 32 registers: reading a tile twice costs
/// less than a detour of half of it through the stack (on Zen 4 a 64-byte store takes two cycles, a
/// load one).
///
/// # Safety
/// As the methods of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn input_half<S: Simd, const LAST: bool>(d: [S::V; 6]) -> [S::V; 3] {
    // SAFETY: passed on.
    unsafe {
        let product = S::splat((A * A * B * B) as f32);
        let sum = S::splat(-(A * A + B * B) as f32);
        if LAST {
            let a2 = S::splat(-(A * A) as f32);
            let even = S::fma(a2, d[2], d[4]);
            let odd = S::fma(a2, d[1], d[3]);
            [
                S::fma(S::splat(B as f32), odd, even),
                S::fma(S::splat(-B as f32), odd, even),
                S::fma(product, d[1], S::fma(sum, d[3], d[5])),
            ]
        } else {
            let b2 = S::splat(-(B * B) as f32);
            let even = S::fma(b2, d[2], d[4]);
            let odd = S::fma(b2, d[1], d[3]);
            [
                S::fma(product, d[0], S::fma(sum, d[2], d[4])),
                S::fma(S::splat(A as f32), odd, even),
                S::fma(S::splat(-A as f32), odd, even),
            ]
        }
    }
}

/// Returns `B^T d` of six values.
///
/// # Safety
/// As the methods of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn input_1d<S: Simd>(d: [S::V; 6]) -> [S::V; 6] {
    // SAFETY: passed on.
    let ([a, b, c], [d, e, f]) = unsafe { (input_half::<S, false>(d), input_half::<S, true>(d)) };
    [a, b, c, d, e, f]
}

/// Returns `A^T m` of six values.
///
/// # Safety
/// As the methods of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn output_1d<S: Simd>(m: [S::V; 6]) -> [S::V; 4] {
    // SAFETY: passed on.
    unsafe {
        let near_sum = S::add(m[1], m[2]);
        let far_sum = S::add(m[3], m[4]);
        let near = S::sub(m[1], m[2]);
        let far = S::sub(m[3], m[4]);
        let a = S::splat(A as f32);
        let b = S::splat(B as f32);
        let a2 = S::splat((A * A) as f32);
        let b2 = S::splat((B * B) as f32);
        let a3 = S::splat((A * A * A) as f32);
        let b3 = S::splat((B * B * B) as f32);
        [
            S::add(m[0], S::add(near_sum, far_sum)),
            S::fma(b, far, S::mul(a, near)),
            S::fma(b2, far_sum, S::mul(a2, near_sum)),
            S::fma(b3, far, S::fma(a3, near, m[5])),
        ]
    }
}

/// Returns `A y` of four values: the transpose of [`output_1d`], for the gradient of the output.
///
/// # Safety
/// As the methods of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn gradient_1d<S: Simd>(y: [S::V; 4]) -> [S::V; 6] {
    // SAFETY: passed on.
    unsafe {
        let a2 = S::splat((A * A) as f32);
        let b2 = S::splat((B * B) as f32);
        let near_even = S::fma(a2, y[2], y[0]);
        let near_odd = S::fma(a2, y[3], y[1]);
        let far_even = S::fma(b2, y[2], y[0]);
        let far_odd = S::fma(b2, y[3], y[1]);
        [
            y[0],
            S::fma(S::splat(A as f32), near_odd, near_even),
            S::fma(S::splat(-A as f32), near_odd, near_even),
            S::fma(S::splat(B as f32), far_odd, far_even),
            S::fma(S::splat(-B as f32), far_odd, far_even),
            y[3],
        ]
    }
}

/// Returns `G^T m` of six values: the transpose of the kernel's transform, for the gradient of the
/// weights.
///
/// # Safety
/// As the methods of [`Simd`].
#[inline(always)]
pub(crate) unsafe fn kernel_gradient_1d<S: Simd>(m: [S::V; 6]) -> [S::V; 3] {
    // SAFETY: passed on.
    unsafe {
        let of = |row: usize, column: usize| S::splat(KERNEL_ROWS[row][column] as f32);
        let near = S::add(m[1], m[2]);
        let far = S::add(m[3], m[4]);
        let near_odd = S::sub(m[1], m[2]);
        let far_odd = S::sub(m[3], m[4]);
        [
            S::fma(
                of(0, 0),
                m[0],
                S::fma(of(1, 0), near, S::mul(of(3, 0), far)),
            ),
            S::fma(of(1, 1), near_odd, S::mul(of(3, 1), far_odd)),
            S::fma(of(1, 2), near, S::fma(of(3, 2), far, m[5])),
        ]
    }
}
