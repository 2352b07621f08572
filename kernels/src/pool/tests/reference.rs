//! Pooling as plain loops.

use super::MaxPoolShape;

pub(super) fn global_average(x: &[f32], pixels: usize, channels: usize) -> Vec<f64> {
    let mut y = vec![0.0; x.len() / pixels];
    for (i, x) in x.iter().enumerate() {
        y[i / (pixels * channels) * channels + i % channels] += f64::from(*x) / pixels as f64;
    }
    y
}

/// Maxima, and the position in `x` of each.
pub(super) fn max_pool(shape: MaxPoolShape, x: &[f32]) -> (Vec<f32>, Vec<usize>) {
    let MaxPoolShape {
        num_images,
        height,
        width,
        channels,
        window,
    } = shape;
    // Of a 3x3 window the middle is pixel 2 * row, of a 2x2 window the first.
    let before = window - 2;
    let mut y = Vec::new();
    let mut positions = Vec::new();
    for image in 0..num_images {
        for row in 0..shape.height_out() {
            for column in 0..shape.width_out() {
                for channel in 0..channels {
                    let mut best: Option<usize> = None;
                    for h in (2 * row).saturating_sub(before)..height.min(2 * row + 2) {
                        for w in (2 * column).saturating_sub(before)..width.min(2 * column + 2) {
                            let at = ((image * height + h) * width + w) * channels + channel;
                            if best.is_none_or(|best| x[at] > x[best] || x[at].is_nan()) {
                                best = Some(at);
                            }
                        }
                    }
                    let best = best.expect("the middle of a window lies inside");
                    y.push(x[best]);
                    positions.push(best);
                }
            }
        }
    }
    (y, positions)
}

pub(super) fn max_pool_backward(len: usize, positions: &[usize], dy: &[f32]) -> Vec<f32> {
    let mut dx = vec![0.0; len];
    for (position, dy) in positions.iter().zip(dy) {
        dx[*position] += dy;
    }
    dx
}
