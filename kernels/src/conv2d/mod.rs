//! Two-dimensional convolution, channels-last: forward, data gradient, weight gradient.
//!
//! In: activations `[N, H, W, C]`, packed weights, a workspace. [`Conv2d::pack_forward`] and
//! [`Conv2d::pack_data_gradient`] pack weights `[C_out, C_in / groups, K_h, K_w]` after each
//! change.
//! Out: the result in the caller's slice; every element is written. Activations and their gradients
//! are f32 or bf16 ([`Element`]), widened when read and rounded when stored. Everything else is
//! f32, except the factors of bf16 dot products ([`Conv2d::new`]).
//! Invariant: equal bits for any number of threads. A workspace for fewer threads only reduces the
//! number of threads.

mod bias;
mod blocks;
mod depthwise;
mod direct;
mod dot;
mod gradient_pieces;
mod pass;
mod plan;
mod shape;
pub(crate) mod statistics;
#[cfg(test)]
mod tests;
#[cfg(any(test, all(target_arch = "x86_64", target_os = "linux")))]
mod tiles;
mod transpose;
mod winograd;

pub use bias::{bias_gradient, bias_gradient_workspace_len};
pub use shape::Conv2dShape;

use crate::pieces::slots_len;
use crate::scratch::assert_on_line;
use crate::simd::{Isa, Task, vectorized};
use crate::{Element, Storage};
use bias::AddBias;
use direct::pack::Pack;
use gradient_pieces::AddPieces;
use pass::{AfterPiece, Operands, Pass, WeightOperands, WeightPass, WeightTarget};
use plan::DirectPlan;
use statistics::{Statistics, partials_len, reduce_partials};
use transpose::Weights;
use winograd::pack::PackKernels;

/// Algorithm of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Winograd if it supports the shape and is faster, otherwise direct.
    Auto,
    /// Direct convolution, for every shape: register blocks over padded rows.
    Direct,
    /// Winograd's F(4x4, 3x3), only for 3x3 with stride 1. It needs a quarter of the
    /// multiplications, and its rounding error is several times that of direct convolution.
    Winograd,
}

/// Work on each piece of the output while the piece is in the cache.
#[derive(Debug)]
pub enum Epilogue<'a> {
    /// Nothing.
    None,
    /// Adds a bias `[C_out]`.
    Bias(&'a [f32]),
    /// Receives the moments of each channel of the stored output, `[2, C_out]`: sums, then centred
    /// sums of squares.
    Moments(&'a mut [f64]),
}

/// Values added to each piece of the input's gradient while the piece is in the cache.
#[derive(Clone, Copy, Debug)]
pub enum Addend<'a, E = f32> {
    /// Nothing.
    None,
    /// The gradient from another use of the input, in the shape of the input.
    Gradient(&'a [E]),
    /// A bias `[C_in]`, if the pass computes a transposed convolution.
    Bias(&'a [f32]),
}

/// The plan of a convolution of one shape. It is cheap to make and holds no buffers.
#[derive(Clone, Copy, Debug)]
pub struct Conv2d {
    shape: Conv2dShape,
    isa: Isa,
    forward: Pass,
    data_gradient: Pass,
    weight_gradient: WeightPass,
}

impl Conv2d {
    /// Plans `shape` for an instruction set and activations of this storage. Results of different
    /// algorithms and instruction sets differ by rounding. There is one algorithm for depthwise
    /// convolution, in f32.
    ///
    /// A plan for f32 accepts activations of any storage, and multiplies bf16 activations as f32.
    /// With bf16 the passes without Winograd use dot products of bf16, if the instruction set has
    /// them ([`Isa::Avx512Bf16`], [`Isa::Amx`]) and they are faster. Packing then rounds the
    /// weights to bf16. Sums are f32, and subnormal values count as zero. If a window has an
    /// infinity, the result may be a NaN. The gradient of the weights also uses products of bf16
    /// with [`Isa::Amx`], and without Winograd with [`Isa::Avx512Bf16`]; otherwise it uses f32.
    /// With [`Isa::Amx`] a value that is not finite may make all gradients of its channel wrong.
    ///
    /// Groups of 1, 4 or 8 channels have kernels that compute each group separately: for one
    /// channel with sides of 3, 5, 7 or 9, otherwise of 3, with stride 1 or 2. Other groups of
    /// fewer than 16 channels are computed several at a time, with products with zero between them:
    /// a value that is not finite may make results of the neighbouring groups wrong.
    ///
    /// # Panics
    /// If the shape is invalid: an extent is zero, [`Conv2dShape::groups`] do not divide the
    /// channels, the stride is not 1 to 4, the padding is not less than the kernel, or the kernel
    /// is larger than the padded image. If activations or weights exceed the length limit of a
    /// slice. If `algorithm` is `Winograd` and the shape is not 3x3 with stride 1. A plan for bf16
    /// may panic on activations of f32.
    #[must_use]
    pub fn new(shape: Conv2dShape, algorithm: Algorithm, isa: Isa, storage: Storage) -> Self {
        shape.assert_valid();
        if shape.is_depthwise() {
            let [forward, data_gradient] = [
                depthwise::DepthwisePlan::forward(&shape),
                depthwise::DepthwisePlan::data_gradient(&shape),
            ];
            let weight_gradient = WeightPass::Depthwise(depthwise::GradientPlan::new(&shape));
            let forward = Pass::Depthwise(forward);
            let data_gradient = Pass::Depthwise(data_gradient);
            return Self {
                shape,
                isa,
                forward,
                data_gradient,
                weight_gradient,
            };
        }
        let supported = winograd::plan::WinogradPlan::supports(&shape);
        assert!(
            algorithm != Algorithm::Winograd || supported,
            "winograd: expected 3x3 with stride 1, got {shape:?}"
        );
        let [of_forward, of_data] = [
            winograd::plan::WinogradPlan::forward,
            winograd::plan::WinogradPlan::data_gradient,
        ]
        .map(|plan| supported.then(|| plan(&shape)));
        let wins = |plan: Option<winograd::plan::WinogradPlan>, per_instruction| match algorithm {
            Algorithm::Auto => plan.is_some_and(|plan| plan.wins(per_instruction)),
            Algorithm::Direct => false,
            Algorithm::Winograd => true,
        };
        let pass = |winograd: Option<winograd::plan::WinogradPlan>, plan| {
            let direct = Pass::direct(plan, isa, storage);
            match winograd {
                Some(plan) if wins(winograd, direct.per_instruction()) => Pass::Winograd(plan),
                _ => direct,
            }
        };
        Self {
            shape,
            isa,
            forward: pass(of_forward, DirectPlan::forward(&shape)),
            data_gradient: pass(of_data, DirectPlan::data_gradient(&shape)),
            weight_gradient: match WeightPass::tiles(&shape, isa, storage) {
                Some(tiles) if algorithm != Algorithm::Winograd => tiles,
                _ if wins(of_forward, 1) && wins(of_data, 1) => {
                    WeightPass::Winograd(winograd::weight::WinogradWeightPlan::new(&shape))
                }
                _ => WeightPass::direct(&shape, isa, storage),
            },
        }
    }

    /// Plans direct convolution of bf16 by the emulation of tiles if they can be filled, else as
    /// [`Conv2d::new`]; None if a pass would be without dot products.
    #[cfg(test)]
    fn with_emulated_tiles(shape: Conv2dShape, isa: Isa) -> Option<Self> {
        let mut conv = Self::new(shape, Algorithm::Direct, isa, Storage::Bf16);
        let pass = |plan, otherwise| dot::Dot::emulated(plan).map_or(otherwise, Pass::Dot);
        conv.forward = pass(DirectPlan::forward(&shape), conv.forward);
        conv.data_gradient = pass(DirectPlan::data_gradient(&shape), conv.data_gradient);
        conv.weight_gradient =
            WeightPass::EmulatedTiles(tiles::gradient::TileWeightPlan::new(&shape));
        [&conv.forward, &conv.data_gradient]
            .iter()
            .all(|pass| matches!(pass, Pass::Dot(_)))
            .then_some(conv)
    }

    /// Returns the shape of the plan.
    #[must_use]
    pub fn shape(&self) -> &Conv2dShape {
        &self.shape
    }

    /// Returns the number of elements of the weights packed for the forward pass.
    #[must_use]
    pub fn packed_forward_len(&self) -> usize {
        self.forward.packed_len()
    }

    /// Returns the number of elements of the weights packed for the data gradient.
    #[must_use]
    pub fn packed_data_gradient_len(&self) -> usize {
        self.data_gradient.packed_len()
    }

    /// Packs `weights` (`[C_out, C_in / groups, K_h, K_w]`) for [`Conv2d::forward`].
    ///
    /// # Panics
    /// If a length is not the one stated, or packed weights do not start on a cache line.
    pub fn pack_forward(&self, weights: &[f32], packed: &mut [f32]) {
        self.pack(&self.forward, weights, packed, false);
    }

    /// Packs `weights` (`[C_out, C_in / groups, K_h, K_w]`) for [`Conv2d::data_gradient`].
    ///
    /// # Panics
    /// If a length is not the one stated, or packed weights do not start on a cache line.
    pub fn pack_data_gradient(&self, weights: &[f32], packed: &mut [f32]) {
        self.pack(&self.data_gradient, weights, packed, true);
    }

    fn pack(&self, pass: &Pass, weights: &[f32], packed: &mut [f32], is_gradient: bool) {
        let shape = &self.shape;
        assert_eq!(
            weights.len(),
            shape.weight_len(),
            "convolution: length of the weights"
        );
        assert_eq!(
            packed.len(),
            pass.packed_len(),
            "convolution: length of the packed weights"
        );
        assert_on_line("convolution: packed weights", [packed]);
        match pass {
            Pass::Depthwise(plan) => plan.pack(weights, packed),
            Pass::Direct(plan) => blocks::each(shape, weights, packed, |shape, weights, packed| {
                self.isa.run(Pack {
                    shape,
                    plan,
                    weights,
                    packed,
                });
            }),
            Pass::Dot(dot) => blocks::each(shape, weights, packed, |shape, weights, packed| {
                dot.pack(self.isa, shape, weights, packed);
            }),
            Pass::Winograd(_) => {
                let mut channels = [shape.in_channels, shape.out_channels];
                let mut strides = [9, 9 * shape.in_channels];
                if is_gradient {
                    channels.reverse();
                    strides.reverse();
                }
                self.isa.run(PackKernels {
                    weights: Weights {
                        values: weights,
                        taps: shape.taps(),
                        in_channels: channels[0],
                        out_channels: channels[1],
                        in_stride: strides[0],
                        out_stride: strides[1],
                    },
                    packed,
                    mirrored: is_gradient,
                });
            }
        }
    }

    /// Returns the number of workspace elements with which [`Conv2d::forward`] uses every thread of
    /// the current rayon pool. It is the same with and without the statistics epilogue.
    #[must_use]
    pub fn forward_workspace_len(&self) -> usize {
        self.forward_partials_len() + self.forward_slots_len(rayon::current_num_threads())
    }

    /// Returns the number of workspace elements with which [`Conv2d::data_gradient`] uses every
    /// thread of the current rayon pool.
    #[must_use]
    pub fn data_gradient_workspace_len(&self) -> usize {
        self.data_gradient_slots_len(rayon::current_num_threads())
    }

    /// Returns the number of workspace elements with which [`Conv2d::weight_gradient`] uses every
    /// thread of the current rayon pool.
    #[must_use]
    pub fn weight_gradient_workspace_len(&self) -> usize {
        self.weight_gradient
            .plan()
            .workspace_len(rayon::current_num_threads())
    }

    /// Computes the output `y` (`[N, H_out, W_out, C_out]`) of `x` (`[N, H, W, C_in]`), and runs
    /// the epilogue.
    ///
    /// # Panics
    /// If a length is not the one stated, or packed weights or workspace do not start on a cache
    /// line.
    #[inline(never)]
    pub fn forward<E: Element>(
        &self,
        x: &[E],
        packed: &[f32],
        y: &mut [E],
        workspace: &mut [f32],
        epilogue: Epilogue<'_>,
    ) {
        assert_on_line(
            "convolution: packed weights, workspace",
            [packed, workspace],
        );
        let moments = match epilogue {
            Epilogue::None => return self.forward_pieces(x, packed, y, workspace, &|_, _, _| ()),
            Epilogue::Bias(bias) => {
                assert_eq!(
                    bias.len(),
                    self.shape.out_channels,
                    "convolution: length of the bias"
                );
                let add = |_, _, rows: &mut [E]| vectorized(self.isa, AddBias { bias, rows });
                return self.forward_pieces(x, packed, y, workspace, &add);
            }
            Epilogue::Moments(moments) => moments,
        };
        let channels = self.shape.out_channels;
        let num_pieces = self.forward.num_pieces();
        assert_eq!(
            moments.len(),
            2 * channels,
            "convolution: length of the moments"
        );
        let (partials, workspace) = workspace.split_at_mut(self.forward_partials_len());
        let statistics = Statistics::new(self.isa, partials, num_pieces, channels);
        self.forward_pieces(x, packed, y, workspace, &|piece, _, rows| {
            statistics.of_piece(piece, rows)
        });
        reduce_partials(partials, num_pieces, moments);
    }

    /// Computes the gradient `dx` (`[N, H, W, C_in]`) of the input from `dy` (`[N, H_out, W_out,
    /// C_out]`), plus the addend.
    ///
    /// # Panics
    /// If a length is not the one stated, or packed weights or workspace do not start on a cache
    /// line.
    #[inline(never)]
    pub fn data_gradient<E: Element>(
        &self,
        dy: &[E],
        packed: &[f32],
        addend: Addend<'_, E>,
        dx: &mut [E],
        workspace: &mut [f32],
    ) {
        assert_on_line(
            "convolution: packed weights, workspace",
            [packed, workspace],
        );
        let operands = Operands {
            input: dy,
            packed,
            output: dx,
            workspace,
        };
        operands.assert_lens([
            self.shape.output_len(),
            self.shape.input_len(),
            self.packed_data_gradient_len(),
        ]);
        match addend {
            Addend::None => self.data_gradient.run(self.isa, operands, &|_, _, _| ()),
            Addend::Gradient(addend) => {
                assert_eq!(
                    addend.len(),
                    self.shape.input_len(),
                    "convolution: length of the addend"
                );
                self.data_gradient.run(self.isa, operands, &|_, start, dx| {
                    vectorized(
                        self.isa,
                        Add {
                            addend: &addend[start..start + dx.len()],
                            dx,
                        },
                    );
                });
            }
            Addend::Bias(bias) => {
                assert_eq!(
                    bias.len(),
                    self.shape.in_channels,
                    "convolution: length of the bias"
                );
                self.data_gradient.run(self.isa, operands, &|_, _, rows| {
                    vectorized(self.isa, AddBias { bias, rows })
                });
            }
        }
    }

    /// Computes the gradient of the weights from `x` and `dy`, and overwrites `dw` (`[C_out, C_in,
    /// K_h, K_w]`) with it.
    ///
    /// # Panics
    /// If a length is not the one stated, or packed weights or workspace do not start on a cache
    /// line.
    #[inline(never)]
    pub fn weight_gradient<E: Element>(
        &self,
        x: &[E],
        dy: &[E],
        dw: &mut [f32],
        workspace: &mut [f32],
    ) {
        assert_on_line("convolution: workspace", [workspace]);
        self.weight_gradient.run(
            self.isa,
            WeightOperands {
                x,
                dy,
                target: WeightTarget::Gradient { dw, workspace },
            },
        );
    }

    /// Returns the number of pieces of the forward pass.
    pub(crate) fn num_forward_pieces(&self) -> usize {
        self.forward.num_pieces()
    }

    /// Runs [`Conv2d::forward`] with a workspace of slots only; `after_piece(piece, first element,
    /// elements)` is called on each finished piece of the output.
    pub(crate) fn forward_pieces<E: Element>(
        &self,
        x: &[E],
        packed: &[f32],
        y: &mut [E],
        slots: &mut [f32],
        after_piece: AfterPiece<'_, E>,
    ) {
        let operands = Operands {
            input: x,
            packed,
            output: y,
            workspace: slots,
        };
        operands.assert_lens([
            self.shape.input_len(),
            self.shape.output_len(),
            self.packed_forward_len(),
        ]);
        self.forward.run(self.isa, operands, after_piece);
    }

    /// Returns the number of elements of the slots of so many threads.
    pub(crate) fn forward_slots_len(&self, num_threads: usize) -> usize {
        slots_len(num_threads, self.forward.slot_len())
    }

    /// Returns the number of elements of the slots of so many threads.
    pub(crate) fn data_gradient_slots_len(&self, num_threads: usize) -> usize {
        slots_len(num_threads, self.data_gradient.slot_len())
    }

    /// Returns the number of elements of the sums, and of the scratch, of
    /// [`Conv2d::add_weight_gradient`].
    pub(crate) fn weight_sums_lens(&self) -> [usize; 2] {
        self.weight_gradient.plan().sums_lens()
    }

    /// Adds the products of these images to the sums of the gradient of the weights, or sets them;
    /// writes the gradient of all images so far if `dw` is given. Uses only the calling thread.
    pub(crate) fn add_weight_gradient<E: Element>(
        &self,
        (x, dy): (&[E], &[E]),
        (sums, accumulate): (&mut [f32], bool),
        scratch: &mut [f32],
        dw: Option<&mut [f32]>,
    ) {
        let target = WeightTarget::Sums {
            sums,
            accumulate,
            scratch,
            dw,
        };
        self.weight_gradient
            .run(self.isa, WeightOperands { x, dy, target });
    }

    fn forward_partials_len(&self) -> usize {
        partials_len(self.forward.num_pieces(), self.shape.out_channels)
    }
}

/// Computes `dw` = the sum of the gradients in `parts`, one behind the other, in their order.
pub(crate) fn add_weight_gradients(isa: Isa, parts: &[f32], dw: &mut [f32]) {
    isa.run(AddPieces { parts, dw });
}

/// `dx += addend`.
struct Add<'a, E> {
    addend: &'a [E],
    dx: &'a mut [E],
}

impl<E: Element> Task for Add<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (dx, addend) in self.dx.iter_mut().zip(self.addend) {
            *dx = E::from_f32(dx.to_f32() + addend.to_f32());
        }
    }
}
