//! Partition of a batch into groups of images, and of groups into pieces of a sum.
//!
//! In: the convolution of the whole batch.
//! Out: [`Groups`].
//! Invariant: the partition depends only on the shape and the storage.

use core::ops::Range;

use crate::batch_norm::{Gate, Saved};
use crate::conv2d::{Conv2d, Conv2dShape};
use crate::pieces::{SharedMut, whole_lines};
use crate::{Element, Storage};

/// Bytes of the larger activation of a group, unless one image has more: the half dozen of them
/// that a pass touches stay in an L2 of 1 MB.
const GROUP_BYTES: usize = 128 * 1024;
/// Sums of a gradient of the weights beyond this do not stay there: the batch is one group.
const MAX_SUMS_BYTES: usize = 768 * 1024;
/// An image beyond this stays in the last cache only: its groups save scratch memory rather than
/// walks.
const LARGE_IMAGE_BYTES: usize = 768 * 1024;
/// They are shared out among threads by pieces; where these are fewer, the batch is one group,
/// whose passes use all threads.
const MIN_LARGE_PIECES: usize = 8;
/// An image beyond this does not even stay there: the batch is one group.
const MAX_IMAGE_BYTES: usize = 4 * 1024 * 1024;
/// Pixels of a piece: below, adding the pieces' gradients would cost too much.
const PIECE_PIXELS: usize = 1024;
/// Gradients of all pieces, in elements.
const PIECE_ELEMENTS: usize = 1024 * 1024;
const MAX_PIECES: usize = 64;

#[derive(Clone, Copy, Debug)]
pub(super) struct Groups {
    /// Convolutions of a group and of the last group.
    conv: Conv2d,
    last: Conv2d,
    num_groups: usize,
    groups_of_piece: usize,
    num_pieces: usize,
}

impl Groups {
    pub(super) fn new(
        whole: &Conv2d,
        plan: impl Fn(Conv2dShape) -> Conv2d,
        storage: Storage,
    ) -> Self {
        let shape = *whole.shape();
        let of_image = shape.input_len().max(shape.output_len()) / shape.batch * storage.size();
        let sums = whole.weight_sums_lens()[0] * size_of::<f32>();
        let pieces = shape.batch.min(PIECE_ELEMENTS / shape.weight_len());
        let are_few = of_image > LARGE_IMAGE_BYTES && pieces < MIN_LARGE_PIECES;
        let is_one = are_few || of_image > MAX_IMAGE_BYTES || sums > MAX_SUMS_BYTES;
        let images = if is_one {
            shape.batch
        } else {
            (GROUP_BYTES / of_image).max(1)
        };
        Self::of_images(whole, plan, images.min(shape.batch))
    }

    /// Returns groups of so many images.
    pub(super) fn of_images(
        whole: &Conv2d,
        plan: impl Fn(Conv2dShape) -> Conv2d,
        images: usize,
    ) -> Self {
        let shape = *whole.shape();
        let num_groups = shape.batch.div_ceil(images);
        let last = shape.batch - (num_groups - 1) * images;
        let pixels = images * shape.out_height() * shape.out_width();
        let most = (PIECE_ELEMENTS / shape.weight_len()).clamp(1, MAX_PIECES);
        let groups_of_piece = num_groups
            .div_ceil(most)
            .max(PIECE_PIXELS.div_ceil(pixels))
            .min(num_groups);
        Self {
            conv: plan(Conv2dShape {
                batch: images,
                ..shape
            }),
            last: plan(Conv2dShape {
                batch: last,
                ..shape
            }),
            num_groups,
            groups_of_piece,
            num_pieces: num_groups.div_ceil(groups_of_piece),
        }
    }

    pub(super) fn num_groups(&self) -> usize {
        self.num_groups
    }

    pub(super) fn num_pieces(&self) -> usize {
        self.num_pieces
    }

    /// Returns the number of threads that divide the groups. It is 1 for a single group, whose
    /// passes use all threads.
    pub(super) fn num_threads(&self) -> usize {
        if self.num_groups == 1 {
            1
        } else {
            rayon::current_num_threads()
        }
    }

    /// Returns the groups of a piece.
    pub(super) fn of_piece(&self, piece: usize) -> Range<usize> {
        let first = piece * self.groups_of_piece;
        first..(first + self.groups_of_piece).min(self.num_groups)
    }

    pub(super) fn get(&self, index: usize) -> Group<'_> {
        let conv = if index + 1 == self.num_groups {
            &self.last
        } else {
            &self.conv
        };
        let first = index * self.conv.shape().batch;
        let first_forward_piece = index * self.conv.num_forward_pieces();
        Group {
            conv,
            images: first..first + conv.shape().batch,
            first_forward_piece,
        }
    }

    /// Returns the number of pieces of the forward passes of all groups.
    pub(super) fn num_forward_pieces(&self) -> usize {
        (self.num_groups - 1) * self.conv.num_forward_pieces() + self.last.num_forward_pieces()
    }

    /// Returns the largest `len` of any group, given its convolution and its number of threads.
    pub(super) fn most(&self, len: impl Fn(&Conv2d, usize) -> usize) -> usize {
        let num_threads = if self.num_groups == 1 {
            rayon::current_num_threads()
        } else {
            1
        };
        len(&self.conv, num_threads).max(len(&self.last, num_threads))
    }
}

/// Some images of the batch.
pub(super) struct Group<'a> {
    pub(super) conv: &'a Conv2d,
    pub(super) images: Range<usize>,
    /// Its first piece among those of all groups.
    pub(super) first_forward_piece: usize,
}

impl Group<'_> {
    /// Returns its range among the elements of the input.
    pub(super) fn input(&self) -> Range<usize> {
        self.images_of(self.conv.shape().input_len() / self.conv.shape().batch)
    }

    /// Returns its range among the elements of the output.
    pub(super) fn output(&self) -> Range<usize> {
        self.images_of(self.conv.shape().output_len() / self.conv.shape().batch)
    }

    /// Returns its range in an activation with so many elements per image.
    pub(super) fn images_of(&self, image_len: usize) -> Range<usize> {
        self.images.start * image_len..self.images.end * image_len
    }

    /// Returns a normalisation of the part that lies in `range`.
    pub(super) fn norm<'a, E: Element>(
        &self,
        norm: &Saved<'a, E>,
        range: Range<usize>,
    ) -> Saved<'a, E> {
        let gate = match norm.gate {
            Gate::Output(y) => Gate::Output(&y[range.clone()]),
            other => other,
        };
        Saved {
            affine: norm.affine,
            x: &norm.x[range],
            gate,
        }
    }
}

/// Returns the elements of `range`, mutably.
///
/// # Safety
/// No other piece has any of them, and what `values` was made of outlives them.
pub(super) unsafe fn part_of<'a, E>(values: SharedMut<E>, range: Range<usize>) -> &'a mut [E] {
    // SAFETY: inside the slice, as `at` asserts; alone there by contract.
    unsafe { core::slice::from_raw_parts_mut(values.at(range.start, range.len()), range.len()) }
}

/// Returns the first `len` elements of scratch memory.
pub(super) fn scratch<E: Element>(floats: &mut [f32], len: usize) -> &mut [E] {
    assert!(
        len * size_of::<E>() <= size_of_val(floats),
        "layer: scratch memory"
    );
    // SAFETY: in bounds as just asserted; every element is at most as aligned as a float, and any
    // bits are one.
    unsafe { core::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), len) }
}

/// Returns the number of floats of scratch memory for so many doubles, wherever it starts.
pub(super) fn doubles_len(len: usize) -> usize {
    whole_lines(2 * len + 1)
}

/// Returns the doubles in scratch memory.
pub(super) fn doubles(floats: &mut [f32]) -> &mut [f64] {
    // SAFETY: any bits are a double.
    unsafe { floats.align_to_mut().1 }
}
