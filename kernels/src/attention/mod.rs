//! Scaled dot-product attention for every image and head.
//!
//! In: queries, keys and values in one tensor, the output of one linear layer; a mask.
//! Out: the attention output, or the gradient of queries, keys and values.
//! Invariant: one thread computes an image, so the bits do not depend on threads. Scores of a head
//! stay in the cache; the backward pass computes them again.
//! Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1; Dao et al. 2022, arXiv 2205.14135,
//! for recomputed scores.

mod steps;
#[cfg(test)]
mod tests;

use crate::Element;
use crate::pieces::{SharedMut, elements, for_each_piece, slots_len};
use crate::simd::{Isa, vectorized};
use steps::{COLUMNS, Gather, Product, Scatter, Softmax, SoftmaxGradient, Transpose, Triangle};

/// Queries, keys, values, two of these the other way round in turn, the gradient of the result, a
/// result.
const MATRICES: usize = 6;

/// A shape. Queries, keys and values are one tensor `[images, tokens, 3, heads, width]`, in this
/// order. The result is `[images, tokens, heads, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attention {
    /// Images.
    pub images: usize,
    /// Tokens of an image.
    pub tokens: usize,
    /// Heads.
    pub heads: usize,
    /// Length of a query, key or value. Scores are divided by its square root.
    pub width: usize,
}

/// The keys that a query sees.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Mask<'a> {
    /// All keys.
    #[default]
    None,
    /// Its own token and those before it. The other scores are not computed.
    Causal,
    /// Values `[images, tokens, tokens]` added to the scores, a row for each query; minus infinity
    /// hides a key. A query that sees no key has the result 0, as in PyTorch.
    Added(&'a [f32]),
}

impl Attention {
    /// Returns the number of elements of the result.
    ///
    /// # Panics
    /// If the number exceeds the largest slice.
    #[must_use]
    pub fn output_len(&self) -> usize {
        elements(
            "attention: result",
            &[self.images, self.tokens, self.heads, self.width],
        )
    }

    /// Returns the number of workspace elements with which both passes use every thread of the
    /// current rayon pool.
    ///
    /// # Panics
    /// If the number exceeds the largest slice.
    #[must_use]
    pub fn workspace_len(&self) -> usize {
        slots_len(rayon::current_num_threads(), self.slot_len())
    }

    /// Computes softmax(q k^T / sqrt(width) + mask) v.
    ///
    /// # Panics
    /// If `tokens`, `heads` or `width` is zero, a length differs from the shape, the workspace is
    /// too short for one thread, or the processor lacks `isa`.
    #[inline(never)]
    pub fn forward<E: Element>(
        &self,
        isa: Isa,
        qkv: &[E],
        mask: Mask<'_>,
        y: &mut [E],
        workspace: &mut [f32],
    ) {
        self.check(qkv.len(), mask, y.len());
        self.each_image(isa, qkv, mask, None, y, workspace);
    }

    /// Computes the gradient `d_qkv`, in the layout of `qkv`, from the gradient of the result.
    ///
    /// # Panics
    /// As [`Attention::forward`].
    #[inline(never)]
    pub fn backward<E: Element>(
        &self,
        isa: Isa,
        qkv: &[E],
        mask: Mask<'_>,
        dy: &[E],
        d_qkv: &mut [E],
        workspace: &mut [f32],
    ) {
        self.check(qkv.len(), mask, dy.len());
        assert!(
            d_qkv.len() == qkv.len(),
            "attention: {} values but a gradient of {}",
            qkv.len(),
            d_qkv.len()
        );
        self.each_image(isa, qkv, mask, Some(dy), d_qkv, workspace);
    }

    /// Writes the result of each image, or its gradient if `dy` is given.
    fn each_image<E: Element>(
        &self,
        isa: Isa,
        qkv: &[E],
        mask: Mask<'_>,
        dy: Option<&[E]>,
        written: &mut [E],
        workspace: &mut [f32],
    ) {
        let images = self.images.max(1);
        let image = qkv.len() / images / 3;
        let written_image = written.len() / images;
        let written = SharedMut::new(written);
        for_each_piece(self.images, workspace, self.slot_len(), &|index, slot| {
            // SAFETY: each image has its own part, and the slice outlives the pass.
            let written = unsafe {
                let first = written.at(index * written_image, written_image);
                core::slice::from_raw_parts_mut(first, written_image)
            };
            Image {
                shape: self,
                isa,
                qkv: &qkv[index * 3 * image..][..3 * image],
                mask: match mask {
                    Mask::Added(all) => {
                        let scores = self.tokens * self.tokens;
                        Mask::Added(&all[index * scores..][..scores])
                    }
                    mask => mask,
                },
                dy: dy.map(|dy| &dy[index * image..][..image]),
                written,
                slot,
            }
            .run();
        });
    }

    fn check(&self, qkv: usize, mask: Mask<'_>, output: usize) {
        for (name, extent) in [
            ("tokens", self.tokens),
            ("heads", self.heads),
            ("width", self.width),
        ] {
            assert!(
                extent > 0,
                "attention: {name}: expected at least 1, got 0 in {self:?}"
            );
        }
        let expected = self.output_len();
        assert!(
            output == expected,
            "attention: expected {expected} values of the result, got {output}"
        );
        assert!(
            qkv == 3 * expected,
            "attention: expected {} queries, keys and values, got {qkv}",
            3 * expected
        );
        if let Mask::Added(mask) = mask {
            let expected = elements("attention: mask", &[self.images, self.tokens, self.tokens]);
            assert!(
                mask.len() == expected,
                "attention: mask: expected {expected} values, got {}",
                mask.len()
            );
        }
    }

    /// Tokens and width in whole blocks.
    fn padded(&self) -> [usize; 2] {
        [self.tokens, self.width].map(|len| len.div_ceil(COLUMNS).saturating_mul(COLUMNS))
    }

    /// Matrices `[tokens, width]` or the other way round, and two `[tokens, tokens]`.
    fn slot_len(&self) -> usize {
        let [tokens, width] = self.padded();
        elements("attention: matrices", &[MATRICES, tokens, width])
            + elements("attention: scores", &[2, tokens, tokens])
    }
}

/// All heads of an image: forward without a gradient, else backward.
struct Image<'a, E> {
    shape: &'a Attention,
    isa: Isa,
    qkv: &'a [E],
    mask: Mask<'a>,
    dy: Option<&'a [E]>,
    /// The result, or the gradient of queries, keys and values.
    written: &'a mut [E],
    slot: &'a mut [f32],
}

impl<E: Element> Image<'_, E> {
    // tidy: long function because all products share the matrices and strides of a head
    fn run(self) {
        let Self { isa, qkv, mask, .. } = self;
        let Attention {
            tokens,
            heads,
            width,
            ..
        } = *self.shape;
        let [all_tokens, all_width] = self.shape.padded();
        let row = heads * width;
        let scale = 1.0 / (width as f32).sqrt();
        let lower = |triangle| match mask {
            Mask::Causal => triangle,
            _ => Triangle::Whole,
        };
        let (matrices, squares) = self.slot.split_at_mut(MATRICES * all_tokens * all_width);
        let (p, ds) = squares.split_at_mut(all_tokens * all_tokens);
        let mut parts = matrices.chunks_exact_mut(all_tokens * all_width);
        let [q, k, v, other_way, dy, result]: [&mut [f32]; MATRICES] =
            std::array::from_fn(|_| parts.next().expect("so many were cut off"));
        let gather = |from: &[E], stride, first, to: &mut [f32], factor| {
            vectorized(
                isa,
                Gather {
                    from,
                    stride,
                    first,
                    rows: tokens,
                    columns: width,
                    to,
                    to_stride: all_width,
                    factor,
                },
            );
        };
        let to_tokens = |a: &[f32], b: &[f32], c: &mut [f32]| {
            isa.run(Product {
                a,
                strides: [all_width, 1],
                b,
                c,
                rows: tokens,
                columns: all_tokens,
                depth: width,
                triangle: lower(Triangle::Columns),
            });
        };
        let to_width = |a: &[f32], (strides, triangle), b: &[f32], c: &mut [f32]| {
            isa.run(Product {
                a,
                strides,
                b,
                c,
                rows: tokens,
                columns: all_width,
                depth: tokens,
                triangle,
            });
        };
        let transpose = |from: &[f32], to: &mut [f32]| {
            isa.run(Transpose {
                from,
                from_stride: all_width,
                to,
                to_stride: all_tokens,
            });
        };
        let by_rows = ([all_tokens, 1], lower(Triangle::DepthTo));
        let by_columns = ([1, all_tokens], lower(Triangle::DepthFrom));
        for head in 0..heads {
            let part = |index: usize| (index * heads + head) * width;
            gather(qkv, 3 * row, part(0), q, scale);
            gather(qkv, 3 * row, part(1), k, 1.0);
            gather(qkv, 3 * row, part(2), v, 1.0);
            transpose(k, other_way);
            to_tokens(q, other_way, p);
            vectorized(
                isa,
                Softmax {
                    p: &mut *p,
                    mask,
                    tokens,
                    stride: all_tokens,
                },
            );
            let mut scatter = |from: &[f32], stride, first, factor| {
                let to = &mut *self.written;
                vectorized(
                    isa,
                    Scatter {
                        from,
                        from_stride: all_width,
                        rows: tokens,
                        columns: width,
                        to,
                        stride,
                        first,
                        factor,
                    },
                );
            };
            let Some(gradient) = self.dy else {
                to_width(p, by_rows, v, result);
                scatter(result, row, head * width, 1.0);
                continue;
            };
            gather(gradient, row, head * width, dy, 1.0);
            transpose(v, other_way);
            to_tokens(dy, other_way, ds);
            vectorized(
                isa,
                SoftmaxGradient {
                    p,
                    ds: &mut *ds,
                    is_causal: mask == Mask::Causal,
                    tokens,
                    stride: all_tokens,
                },
            );
            to_width(ds, by_rows, k, result);
            scatter(result, 3 * row, part(0), scale);
            to_width(ds, by_columns, q, result);
            scatter(result, 3 * row, part(1), 1.0);
            to_width(p, by_columns, dy, result);
            scatter(result, 3 * row, part(2), 1.0);
        }
    }
}
