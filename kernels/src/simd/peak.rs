//! Peak rate of multiply-adds between registers, as the bound in benchmarks.

use super::{GenericWork, Isa, Kernel, Simd};
use std::hint::black_box;
use std::time::Instant;

const CHAINS: usize = 12;
const ROUNDS: usize = 200_000;

/// Measures multiply-adds between registers on one core. Returns the best rate of `repetitions`
/// runs of about a millisecond, in GFLOP/s.
///
/// # Panics
/// If the processor lacks `isa`.
#[must_use]
pub fn measure_fma_gflops(isa: Isa, repetitions: usize) -> f64 {
    struct Measure(usize);
    impl GenericWork for Measure {
        type Output = f64;
        fn run<S: Simd>(self) -> f64 {
            let flops = (2 * S::LANES * CHAINS * ROUNDS) as f64;
            let mut best = 0.0f64;
            for _ in 0..self.0 {
                let start = Instant::now();
                // SAFETY: `Isa::run` asserted the features.
                unsafe { S::vectorize(RegisterLoop) };
                best = best.max(flops / start.elapsed().as_secs_f64() / 1e9);
            }
            best
        }
    }
    isa.run(Measure(repetitions))
}

struct RegisterLoop;

impl<S: Simd> Kernel<S> for RegisterLoop {
    #[inline(always)]
    unsafe fn run(self) {
        // SAFETY: features by contract; the only pointers are to locals.
        unsafe {
            let a = S::splat(black_box(0.999));
            let b = S::splat(black_box(0.001));
            let mut sums = [S::zero(); CHAINS];
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = S::fma(*sum, a, b);
                }
            }
            let mut total = S::zero();
            for sum in sums {
                total = S::add(total, sum);
            }
            let mut out = [0.0f32; 16];
            S::store(out.as_mut_ptr(), total);
            black_box(out);
        }
    }
}
