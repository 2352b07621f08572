//! The classifier's linear layer and the softmax cross entropy behind it.
//!
//! In: features `[N, D]`, a weight in PyTorch's or burn's layout, a bias `[K]`. Out: logits `[N, K]`, and back.
//! Invariant: every output value is computed by one thread, its terms added in one order: the same bits for any number of
//! threads and every instruction set. 0.001 of a ResNet's arithmetic: no packing, no blocking for caches.
//! Source: cross entropy with label smoothing: Szegedy et al., arXiv 1512.00567, section 7.
//! Plain versions: `reference`.

mod loss;
mod product;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

use crate::simd::Isa;
use product::{Factor, dots, row_sums};

pub use loss::softmax_cross_entropy;

/// How a weight lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightLayout {
    /// `[K, D]`: PyTorch.
    OutputMajor,
    /// `[D, K]`: burn's `Linear`.
    InputMajor,
}

/// Shape of a linear layer on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// N: rows.
    pub rows: usize,
    /// D: inputs.
    pub inputs: usize,
    /// K: outputs.
    pub outputs: usize,
    /// How the weight lies.
    pub layout: WeightLayout,
}

/// logits = x · Wᵀ + bias (W as `[K, D]`).
///
/// # Shapes
/// `x`: `[N, D]`. `weight`: `[K, D]` or `[D, K]`. `bias`: `[K]`. `logits`: `[N, K]`.
///
/// # Panics
/// If a length differs, or the processor lacks `isa`.
pub fn forward(isa: Isa, shape: LinearShape, x: &[f32], weight: &[f32], bias: &[f32], logits: &mut [f32]) {
    let LinearShape { rows, inputs, outputs, layout } = shape;
    shape.check("x", x.len(), rows * inputs);
    shape.check("weight", weight.len(), inputs * outputs);
    shape.check("bias", bias.len(), outputs);
    shape.check("logits", logits.len(), rows * outputs);
    match layout {
        WeightLayout::OutputMajor => dots(isa, inputs, x, weight, Some(bias), logits, outputs),
        WeightLayout::InputMajor => {
            let x = Factor { values: x, row_stride: inputs, stride: 1 };
            row_sums(isa, x, inputs, weight, Some(bias), logits, outputs);
        }
    }
}

/// dx = dlogits · W (W as `[K, D]`).
///
/// # Shapes
/// `dlogits`: `[N, K]`. `weight`: `[K, D]` or `[D, K]`. `dx`: `[N, D]`.
///
/// # Panics
/// If a length differs, or the processor lacks `isa`.
pub fn backward_input(isa: Isa, shape: LinearShape, dlogits: &[f32], weight: &[f32], dx: &mut [f32]) {
    let LinearShape { rows, inputs, outputs, layout } = shape;
    shape.check("dlogits", dlogits.len(), rows * outputs);
    shape.check("weight", weight.len(), inputs * outputs);
    shape.check("dx", dx.len(), rows * inputs);
    match layout {
        WeightLayout::OutputMajor => {
            let dlogits = Factor { values: dlogits, row_stride: outputs, stride: 1 };
            row_sums(isa, dlogits, outputs, weight, None, dx, inputs);
        }
        WeightLayout::InputMajor => dots(isa, outputs, dlogits, weight, None, dx, inputs),
    }
}

/// dW = dlogitsᵀ · x in the weight's layout, and dbias = Σ dlogits over rows.
///
/// # Shapes
/// `x`: `[N, D]`. `dlogits`: `[N, K]`. `dweight`: `[K, D]` or `[D, K]`. `dbias`: `[K]`.
///
/// # Panics
/// If a length differs, or the processor lacks `isa`.
pub fn backward_weight(
    isa: Isa,
    shape: LinearShape,
    x: &[f32],
    dlogits: &[f32],
    dweight: &mut [f32],
    dbias: &mut [f32],
) {
    let LinearShape { rows, inputs, outputs, layout } = shape;
    shape.check("x", x.len(), rows * inputs);
    shape.check("dlogits", dlogits.len(), rows * outputs);
    shape.check("dweight", dweight.len(), inputs * outputs);
    shape.check("dbias", dbias.len(), outputs);
    match layout {
        WeightLayout::OutputMajor => {
            let dlogits = Factor { values: dlogits, row_stride: 1, stride: outputs };
            row_sums(isa, dlogits, rows, x, None, dweight, inputs);
        }
        WeightLayout::InputMajor => {
            let x = Factor { values: x, row_stride: 1, stride: inputs };
            row_sums(isa, x, rows, dlogits, None, dweight, outputs);
        }
    }
    dbias.fill(0.0);
    for dlogits in dlogits.chunks_exact(outputs.max(1)) {
        for (dbias, dlogit) in dbias.iter_mut().zip(dlogits) {
            *dbias += dlogit;
        }
    }
}

impl LinearShape {
    fn check(&self, what: &str, got: usize, expected: usize) {
        assert!(got == expected, "linear: {what}: expected {expected} values, got {got} ({self:?})");
    }
}
