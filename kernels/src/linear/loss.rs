//! Softmax cross entropy, its gradient and its sum in one call.
//!
//! In: logits `[N, K]`, labels `[N]`. Out: Σ loss in f64, the gradient `[N, K]`, the number of right answers.
//! Invariant: rows are added in order. Exponentials are f64: K of them a row cost nothing beside the network.
//! Source: label smoothing: arXiv 1512.00567, section 7, as PyTorch's `CrossEntropyLoss(label_smoothing)`.

use rayon::prelude::*;

/// Σ over rows of -Σ target · log softmax(logits), the target being (1 - smoothing) at the label plus smoothing / K.
///
/// Returns (loss_sum, num_correct); a row is right if no logit is above the label's and none before it equals it.
///
/// # Shapes
/// `logits`, `gradient`: `[N, classes]`. `labels`: `[N]`. `workspace`: N values.
///
/// # Units
/// `gradient` is that of `gradient_scale` · loss_sum: 1 / N gives the gradient of the mean.
///
/// # Panics
/// If a length differs, or a label is not in 0..classes.
pub fn softmax_cross_entropy(
    logits: &[f32],
    classes: usize,
    labels: &[i64],
    label_smoothing: f64,
    gradient_scale: f64,
    gradient: &mut [f32],
    workspace: &mut [f64],
) -> (f64, usize) {
    let rows = labels.len();
    let expected = rows * classes;
    assert!(classes > 0, "cross entropy: no classes");
    assert!(logits.len() == expected, "cross entropy: expected {expected} logits, got {}", logits.len());
    assert!(gradient.len() == expected, "cross entropy: expected {expected} gradients, got {}", gradient.len());
    assert!(workspace.len() >= rows, "cross entropy: workspace: expected {rows} values, got {}", workspace.len());
    if let Some(label) = labels.iter().find(|label| !(0..classes as i64).contains(*label)) {
        panic!("cross entropy: label {label} is not in 0..{classes}");
    }
    let losses = &mut workspace[..rows];
    let outputs = gradient.par_chunks_exact_mut(classes).zip(&mut *losses);
    outputs.zip(logits.par_chunks_exact(classes)).zip(labels).for_each(|(((gradient, loss), logits), label)| {
        *loss = row(logits, *label as usize, label_smoothing, gradient_scale, gradient);
    });
    let right = |(logits, label): (&[f32], &i64)| first_maximum(logits) == *label as usize;
    let num_correct = logits.chunks_exact(classes).zip(labels).filter(|row| right(*row)).count();
    (losses.iter().sum(), num_correct)
}

/// Writes the gradient of one row and returns its loss.
fn row(logits: &[f32], label: usize, smoothing: f64, scale: f64, gradient: &mut [f32]) -> f64 {
    let classes = logits.len() as f64;
    let maximum = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let exponential = |logit: f32| (f64::from(logit) - maximum).exp();
    let sum: f64 = logits.iter().map(|logit| exponential(*logit)).sum();
    let log_sum = sum.ln() + maximum;
    for (index, (gradient, logit)) in gradient.iter_mut().zip(logits).enumerate() {
        let target = smoothing / classes + if index == label { 1.0 - smoothing } else { 0.0 };
        *gradient = (scale * (exponential(*logit) / sum - target)) as f32;
    }
    let likelihood = log_sum - f64::from(logits[label]);
    if smoothing == 0.0 {
        return likelihood;
    }
    let mean_logit = logits.iter().map(|logit| f64::from(*logit)).sum::<f64>() / classes;
    (1.0 - smoothing) * likelihood + smoothing * (log_sum - mean_logit)
}

fn first_maximum(logits: &[f32]) -> usize {
    let larger = |best: usize, (index, logit): (usize, &f32)| if *logit > logits[best] { index } else { best };
    logits.iter().enumerate().fold(0, larger)
}
