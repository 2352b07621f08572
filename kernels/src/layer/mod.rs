//! The passes of a layer (convolution and normalisation), with as few reads and writes of
//! activations as possible.
//!
//! Forward: [`Layer::forward`] writes the convolution's raw result and its moments. Its input may
//! be the raw result of the layer before. Then it normalises one group of images at a time in L2,
//! and does not store the normalised values. Backward: [`Layer::backward`] processes one group of
//! images at a time, which stays in L2 (a large group in the last cache). For each group it
//! computes the gradients of the normalisation, the input and the weights, and the two sums that
//! the normalisation before needs. So a layer reads dy, its raw result and its input, and writes
//! dx; the gradient of the raw result is never stored. If an image or the sums of the weights are
//! too large, the group is the whole batch, and the same passes run one after the other.
//! Invariant: groups, pieces of groups and the order of sums depend on the shape only, so no result
//! depends on threads.
//! Source: Jung et al. 2019, "Restructuring batch normalization to accelerate CNN training", arXiv
//! 1807.01702.

mod groups;
#[cfg(test)]
mod tests;

use crate::batch_norm::{
    self, Gate, Rectifier, Residual, ResidualGradient, Saved, ShortcutA, workspace_len,
};
use crate::conv2d::statistics::{Statistics, partials_len, reduce_partials};
use crate::conv2d::{Addend, Algorithm, Conv2d, Conv2dShape, Epilogue, add_weight_gradients};
use crate::pieces::{SharedMut, for_each_piece, slots_len, whole_lines};
use crate::scratch::assert_on_line;
use crate::simd::Isa;
use crate::{Element, Storage};
use groups::{Group, Groups, doubles, doubles_len, part_of, scratch};

/// Input of a layer's convolution, `[N, H, W, C_in]`.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a, E = f32> {
    /// The values. With `None`, the kernel computes them: the output of `norm`, without a residual.
    pub stored: Option<&'a [E]>,
    /// The normalisation that made the input, with its gate; `None` if no caller needs the sums of
    /// its gradient.
    pub norm: Option<Saved<'a, E>>,
}

/// Inputs of the backward pass of a layer.
#[derive(Clone, Copy, Debug)]
pub struct Backward<'a, E = f32> {
    /// Input of the convolution.
    pub input: Input<'a, E>,
    /// The layer's own normalisation; its x is the convolution's raw result.
    pub norm: Saved<'a, E>,
    /// The sums of the normalisation's gradient ([`crate::batch_norm::backward_sums`]) over all
    /// `count` rows of all ranks.
    pub sums: &'a [f64],
    /// Number of rows over all ranks, as in `sums`.
    pub count: f64,
    /// The gradient of the layer's output, `[N, H_out, W_out, C_out]`.
    pub dy: &'a [E],
    /// The weights, packed with [`Conv2d::pack_data_gradient`] of [`Layer::conv`]; empty if dx is
    /// not needed.
    pub packed: &'a [f32],
    /// Values added to dx, in the shape of dx.
    pub addend: Option<&'a [E]>,
}

/// Outputs of the backward pass of a layer.
#[derive(Debug)]
pub struct Gradients<'a, E = f32> {
    /// Gradient of the input, `[N, H, W, C_in]`, if needed.
    pub dx: Option<&'a mut [E]>,
    /// Gradient of the weights, `[C_out, C_in, K, K]`.
    pub dw: &'a mut [f32],
    /// Gradient of the residual.
    pub residual: ResidualGradient<'a, E>,
    /// The sums of the gradient of the normalisation that made the input, `[2, C_in]`. Written if
    /// that normalisation is given and dx is needed.
    pub input_sums: &'a mut [f64],
}

/// The plan of one layer's passes. It is cheap to make and holds no buffers.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    isa: Isa,
    whole: Conv2d,
    groups: Groups,
}

impl Layer {
    /// Plans a layer. Arguments and panics are those of [`Conv2d::new`].
    #[must_use]
    pub fn new(shape: Conv2dShape, algorithm: Algorithm, isa: Isa, storage: Storage) -> Self {
        let whole = Conv2d::new(shape, algorithm, isa, storage);
        Self {
            isa,
            whole,
            groups: Groups::new(
                &whole,
                |shape| Conv2d::new(shape, algorithm, isa, storage),
                storage,
            ),
        }
    }

    /// Returns the convolution over the whole batch. The layer uses its packed weights.
    #[must_use]
    pub fn conv(&self) -> &Conv2d {
        &self.whole
    }

    /// Returns true if the backward pass works on groups of images. Otherwise its passes run one
    /// after the other over the whole batch.
    #[must_use]
    pub fn is_grouped(&self) -> bool {
        self.groups.num_groups() > 1 || self.whole.shape().batch == 1
    }

    /// Returns the number of workspace elements with which [`Layer::forward`] uses every thread of
    /// the current rayon pool.
    #[must_use]
    pub fn forward_workspace_len(&self) -> usize {
        let partials = partials_len(
            self.groups.num_forward_pieces(),
            self.whole.shape().out_channels,
        );
        let num_workers = self.groups.num_threads().min(self.groups.num_groups());
        let slots = slots_len(num_workers, self.forward_slot_len());
        self.whole.forward_workspace_len().max(partials + slots)
    }

    /// Returns the number of workspace elements with which [`Layer::backward`] uses every thread of
    /// the current rayon pool.
    #[must_use]
    pub fn backward_workspace_len(&self) -> usize {
        let num_workers = self.groups.num_threads().min(self.groups.num_pieces());
        let slots = slots_len(num_workers, self.slot_lens().iter().sum());
        self.partial_dw_len() + self.partial_sums_len() + slots
    }

    /// Computes the raw result `z` (`[N, H_out, W_out, C_out]`) of the convolution, and the moments
    /// of each channel, as [`Conv2d::forward`].
    ///
    /// # Panics
    /// If a length is not the one stated, packed weights or workspace do not start on a cache line,
    /// or an input is neither stored nor normalised without a residual.
    #[inline(never)]
    pub fn forward<E: Element>(
        &self,
        input: Input<'_, E>,
        packed: &[f32],
        z: &mut [E],
        workspace: &mut [f32],
        moments: &mut [f64],
    ) {
        assert_on_line("layer: packed weights, workspace", [packed, workspace]);
        let shape = self.whole.shape();
        if let Some(x) = input.stored {
            return self
                .whole
                .forward(x, packed, z, workspace, Epilogue::Moments(moments));
        }
        assert_eq!(
            z.len(),
            shape.output_len(),
            "layer: length of the raw result"
        );
        assert_eq!(
            moments.len(),
            2 * shape.out_channels,
            "layer: length of the moments"
        );
        let num_pieces = self.groups.num_forward_pieces();
        let (partials, slots) =
            workspace.split_at_mut(partials_len(num_pieces, shape.out_channels));
        let statistics = Statistics::new(self.isa, partials, num_pieces, shape.out_channels);
        let z = SharedMut::new(z);
        for_each_piece(
            self.groups.num_groups(),
            slots,
            self.forward_slot_len(),
            &|index, slot| {
                let group = self.groups.get(index);
                let (x, slot) = slot.split_at_mut(self.input_scratch_len());
                let x = self.read(input, &group, x);
                // SAFETY: each group has its own images.
                let z = unsafe { part_of(z, group.output()) };
                group
                    .conv
                    .forward_pieces(x, packed, z, slot, &|piece, _, rows| {
                        statistics.of_piece(group.first_forward_piece + piece, rows);
                    });
            },
        );
        reduce_partials(partials, num_pieces, moments);
    }

    /// Computes all gradients of the layer.
    ///
    /// # Panics
    /// If a length is not the one stated, packed weights or workspace do not start on a cache line,
    /// or a residual is combined with a recomputed gate.
    #[inline(never)]
    pub fn backward<E: Element>(
        &self,
        given: &Backward<'_, E>,
        wanted: Gradients<'_, E>,
        workspace: &mut [f32],
    ) {
        assert_on_line(
            "layer: packed weights, workspace",
            [given.packed, &*workspace],
        );
        let shape = self.whole.shape();
        assert_eq!(wanted.dw.len(), shape.weight_len(), "layer: length of dw");
        let num_pieces = self.groups.num_pieces();
        let sums_len = 2 * shape.in_channels;
        let (partial_dw, rest) = workspace.split_at_mut(self.partial_dw_len());
        let (partial_sums, slots) = rest.split_at_mut(self.partial_sums_len());
        let partial_sums = &mut doubles(partial_sums)[..num_pieces * sums_len];
        let targets = Targets {
            dx: wanted.dx.map(SharedMut::new),
            dw: SharedMut::new(if num_pieces > 1 {
                &mut *partial_dw
            } else {
                &mut *wanted.dw
            }),
            residual: SharedResidual::of(wanted.residual),
            sums: SharedMut::new(&mut *partial_sums),
        };
        for_each_piece(
            num_pieces,
            slots,
            self.slot_lens().iter().sum(),
            &|piece, slot| {
                self.backward_piece(given, &targets, piece, slot);
            },
        );
        if num_pieces > 1 {
            add_weight_gradients(
                self.isa,
                &partial_dw[..num_pieces * shape.weight_len()],
                wanted.dw,
            );
        }
        if given.input.norm.is_some() && targets.dx.is_some() {
            assert_eq!(
                wanted.input_sums.len(),
                sums_len,
                "layer: length of the input's sums"
            );
            wanted.input_sums.fill(0.0);
            for sums in partial_sums.chunks_exact(sums_len) {
                add(wanted.input_sums, sums);
            }
        }
    }

    /// Computes the groups of one piece, one after the other.
    fn backward_piece<E: Element>(
        &self,
        given: &Backward<'_, E>,
        to: &Targets<E>,
        piece: usize,
        slot: &mut [f32],
    ) {
        let shape = self.whole.shape();
        let weight_len = shape.weight_len();
        let sums_len = 2 * shape.in_channels;
        // SAFETY: each piece has its own gradient and sums.
        let (dw, input_sums) = unsafe {
            let of_piece = |len| piece * len..(piece + 1) * len;
            (
                part_of(to.dw, of_piece(weight_len)),
                part_of(to.sums, of_piece(sums_len)),
            )
        };
        input_sums.fill(0.0);
        let [dz_len, x_len, sums, norm_sums, _] = self.slot_lens();
        let (dz, rest) = slot.split_at_mut(dz_len);
        let (x, rest) = rest.split_at_mut(x_len);
        let (sums, rest) = rest.split_at_mut(sums);
        let (norm_sums, workspace) = rest.split_at_mut(norm_sums);
        let groups = self.groups.of_piece(piece);
        for index in groups.clone() {
            let group = self.groups.get(index);
            let dz = scratch::<E>(dz, group.output().len());
            let norm = group.norm(&given.norm, group.output());
            // SAFETY: each group has its own images.
            let residual = unsafe { to.residual.of_group(&group) };
            batch_norm::backward(
                self.isa,
                &norm,
                given.sums,
                given.count,
                &given.dy[group.output()],
                dz,
                residual,
            );

            let x = self.read(given.input, &group, x);
            if self.groups.num_groups() == 1 {
                group.conv.weight_gradient(x, dz, dw, workspace);
            } else {
                let finished = (index + 1 == groups.end).then_some(&mut *dw);
                let sums = &mut sums[..group.conv.weight_sums_lens()[0]];
                group.conv.add_weight_gradient(
                    (x, dz),
                    (sums, index > groups.start),
                    workspace,
                    finished,
                );
            }

            let Some(dx) = to.dx else { continue };
            // SAFETY: as above.
            let dx = unsafe { part_of(dx, group.input()) };
            let addend = given.addend.map_or(Addend::None, |addend| {
                Addend::Gradient(&addend[group.input()])
            });
            group
                .conv
                .data_gradient(dz, given.packed, addend, dx, workspace);
            if let Some(norm) = &given.input.norm {
                let (of_group, workspace) = doubles(norm_sums).split_at_mut(sums_len);
                batch_norm::backward_sums(
                    self.isa,
                    &group.norm(norm, group.input()),
                    dx,
                    of_group,
                    workspace,
                );
                add(input_sums, of_group);
            }
        }
    }

    /// Returns the input of the convolution of a group, in place or normalised into `scratch`.
    fn read<'a, E: Element>(
        &self,
        input: Input<'a, E>,
        group: &Group<'_>,
        floats: &'a mut [f32],
    ) -> &'a [E] {
        if let Some(x) = input.stored {
            return &x[group.input()];
        }
        let Some(norm) = input.norm else {
            panic!("layer: an input that is neither stored nor normalised here")
        };
        let rectifier = match norm.gate {
            Gate::Open => Rectifier::None,
            Gate::Recomputed => Rectifier::Relu,
            Gate::Recomputed6 => Rectifier::Relu6,
            Gate::Output(_) => panic!("layer: an input behind a residual is stored"),
        };
        let x = scratch(floats, group.input().len());
        batch_norm::normalize(
            self.isa,
            &norm.affine,
            &norm.x[group.input()],
            Residual::None,
            rectifier,
            x,
        );
        x
    }

    fn input_scratch_len(&self) -> usize {
        whole_lines(self.groups.most(|conv, _| conv.shape().input_len()))
    }

    fn forward_slot_len(&self) -> usize {
        self.input_scratch_len() + self.groups.most(Conv2d::forward_slots_len)
    }

    /// Returns a slot of the backward pass: dz, x, sums of the gradient of the weights, those of
    /// the normalisation, workspace.
    fn slot_lens(&self) -> [usize; 5] {
        let channels = self.whole.shape().in_channels;
        let [sums, scratch] = if self.groups.num_groups() == 1 {
            [0, self.whole.weight_gradient_workspace_len()]
        } else {
            [0, 1].map(|part| self.groups.most(|conv, _| conv.weight_sums_lens()[part]))
        };
        // A smaller group may be cut into more pieces.
        let norm_sums = self
            .groups
            .most(|conv, _| workspace_len(conv.shape().input_len() / channels, channels));
        [
            whole_lines(self.groups.most(|conv, _| conv.shape().output_len())),
            self.input_scratch_len(),
            whole_lines(sums),
            doubles_len(2 * channels + norm_sums),
            scratch.max(self.groups.most(Conv2d::data_gradient_slots_len)),
        ]
    }

    /// Returns the number of elements of the pieces' gradients, if there is more than one.
    fn partial_dw_len(&self) -> usize {
        let num_pieces = self.groups.num_pieces();
        if num_pieces > 1 {
            whole_lines(num_pieces * self.whole.shape().weight_len())
        } else {
            0
        }
    }

    /// Returns the number of elements of the pieces' sums for the normalisation before.
    fn partial_sums_len(&self) -> usize {
        doubles_len(self.groups.num_pieces() * 2 * self.whole.shape().in_channels)
    }
}

/// Outputs of the pieces of a backward pass.
struct Targets<E> {
    dx: Option<SharedMut<E>>,
    /// One a piece.
    dw: SharedMut,
    residual: SharedResidual<E>,
    /// One a piece.
    sums: SharedMut<f64>,
}

/// [`ResidualGradient`] for several groups.
enum SharedResidual<E> {
    None,
    Write(SharedMut<E>),
    WriteOptionA(ShortcutA, SharedMut<E>),
}

impl<E: Element> SharedResidual<E> {
    fn of(residual: ResidualGradient<'_, E>) -> Self {
        match residual {
            ResidualGradient::None => Self::None,
            ResidualGradient::Write(values) => Self::Write(SharedMut::new(values)),
            ResidualGradient::WriteOptionA(shape, values) => {
                Self::WriteOptionA(shape, SharedMut::new(values))
            }
        }
    }

    /// # Safety
    /// As [`part_of`].
    unsafe fn of_group<'a>(&self, group: &Group<'_>) -> ResidualGradient<'a, E> {
        // SAFETY: passed on.
        unsafe {
            match *self {
                Self::None => ResidualGradient::None,
                Self::Write(values) => ResidualGradient::Write(part_of(values, group.output())),
                Self::WriteOptionA(shape, values) => ResidualGradient::WriteOptionA(
                    ShortcutA {
                        num_images: group.images.len(),
                        ..shape
                    },
                    part_of(values, group.images_of(shape.image_in())),
                ),
            }
        }
    }
}

fn add(sums: &mut [f64], further: &[f64]) {
    sums.iter_mut()
        .zip(further)
        .for_each(|(sum, further)| *sum += further);
}
