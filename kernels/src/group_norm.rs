//! Group normalisation of `[N, pixels, C]`: each image has a mean and a variance for each group of
//! consecutive channels.
//!
//! In: images; scale and shift of each channel.
//! Out: images; gradients of images, scale and shift.
//! Invariant: one thread computes an image, and the sums of images are added in order, so the bits
//! do not depend on threads or instruction set.
//! Source: Wu and He 2018, arXiv 1803.08494.
//!
//! The backward pass computes the statistics of an image again, which is cheaper than keeping them.

use rayon::prelude::*;

use crate::Element;
use crate::pieces::elements;
use crate::simd::{Isa, Task, vectorized};

/// Pixels added in f32 before their sum is added to the others.
const BLOCK: usize = 64;
/// Channels whose sums stay in registers.
const COLUMNS: usize = 64;
/// The same of the rest of the channels.
const NARROW: usize = 16;
/// Rows `[C]` of an image's workspace: two sums, the mean and 1 / sqrt(variance + epsilon) of the
/// channel's group, two coefficients.
const ROWS: usize = 6;

/// A shape, with the number added to the variance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    /// Pixels of an image.
    pub pixels: usize,
    /// Channels.
    pub channels: usize,
    /// Groups, which divide the channels.
    pub groups: usize,
    /// Added to the variance.
    pub epsilon: f32,
}

/// Outputs of [`GroupNorm::backward`]: dx `[N, pixels, C]`, the gradients of gamma and beta `[C]`.
#[derive(Debug)]
pub struct Gradients<'a, E = f32> {
    /// Gradient with respect to `x`.
    pub dx: &'a mut [E],
    /// Gradient with respect to `gamma`.
    pub d_gamma: &'a mut [f32],
    /// Gradient with respect to `beta`.
    pub d_beta: &'a mut [f32],
}

impl GroupNorm {
    /// Returns the workspace length of both passes, in elements.
    ///
    /// # Panics
    /// If the number exceeds the largest slice.
    #[must_use]
    pub fn workspace_len(&self, images: usize) -> usize {
        elements("group_norm: workspace", &[images, ROWS, self.channels])
    }

    /// Computes y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, with the biased variance.
    ///
    /// # Shapes
    /// `x`, `y`: `[N, pixels, C]`. `gamma`, `beta`: `[C]`. `workspace`:
    /// [`GroupNorm::workspace_len`] values.
    ///
    /// # Panics
    /// If a length differs, the groups do not divide the channels, or the processor lacks `isa`.
    #[inline(never)]
    pub fn forward<E: Element>(
        &self,
        isa: Isa,
        x: &[E],
        [gamma, beta]: [&[f32]; 2],
        y: &mut [E],
        workspace: &mut [f32],
    ) {
        let (image, slot) = self.check(x.len(), workspace.len());
        same("y", y.len(), x.len());
        same("gamma", gamma.len(), self.channels);
        same("beta", beta.len(), self.channels);
        y.par_chunks_exact_mut(image)
            .zip(x.par_chunks_exact(image))
            .zip(workspace.par_chunks_exact_mut(slot))
            .for_each(|((y, x), slot)| {
                let image = Image {
                    norm: self,
                    x,
                    gamma,
                    slot,
                };
                vectorized(isa, Forward { image, beta, y });
            });
    }

    /// Computes all gradients.
    ///
    /// # Shapes
    /// As [`GroupNorm::forward`]; `dy` as `y`.
    ///
    /// # Panics
    /// As [`GroupNorm::forward`].
    #[inline(never)]
    pub fn backward<E: Element>(
        &self,
        isa: Isa,
        x: &[E],
        gamma: &[f32],
        dy: &[E],
        Gradients {
            dx,
            d_gamma,
            d_beta,
        }: Gradients<'_, E>,
        workspace: &mut [f32],
    ) {
        let (image, slot) = self.check(x.len(), workspace.len());
        same("dy", dy.len(), x.len());
        same("dx", dx.len(), x.len());
        same("gamma", gamma.len(), self.channels);
        same("the gradient of gamma", d_gamma.len(), self.channels);
        same("the gradient of beta", d_beta.len(), self.channels);
        dx.par_chunks_exact_mut(image)
            .zip(x.par_chunks_exact(image).zip(dy.par_chunks_exact(image)))
            .zip(workspace.par_chunks_exact_mut(slot))
            .for_each(|((dx, (x, dy)), slot)| {
                let image = Image {
                    norm: self,
                    x,
                    gamma,
                    slot,
                };
                vectorized(isa, Backward { image, dy, dx });
            });
        for (channel, (d_gamma, d_beta)) in d_gamma.iter_mut().zip(d_beta).enumerate() {
            let of_images = |row: usize| {
                let sums = workspace
                    .chunks_exact(slot)
                    .map(|slot| f64::from(slot[row * self.channels + channel]));
                sums.sum::<f64>() as f32
            };
            (*d_beta, *d_gamma) = (of_images(0), of_images(1));
        }
    }

    /// Checks lengths, and returns those of an image and of its workspace.
    fn check(&self, len: usize, workspace: usize) -> (usize, usize) {
        assert!(
            self.groups > 0 && self.channels > 0 && self.channels.is_multiple_of(self.groups),
            "group_norm: expected groups that divide the channels, got {self:?}"
        );
        let image = elements("group_norm: image", &[self.pixels, self.channels]);
        assert!(
            image > 0 && len.is_multiple_of(image),
            "group_norm: {len} values are no images of {self:?}"
        );
        same("workspace", workspace, self.workspace_len(len / image));
        (image, ROWS * self.channels)
    }
}

fn same(what: &str, got: usize, expected: usize) {
    assert!(
        got == expected,
        "group_norm: {what}: expected {expected} values, got {got}"
    );
}

struct Image<'a, E> {
    norm: &'a GroupNorm,
    x: &'a [E],
    gamma: &'a [f32],
    slot: &'a mut [f32],
}

impl<E: Element> Image<'_, E> {
    /// Returns the rows of the workspace, with the statistics.
    #[inline(always)]
    fn statistics(&mut self) -> [&mut [f32]; ROWS] {
        let Self { norm, x, slot, .. } = self;
        let mut rows = slot.chunks_exact_mut(norm.channels);
        let [sums, other, means, invstds, a, b] =
            std::array::from_fn(|_| rows.next().expect("so many were counted"));
        means.fill(0.0);
        column_sums(x, x, means, sums, |x, _| x);
        norm.group_means(sums, |_| 1.0, means, |mean| mean);
        column_sums(x, x, means, sums, |x, _| x * x);
        let epsilon = f64::from(norm.epsilon);
        let invstd = |variance: f64| 1.0 / (variance + epsilon).sqrt();
        norm.group_means(sums, |_| 1.0, invstds, invstd);
        [sums, other, means, invstds, a, b]
    }
}

impl GroupNorm {
    /// Writes a function of each group's mean to its channels, given the sums of channels and a
    /// weight of each.
    #[inline(always)]
    fn group_means(
        &self,
        sums: &[f32],
        weight: impl Fn(usize) -> f32,
        to: &mut [f32],
        of: impl Fn(f64) -> f64,
    ) {
        let width = self.channels / self.groups;
        let count = (self.pixels * width) as f64;
        for (group, to) in to.chunks_exact_mut(width).enumerate() {
            let channels = group * width..(group + 1) * width;
            let terms =
                channels.map(|channel| f64::from(sums[channel]) * f64::from(weight(channel)));
            to.fill(of(terms.sum::<f64>() / count) as f32);
        }
    }
}

struct Forward<'a, E> {
    image: Image<'a, E>,
    beta: &'a [f32],
    y: &'a mut [E],
}

impl<E: Element> Task for Forward<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let (x, gamma) = (self.image.x, self.image.gamma);
        let channels = gamma.len();
        let [scales, _, means, invstds, ..] = self.image.statistics();
        for ((scale, gamma), invstd) in scales.iter_mut().zip(gamma).zip(&*invstds) {
            *scale = gamma * invstd;
        }
        for (y, x) in self
            .y
            .chunks_exact_mut(channels)
            .zip(x.chunks_exact(channels))
        {
            let parameters = scales.iter().zip(&*means).zip(self.beta);
            for ((y, x), ((scale, mean), beta)) in y.iter_mut().zip(x).zip(parameters) {
                *y = E::from_f32((x.to_f32() - mean) * scale + beta);
            }
        }
    }
}

struct Backward<'a, E> {
    image: Image<'a, E>,
    dy: &'a [E],
    dx: &'a mut [E],
}

impl<E: Element> Task for Backward<'_, E> {
    type Output = ();

    /// Leaves the image's gradients of beta and gamma in the first two rows of the workspace.
    #[inline(always)]
    fn run(mut self) {
        let (norm, x, gamma, dy) = (self.image.norm, self.image.x, self.image.gamma, self.dy);
        let channels = norm.channels;
        let [plain, with_x, means, invstds, a, b] = self.image.statistics();
        column_sums(x, dy, means, plain, |_, dy| dy);
        column_sums(x, dy, means, with_x, |x, dy| x * dy);
        for (with_x, invstd) in with_x.iter_mut().zip(&*invstds) {
            *with_x *= invstd;
        }
        // dx = invstd (gamma dy - a - b (x - mean) invstd), where a and b are means over the group
        // of gamma dy and of gamma dy (x - mean) invstd.
        for (sums, to) in [(&*plain, &mut *a), (&*with_x, &mut *b)] {
            norm.group_means(sums, |channel| gamma[channel], to, |mean| mean);
        }
        let coefficients = a.iter_mut().zip(b.iter_mut()).zip(invstds.iter_mut());
        for (((a, b), invstd), gamma) in coefficients.zip(gamma) {
            *a *= *invstd;
            *b *= *invstd * *invstd;
            *invstd *= gamma;
        }
        let scales = invstds;
        let pixels = x.chunks_exact(channels).zip(dy.chunks_exact(channels));
        for (dx, (x, dy)) in self.dx.chunks_exact_mut(channels).zip(pixels) {
            let coefficients = scales.iter().zip(&*means).zip(a.iter().zip(&*b));
            for ((dx, (x, dy)), ((scale, mean), (a, b))) in
                dx.iter_mut().zip(x.iter().zip(dy)).zip(coefficients)
            {
                *dx = E::from_f32(dy.to_f32() * scale - a - (x.to_f32() - mean) * b);
            }
        }
    }
}

/// Writes the sum over the pixels of a term of x - centre and dy, for each channel.
#[inline(always)]
fn column_sums<E: Element>(
    x: &[E],
    dy: &[E],
    centre: &[f32],
    sums: &mut [f32],
    of: impl Fn(f32, f32) -> f32,
) {
    let (wide, rest) = sums.as_chunks_mut::<COLUMNS>();
    let first_of_rest = wide.len() * COLUMNS;
    for (index, sums) in wide.iter_mut().enumerate() {
        some_sums(x, dy, centre, index * COLUMNS, sums, &of);
    }
    let (narrow, rest) = rest.as_chunks_mut::<NARROW>();
    let first_of_last = first_of_rest + narrow.len() * NARROW;
    for (index, sums) in narrow.iter_mut().enumerate() {
        some_sums(x, dy, centre, first_of_rest + index * NARROW, sums, &of);
    }
    for (index, sums) in rest.as_chunks_mut::<1>().0.iter_mut().enumerate() {
        some_sums(x, dy, centre, first_of_last + index, sums, &of);
    }
}

/// Writes the sums of `N` channels from `first` on.
#[inline(always)]
fn some_sums<E: Element, const N: usize>(
    x: &[E],
    dy: &[E],
    centre: &[f32],
    first: usize,
    sums: &mut [f32; N],
    of: impl Fn(f32, f32) -> f32,
) {
    let channels = centre.len();
    let centre = &centre[first..first + N];
    sums.fill(0.0);
    let blocks = x.chunks(BLOCK * channels).zip(dy.chunks(BLOCK * channels));
    for (x, dy) in blocks {
        let mut lanes = [0.0; N];
        for (x, dy) in x.chunks_exact(channels).zip(dy.chunks_exact(channels)) {
            let (x, dy) = (&x[first..first + N], &dy[first..first + N]);
            for i in 0..N {
                lanes[i] += of(x[i].to_f32() - centre[i], dy[i].to_f32());
            }
        }
        for (sum, lane) in sums.iter_mut().zip(lanes) {
            *sum += lane;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{assert_close, doubles, finite_differences, same_everywhere, values};
    use half::bf16;

    const EPSILON: f64 = 1e-5;

    struct Case {
        norm: GroupNorm,
        x: Vec<f32>,
        gamma: Vec<f32>,
        beta: Vec<f32>,
        dy: Vec<f32>,
    }

    impl Case {
        fn new([images, pixels, channels, groups]: [usize; 4]) -> Self {
            let len = images * pixels * channels;
            Self {
                norm: GroupNorm {
                    pixels,
                    channels,
                    groups,
                    epsilon: EPSILON as f32,
                },
                // A mean that careless formulas would lose digits by.
                x: values(len, 1).iter().map(|x| x + 3.0).collect(),
                gamma: values(channels, 2),
                beta: values(channels, 3),
                dy: values(len, 4),
            }
        }

        fn forward<E: Element>(&self, isa: Isa, x: &[E]) -> Vec<E> {
            let mut y = vec![E::from_f32(f32::NAN); x.len()];
            let mut workspace = self.workspace();
            let parameters = [&self.gamma[..], &self.beta];
            self.norm
                .forward(isa, x, parameters, &mut y, &mut workspace);
            y
        }

        fn gradients(&self, isa: Isa) -> [Vec<f32>; 3] {
            let mut dx = vec![f32::NAN; self.x.len()];
            let [mut d_gamma, mut d_beta] = [(); 2].map(|()| vec![f32::NAN; self.norm.channels]);
            let wanted = Gradients {
                dx: &mut dx,
                d_gamma: &mut d_gamma,
                d_beta: &mut d_beta,
            };
            let mut workspace = self.workspace();
            self.norm
                .backward(isa, &self.x, &self.gamma, &self.dy, wanted, &mut workspace);
            [dx, d_gamma, d_beta]
        }

        fn workspace(&self) -> Vec<f32> {
            let images = self.x.len() / self.norm.pixels / self.norm.channels;
            vec![f32::NAN; self.norm.workspace_len(images)]
        }

        /// y of f64 loops.
        fn reference(&self, x: &[f64], gamma: &[f64], beta: &[f64]) -> Vec<f64> {
            let channels = gamma.len();
            let width = channels / self.norm.groups;
            let image = self.norm.pixels * channels;
            let mut y = vec![0.0; x.len()];
            for (x, y) in x.chunks_exact(image).zip(y.chunks_exact_mut(image)) {
                for group in 0..self.norm.groups {
                    let inside = |at: &usize| at % channels / width == group;
                    let count = (self.norm.pixels * width) as f64;
                    let mean = (0..image).filter(inside).map(|at| x[at]).sum::<f64>() / count;
                    let squares = |at: usize| (x[at] - mean).powi(2);
                    let variance = (0..image).filter(inside).map(squares).sum::<f64>() / count;
                    for at in (0..image).filter(inside) {
                        let channel = at % channels;
                        let normalised = (x[at] - mean) / (variance + EPSILON).sqrt();
                        y[at] = normalised * gamma[channel] + beta[channel];
                    }
                }
            }
            y
        }
    }

    #[test]
    fn images_equal_the_reference_and_are_the_same_everywhere() {
        for extents in [
            [1, 1, 1, 1],
            [3, 5, 6, 2],
            [2, 130, 16, 16],
            [3, 70, 132, 4],
        ] {
            let case = Case::new(extents);
            let y = same_everywhere(|isa| case.forward(isa, &case.x));
            let [x, gamma, beta] = [&case.x, &case.gamma, &case.beta].map(|values| doubles(values));
            let expected = case.reference(&x, &gamma, &beta);
            assert_close(&format!("{extents:?}"), &y, &expected, 1e-5);
            same_everywhere(|isa| case.gradients(isa));
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for extents in [[2, 3, 4, 2], [3, 2, 18, 3], [1, 9, 5, 1]] {
            let case = Case::new(extents);
            let [dx, d_gamma, d_beta] = case.gradients(Isa::detect());
            let [x, gamma, beta] = [&case.x, &case.gamma, &case.beta].map(|values| doubles(values));
            let loss = |y: Vec<f64>| {
                let terms = y.iter().zip(&case.dy).map(|(y, dy)| y * f64::from(*dy));
                terms.sum::<f64>()
            };
            let what = format!("{extents:?}");
            let expected = finite_differences(&x, |x| loss(case.reference(x, &gamma, &beta)));
            assert_close(&what, &dx, &expected, 1e-4);
            let expected =
                finite_differences(&gamma, |gamma| loss(case.reference(&x, gamma, &beta)));
            assert_close(&what, &d_gamma, &expected, 1e-4);
            let expected = finite_differences(&beta, |beta| loss(case.reference(&x, &gamma, beta)));
            assert_close(&what, &d_beta, &expected, 1e-4);
        }
    }

    #[test]
    fn bf16_is_the_rounded_result_of_the_widened_values() {
        let case = Case::new([3, 10, 24, 4]);
        let x: Vec<bf16> = case.x.iter().map(|x| bf16::from_f32(*x)).collect();
        let wide: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        let expected = case.forward(Isa::detect(), &wide);
        assert!(
            case.forward(Isa::detect(), &x)
                .iter()
                .zip(&expected)
                .all(|(y, expected)| *y == bf16::from_f32(*expected))
        );
    }
}
