//! Activation functions and their gradients; sums of two operands.
//!
//! In: any number of values. Out: as many values.
//! Invariant: values are independent, so the bits do not depend on threads or instruction set.
//!
//! The backward pass reads the output where this is enough: rectifiers, and sigmoid and tanh, where
//! it spares the exponential. The next layer keeps the output anyway, and the input is freed. For
//! other functions the backward pass reads the input.

use rayon::prelude::*;

use crate::Element;
use crate::simd::{Isa, Task, exp, exp_m1, exp_to_88, vectorized};

/// Values per piece.
const PIECE_VALUES: usize = 1 << 14;

/// Activation function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Function {
    /// max(x, 0); NaN stays NaN.
    Relu,
    /// min(max(x, 0), 6), arXiv 1801.04381; NaN stays NaN.
    Relu6,
    /// x Φ(x) with the error function: Hendrycks and Gimpel 2016, arXiv 1606.08415. Within 3e-7 /
    /// max(1, |x|).
    Gelu,
    /// x / (1 + e^-x): Elfwing et al. 2017, arXiv 1702.03118.
    Silu,
    /// 1 / (1 + e^-x), within 4 units in the last place; 0 below -87.
    Sigmoid,
    /// Hyperbolic tangent, within 4 units in the last place.
    Tanh,
    /// x above 0, else `slope` x, rounded once: Maas et al. 2013, "Rectifier Nonlinearities Improve
    /// Neural Network Acoustic Models".
    LeakyRelu {
        /// Derivative at 0 and below.
        slope: f32,
    },
    /// x min(max(x + 3, 0), 6) / 6: Howard et al. 2019, arXiv 1905.02244. Within 3 units in the
    /// last place. Minus infinity gives 0, where PyTorch has NaN.
    HardSwish,
}

impl Function {
    /// Returns true if [`backward`] reads the output instead of the input.
    #[must_use]
    pub fn keeps_output(self) -> bool {
        match self {
            Self::Relu | Self::Relu6 | Self::Sigmoid | Self::Tanh => true,
            // The output has the sign of the input.
            Self::LeakyRelu { slope } => slope >= 0.0,
            Self::Gelu | Self::Silu | Self::HardSwish => false,
        }
    }
}

/// Computes y = f(x).
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
#[inline(never)]
pub fn forward<E: Element>(isa: Isa, function: Function, x: &[E], y: &mut [E]) {
    assert!(
        x.len() == y.len(),
        "activation: {} values of x but {} of y",
        x.len(),
        y.len()
    );
    y.par_chunks_mut(PIECE_VALUES)
        .zip(x.par_chunks(PIECE_VALUES))
        .for_each(|(y, x)| {
            macro_rules! each {
                ($of:expr) => {
                    vectorized(isa, Each { x, y, of: $of })
                };
            }
            match function {
                Function::Relu => each!(relu),
                Function::Relu6 => each!(relu6),
                Function::Gelu => each!(gelu),
                Function::Silu => each!(silu),
                Function::Sigmoid => each!(sigmoid),
                Function::Tanh => each!(tanh),
                Function::LeakyRelu { slope } => each!(|x| leaky_relu(x, slope, x)),
                Function::HardSwish => each!(hard_swish),
            }
        });
}

/// Computes dx = f'(x) dy. Derivatives at corners are PyTorch's: those of the left side, except
/// for the upper corners of ReLU6 (0) and hard swish (1).
///
/// `kept`: x, or y for functions that [keep their output](Function::keeps_output). The derivatives
/// of sigmoid and tanh, y (1 - y) and 1 - y², are within 5e-7.
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
#[inline(never)]
pub fn backward<E: Element>(isa: Isa, function: Function, kept: &[E], dy: &[E], dx: &mut [E]) {
    macro_rules! each {
        ($of:expr) => {
            pairs(isa, [kept, dy], dx, $of)
        };
    }
    match function {
        Function::Relu => each!(relu_slope),
        Function::Relu6 => each!(relu6_slope),
        Function::Gelu => each!(gelu_slope),
        Function::Silu => each!(silu_slope),
        Function::Sigmoid => each!(sigmoid_slope),
        Function::Tanh => each!(tanh_slope),
        Function::LeakyRelu { slope } => each!(|x, dy| leaky_relu(x, slope, dy)),
        Function::HardSwish => each!(hard_swish_slope),
    }
}

/// Computes y = a + b.
///
/// # Panics
/// If the lengths differ, or the processor lacks `isa`.
#[inline(never)]
pub fn add<E: Element>(isa: Isa, sides: [&[E]; 2], y: &mut [E]) {
    pairs(isa, sides, y, |a, b| a + b);
}

fn pairs<E: Element>(
    isa: Isa,
    [x, dy]: [&[E]; 2],
    dx: &mut [E],
    of: impl Fn(f32, f32) -> f32 + Copy + Sync,
) {
    let lens = [x.len(), dy.len()];
    assert!(
        lens == [dx.len(); 2],
        "activation: {lens:?} values of two operands but {} of the result",
        dx.len()
    );
    dx.par_chunks_mut(PIECE_VALUES)
        .zip(x.par_chunks(PIECE_VALUES))
        .zip(dy.par_chunks(PIECE_VALUES))
        .for_each(|((dx, x), dy)| vectorized(isa, EachGradient { x, dy, dx, of }));
}

struct Each<'a, E, F> {
    x: &'a [E],
    y: &'a mut [E],
    of: F,
}

impl<E: Element, F: Fn(f32) -> f32> Task for Each<'_, E, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = E::from_f32((self.of)(x.to_f32()));
        }
    }
}

struct EachGradient<'a, E, F> {
    x: &'a [E],
    dy: &'a [E],
    dx: &'a mut [E],
    of: F,
}

impl<E: Element, F: Fn(f32, f32) -> f32> Task for EachGradient<'_, E, F> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for ((dx, x), dy) in self.dx.iter_mut().zip(self.x).zip(self.dy) {
            *dx = E::from_f32((self.of)(x.to_f32(), dy.to_f32()));
        }
    }
}

#[inline(always)]
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

#[inline(always)]
fn relu6(x: f32) -> f32 {
    let x = if x < 0.0 { 0.0 } else { x };
    if x > 6.0 { 6.0 } else { x }
}

#[inline(always)]
fn relu_slope(x: f32, dy: f32) -> f32 {
    if x > 0.0 { dy } else { 0.0 }
}

#[inline(always)]
fn relu6_slope(x: f32, dy: f32) -> f32 {
    // Both compared whatever the first says, or the compiler makes a jump of it.
    if (x > 0.0) & (x < 6.0) { dy } else { 0.0 }
}

/// Returns Φ(x) and e^(-x²/2).
/// Source: Abramowitz and Stegun 1964, formula 7.1.26 for |x| / √2, whose error is 1.5e-7. The
/// coefficients are halved.
#[inline(always)]
fn normal(x: f32) -> (f32, f32) {
    let t = 1.0 / x.abs().mul_add(0.231_641_89, 1.0);
    let mut p = 0.530_702_7_f32;
    for coefficient in [-0.726_576_03, 0.710_706_9, -0.142_248_36, 0.127_414_8] {
        p = p.mul_add(t, coefficient);
    }
    let density = exp_to_88(-0.5 * x * x);
    let tail = p * t * density;
    (if x < 0.0 { tail } else { 1.0 - tail }, density)
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    let (share, _) = normal(x);
    // Beyond, the share is 0, and so is its product with minus infinity.
    if x < -14.0 { 0.0 } else { x * share }
}

#[inline(always)]
fn gelu_slope(x: f32, dy: f32) -> f32 {
    let (share, density) = normal(x);
    let inside = if x.abs() > 14.0 { 0.0 } else { x };
    dy * (inside * density).mul_add(0.398_942_3, share)
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    let share = 1.0 / (1.0 + exp(-x));
    if x < -87.0 { 0.0 } else { x * share }
}

#[inline(always)]
fn silu_slope(x: f32, dy: f32) -> f32 {
    let share = 1.0 / (1.0 + exp(-x));
    let inside = if x.abs() > 87.0 { 0.0 } else { x };
    dy * (share + inside * share * (1.0 - share))
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let share = 1.0 / (1.0 + exp(-x));
    if x < -87.0 { 0.0 } else { share }
}

#[inline(always)]
fn sigmoid_slope(y: f32, dy: f32) -> f32 {
    dy * (y * (1.0 - y))
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    let power = exp_m1(-2.0 * x.abs());
    (-power / (2.0 + power)).copysign(x)
}

#[inline(always)]
fn tanh_slope(y: f32, dy: f32) -> f32 {
    dy * (1.0 - y * y)
}

/// Returns `value` where x is above 0, else `slope` times it.
#[inline(always)]
fn leaky_relu(x: f32, slope: f32, value: f32) -> f32 {
    let below = slope * value;
    if x > 0.0 { value } else { below }
}

#[inline(always)]
fn hard_swish(x: f32) -> f32 {
    let share = relu6(x + 3.0) * (1.0 / 6.0);
    let value = x * share;
    if x <= -3.0 { 0.0 } else { value }
}

#[inline(always)]
fn hard_swish_slope(x: f32, dy: f32) -> f32 {
    let inside = dy * (x * (1.0 / 3.0) + 0.5);
    let below = if x <= -3.0 { 0.0 } else { inside };
    if x >= 3.0 { dy } else { below }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{rounded, same_everywhere, values, widened};
    use half::bf16;

    const ALL: [Function; 8] = [
        Function::Relu,
        Function::Relu6,
        Function::Gelu,
        Function::Silu,
        Function::Sigmoid,
        Function::Tanh,
        Function::LeakyRelu { slope: 0.01 },
        Function::HardSwish,
    ];

    /// Returns what the backward pass reads.
    fn kept<'a, E>(function: Function, x: &'a [E], y: &'a [E]) -> &'a [E] {
        if function.keeps_output() { y } else { x }
    }

    /// The function and its derivative; the error function by its series and continued fraction.
    fn exact(function: Function, x: f64) -> [f64; 2] {
        let share = match function {
            Function::Relu => return if x > 0.0 { [x, 1.0] } else { [0.0, 0.0] },
            Function::Relu6 => return [x.clamp(0.0, 6.0), f64::from(u8::from(x > 0.0 && x < 6.0))],
            Function::Sigmoid => {
                let share = 1.0 / (1.0 + (-x).exp());
                return [share, share / (1.0 + x.exp())];
            }
            Function::Tanh => return [x.tanh(), x.cosh().powi(-2)],
            Function::LeakyRelu { .. } if x > 0.0 => return [x, 1.0],
            Function::LeakyRelu { slope } => return [f64::from(slope) * x, f64::from(slope)],
            Function::HardSwish if x.abs() >= 3.0 => {
                return if x > 0.0 { [x, 1.0] } else { [0.0, 0.0] };
            }
            Function::HardSwish => return [x * (x + 3.0) / 6.0, x / 3.0 + 0.5],
            Function::Silu => 1.0 / (1.0 + (-x).exp()),
            Function::Gelu => {
                // Simpson's rule from 0.
                let steps = 2000;
                let width = x / f64::from(steps);
                let density = |k: i32| {
                    (-(f64::from(k) * width).powi(2) / 2.0).exp() / std::f64::consts::TAU.sqrt()
                };
                let inner: f64 = (1..steps)
                    .map(|k| density(k) * if k % 2 == 1 { 4.0 } else { 2.0 })
                    .sum();
                0.5 + width / 3.0 * (density(0) + inner + density(steps))
            }
        };
        let slope = match function {
            Function::Silu => share * (1.0 + x * (1.0 - share)),
            _ => share + x * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt(),
        };
        [x * share, slope]
    }

    #[test]
    fn functions_and_gradients_are_exact_to_3e_7_and_the_same_everywhere() {
        let x: Vec<f32> = (-1200..=1200)
            .map(|step| step as f32 / 100.0 + 0.001)
            .collect();
        let dy = values(x.len(), 3);
        for function in ALL {
            let [y, dx] = same_everywhere(|isa| {
                let mut y = vec![f32::NAN; x.len()];
                let mut dx = vec![f32::NAN; x.len()];
                forward(isa, function, &x, &mut y);
                backward(isa, function, kept(function, &x, &y), &dy, &mut dx);
                [y, dx]
            });
            for (index, &x) in x.iter().enumerate() {
                let [value, slope] = exact(function, f64::from(x));
                let tolerance = 3e-7 * f64::from(x.abs().max(1.0));
                assert!(
                    (f64::from(y[index]) - value).abs() <= tolerance,
                    "{function:?}({x}): {} {value}",
                    y[index]
                );
                let expected = slope * f64::from(dy[index]);
                assert!(
                    (f64::from(dx[index]) - expected).abs() <= 2.0 * tolerance,
                    "{function:?}'({x})"
                );
            }
        }
    }

    #[test]
    fn the_precise_functions_keep_their_digits_next_to_0_and_far_from_it() {
        let small = (-100..0).map(|power| 2.0_f32.powi(power));
        let x: Vec<f32> = (1..=870)
            .map(|step| step as f32 / 10.0)
            .chain(small)
            .flat_map(|x| [x, -x])
            .collect();
        for (function, units) in [
            (Function::Sigmoid, 4.0),
            (Function::Tanh, 4.0),
            (Function::LeakyRelu { slope: 0.2 }, 0.5),
            (Function::HardSwish, 3.0),
        ] {
            let mut y = vec![f32::NAN; x.len()];
            let mut dx = vec![f32::NAN; x.len()];
            forward(Isa::detect(), function, &x, &mut y);
            let ones = vec![1.0; x.len()];
            backward(
                Isa::detect(),
                function,
                kept(function, &x, &y),
                &ones,
                &mut dx,
            );
            for ((&x, &y), &dx) in x.iter().zip(&y).zip(&dx) {
                let [value, slope] = exact(function, f64::from(x));
                // A unit in the last place is up to EPSILON of the value.
                let error = (f64::from(y) - value).abs();
                assert!(
                    error <= units * f64::from(f32::EPSILON) * value.abs(),
                    "{function:?}({x}): {y} against {value}"
                );
                let error = (f64::from(dx) - slope).abs();
                assert!(error <= 5e-7, "{function:?}'({x}): {dx} against {slope}");
            }
        }
    }

    #[test]
    fn infinities_have_their_limits_and_a_nan_stays_one() {
        let x = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -200.0, 200.0];
        for function in ALL {
            let mut y = [0.0; 5];
            let mut dx = [0.0; 5];
            forward(Isa::detect(), function, &x, &mut y);
            backward(
                Isa::detect(),
                function,
                kept(function, &x, &y),
                &[1.0; 5],
                &mut dx,
            );
            let slope = match function {
                Function::LeakyRelu { slope } => slope,
                _ => 0.0,
            };
            let [bottom, top] = match function {
                Function::Relu6 => [[0.0, 0.0], [6.0, 6.0]],
                Function::Sigmoid => [[0.0, 0.0], [1.0, 1.0]],
                Function::Tanh => [[-1.0, -1.0], [1.0, 1.0]],
                Function::LeakyRelu { .. } => {
                    [[f32::NEG_INFINITY, -200.0 * slope], [f32::INFINITY, 200.0]]
                }
                _ => [[0.0, 0.0], [f32::INFINITY, 200.0]],
            };
            assert_eq!([[y[0], y[3]], [y[1], y[4]]], [bottom, top], "{function:?}");
            assert!(y[2].is_nan());
            assert!(
                (dx[0] - slope).abs() < 1e-37 && dx[1] == dx[4],
                "{function:?}: {dx:?}"
            );
        }
    }

    #[test]
    fn sums_are_those_of_each_pair_in_any_format() {
        let sides = [1, 2].map(|salt| values(70_001, salt));
        let expected: Vec<f32> = sides[0].iter().zip(&sides[1]).map(|(a, b)| a + b).collect();
        let narrow = sides.each_ref().map(|side| rounded(side));
        let [left, right] = narrow.each_ref().map(|side| widened(side));
        let of_narrow: Vec<f32> = left.iter().zip(&right).map(|(a, b)| a + b).collect();
        let (y, rough) = same_everywhere(|isa| {
            let mut y = vec![f32::NAN; expected.len()];
            let mut rough = vec![bf16::NAN; expected.len()];
            add(isa, sides.each_ref().map(Vec::as_slice), &mut y);
            add(isa, narrow.each_ref().map(Vec::as_slice), &mut rough);
            (y, rough)
        });
        assert_eq!((y, rough), (expected, rounded(&of_narrow)));
    }

    #[test]
    fn bf16_is_the_rounded_function_of_the_widened_value() {
        let x: Vec<bf16> = values(1000, 5)
            .into_iter()
            .map(|x| bf16::from_f32(4.0 * x))
            .collect();
        let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        for function in ALL {
            let mut y = vec![bf16::ZERO; x.len()];
            let mut expected = vec![0.0; x.len()];
            forward(Isa::detect(), function, &x, &mut y);
            forward(Isa::detect(), function, &wide, &mut expected);
            assert!(
                y.iter()
                    .zip(&expected)
                    .all(|(y, expected)| *y == bf16::from_f32(*expected)),
                "{function:?}"
            );
        }
    }
}
