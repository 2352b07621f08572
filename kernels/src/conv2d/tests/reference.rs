//! Convolution as its definition says, in f64: plain loops that the fast versions are tested
//! against.

use super::Conv2dShape;

/// Calls `visit(y index, x index, w index)` for every product of the convolution.
fn each_product(s: &Conv2dShape, mut visit: impl FnMut(usize, usize, usize)) {
    let out_h = s.out_height();
    let out_w = s.out_width();
    let [rows, columns] = s.kernel;
    for n in 0..s.batch {
        for (oh, ow) in (0..out_h).flat_map(|oh| (0..out_w).map(move |ow| (oh, ow))) {
            for (kh, kw) in (0..rows).flat_map(|kh| (0..columns).map(move |kw| (kh, kw))) {
                let ih = oh * s.stride + kh;
                let iw = ow * s.stride + kw;
                let [above, left] = s.padding;
                if ih < above || iw < left || ih - above >= s.height || iw - left >= s.width {
                    continue;
                }
                let x = ((n * s.height + ih - above) * s.width + iw - left) * s.in_channels;
                let y = ((n * out_h + oh) * out_w + ow) * s.out_channels;
                let of_group = s.in_channels / s.groups;
                let per_group = s.out_channels / s.groups;
                for co in 0..s.out_channels {
                    for ci in 0..of_group {
                        visit(
                            y + co,
                            x + co / per_group * of_group + ci,
                            ((co * of_group + ci) * rows + kh) * columns + kw,
                        );
                    }
                }
            }
        }
    }
}

/// The output `[N, H_out, W_out, C_out]`.
#[must_use]
pub(super) fn forward(s: &Conv2dShape, x: &[f32], w: &[f32]) -> Vec<f64> {
    let mut y = vec![0.0; s.output_len()];
    each_product(s, |iy, ix, iw| y[iy] += f64::from(x[ix]) * f64::from(w[iw]));
    y
}

/// The gradient of the input `[N, H, W, C_in]`.
#[must_use]
pub(super) fn data_gradient(s: &Conv2dShape, dy: &[f32], w: &[f32]) -> Vec<f64> {
    let mut dx = vec![0.0; s.input_len()];
    each_product(s, |iy, ix, iw| {
        dx[ix] += f64::from(dy[iy]) * f64::from(w[iw])
    });
    dx
}

/// The gradient of the weights `[C_out, C_in / groups, K_h, K_w]`.
#[must_use]
pub(super) fn weight_gradient(s: &Conv2dShape, x: &[f32], dy: &[f32]) -> Vec<f64> {
    let mut dw = vec![0.0; s.weight_len()];
    each_product(s, |iy, ix, iw| {
        dw[iw] += f64::from(x[ix]) * f64::from(dy[iy])
    });
    dw
}
