//! The linear layer and the loss as plain loops in f64.

/// a `[n, d]` · transposed b `[k, d]` -> `[n, k]`.
pub(super) fn product(a: &[f64], b: &[f64], terms: usize) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
    a.chunks_exact(terms).flat_map(|a| b.chunks_exact(terms).map(move |b| dot(a, b))).collect()
}

/// `[rows, columns]` -> `[columns, rows]`.
pub(super) fn transposed<T: Copy>(values: &[T], columns: usize) -> Vec<T> {
    (0..columns).flat_map(|column| values.chunks_exact(columns).map(move |row| row[column])).collect()
}

/// Σ of the losses of all rows.
pub(super) fn loss_sum(logits: &[f64], classes: usize, labels: &[i64], smoothing: f64) -> f64 {
    let mut total = 0.0;
    for (logits, label) in logits.chunks_exact(classes).zip(labels) {
        let sum: f64 = logits.iter().map(|logit| logit.exp()).sum();
        for (index, logit) in logits.iter().enumerate() {
            let target = smoothing / classes as f64 + if index as i64 == *label { 1.0 - smoothing } else { 0.0 };
            total -= target * (logit - sum.ln());
        }
    }
    total
}
