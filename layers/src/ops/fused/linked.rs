//! A layer's normalisation on Flex as its readers see it, and the activations that the backward
//! pass computes again.
//!
//! In: the tensors of a layer's forward pass. Out: the convolution's result and the layer's output.
//! [`Recompute`] names the activations that are computed when the first backward pass needs them,
//! and dropped when the layer's own backward pass ends.
//! Invariant: a recomputed activation has the bits of the forward pass: the same kernels with the
//! same statistics, without any other rank.
//! Source: Chen et al. 2016, arXiv 1604.06174.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use kernels::batch_norm::{self, Affine, Gate, Rectifier, Residual, Saved};
use kernels::layer::Input;
use kernels::simd::Isa;

use super::call::LayerCall;
use super::flex::{call, convolve, output_shape};
use super::{LayerOptions, NormLink, ResidualKind};
use crate::choices::Recompute;
use crate::ops::clock::{Kernel, time};
use crate::ops::memory::{ARENA, Activation, activation, floats, only_shape};

/// A normalisation in training.
#[derive(Debug)]
pub(in crate::ops) struct LinkedNorm {
    pub(in crate::ops) statistics: Statistics,
    pub(in crate::ops) rectifier: Rectifier,
    /// True if a residual was added after it.
    pub(in crate::ops) has_residual: bool,
    /// Input, `[N, H, W, C]`.
    convolved: Convolved,
    /// `None`: the readers of the output hold it.
    output: Option<OutputAgain>,
}

/// Statistics and parameters of each channel.
#[derive(Clone, Debug)]
pub(in crate::ops) struct Statistics {
    pub(in crate::ops) mean: Vec<f32>,
    pub(in crate::ops) invstd: Vec<f32>,
    /// Contiguous, as `beta`.
    pub(in crate::ops) gamma: FlexTensor,
    pub(in crate::ops) beta: FlexTensor,
}

impl Statistics {
    pub(in crate::ops) fn affine(&self) -> Affine<'_> {
        Affine {
            mean: &self.mean,
            invstd: &self.invstd,
            gamma: floats(&self.gamma),
            beta: floats(&self.beta),
        }
    }
}

/// An activation that is computed when it is needed.
#[derive(Debug, Default)]
struct Made(Mutex<Option<FlexTensor>>);

impl Made {
    fn get_or(&self, make: impl FnOnce() -> FlexTensor) -> FlexTensor {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(make)
            .clone()
    }

    fn give_up(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[derive(Debug)]
enum Convolved {
    Held(FlexTensor),
    Again(Box<ConvolvedAgain>),
}

#[derive(Debug)]
struct ConvolvedAgain {
    /// Input of the convolution; only its shape if the link to the layer before has it.
    input: FlexTensor,
    weight: FlexTensor,
    options: LayerOptions,
    made: Made,
}

#[derive(Debug)]
struct OutputAgain {
    call: LayerCall,
    residual: ResidualAgain,
    made: Made,
}

#[derive(Clone, Debug)]
enum ResidualAgain {
    None,
    Held(FlexTensor),
    /// Computed again by the layer behind the link.
    Of(Arc<NormLink>),
}

impl LinkedNorm {
    /// Returns the normalisation of a layer; the options decide which activations it holds. Without
    /// a convolution it holds all.
    pub(super) fn of_layer(
        call: Option<LayerCall>,
        options: &LayerOptions,
        [input, weight, residual, convolved]: [&FlexTensor; 4],
        statistics: Statistics,
    ) -> Self {
        let residual = match (options.residual, &options.residual_from) {
            (ResidualKind::None, _) => Some(ResidualAgain::None),
            (ResidualKind::Identity, Some(link))
                if norm_of(link).is_some_and(Self::makes_output_again) =>
            {
                Some(ResidualAgain::Of(Arc::clone(link)))
            }
            // Usually held already, by the layer that made it for its gate, or by its readers.
            (ResidualKind::Identity, Some(_)) => Some(ResidualAgain::Held(residual.clone())),
            // No other layer would hold it, or the stage before would have to be computed again.
            (ResidualKind::Identity, None) | (ResidualKind::ShortcutA, _) => None,
        };
        let makes_output_again = options.recompute == Recompute::Norms && !leaves_raw(options);
        let output = match (call, residual) {
            (Some(call), Some(residual)) if makes_output_again => Some(OutputAgain {
                call,
                residual,
                made: Made::default(),
            }),
            _ => None,
        };
        Self {
            statistics,
            rectifier: options.rectifier,
            has_residual: options.residual != ResidualKind::None,
            convolved: if call.is_some() && options.recompute == Recompute::Convolutions {
                // Without links to itself and to tensors that only other passes need.
                let options = LayerOptions {
                    hooked: None,
                    residual_from: None,
                    output: None,
                    ..options.clone()
                };
                let input = if raw_before(&options).is_some() {
                    only_shape(input)
                } else {
                    input.clone()
                };
                let made = Made::default();
                Convolved::Again(Box::new(ConvolvedAgain {
                    input,
                    weight: weight.clone(),
                    options,
                    made,
                }))
            } else {
                Convolved::Held(convolved.clone())
            },
            output,
        }
    }

    pub(super) fn makes_convolved_again(&self) -> bool {
        matches!(self.convolved, Convolved::Again(_))
    }

    pub(super) fn makes_output_again(&self) -> bool {
        self.output.is_some()
    }

    /// Returns the normalisation's input, `[N, H, W, C]`.
    pub(in crate::ops) fn convolved<E: Activation>(&self) -> FlexTensor {
        match &self.convolved {
            Convolved::Held(convolved) => convolved.clone(),
            Convolved::Again(again) => again.made.get_or(|| again.make::<E>()),
        }
    }

    /// Returns the layer's output, if readers do not hold it.
    pub(super) fn output<E: Activation>(&self) -> Option<FlexTensor> {
        let OutputAgain {
            call,
            residual,
            made,
        } = self.output.as_ref()?;
        Some(made.get_or(|| {
            let convolved = self.convolved::<E>();
            let residual = match residual {
                ResidualAgain::None => None,
                ResidualAgain::Held(residual) => Some(E::activations(residual.clone())),
                ResidualAgain::Of(link) => norm_of(link).and_then(Self::output::<E>),
            };
            let residual = residual.as_ref().map_or(Residual::None, |residual| {
                Residual::Identity(E::values(residual))
            });
            normalised(
                call.isa,
                call.rectifier,
                Some(call),
                &self.statistics,
                &convolved,
                residual,
            )
        }))
    }

    /// Drops the recomputed activations at the end of the layer's own backward pass.
    pub(super) fn give_up(&self) {
        if let Convolved::Again(again) = &self.convolved {
            again.made.give_up();
        }
        if let Some(output) = &self.output {
            output.made.give_up();
        }
    }
}

impl ConvolvedAgain {
    fn make<E: Activation>(&self) -> FlexTensor {
        let call = call::<E>(&self.input, &self.weight, &self.options)
            .expect("only a convolution is made again");
        let raw = raw_before(&self.options).map(|(_, norm)| norm.convolved::<E>());
        let input = Read::given::<E>(raw.as_ref().unwrap_or(&self.input), &self.options);
        let mut moments = vec![0.0; 2 * call.shape.out_channels];
        activation(
            convolve::<E>(&call, &input, &self.weight, &mut moments),
            output_shape(&call.shape),
        )
    }
}

/// Returns a normalisation with its residual and rectifier.
pub(super) fn normalised<E: Activation>(
    isa: Isa,
    rectifier: Rectifier,
    call: Option<&LayerCall>,
    statistics: &Statistics,
    convolved: &FlexTensor,
    residual: Residual<'_, E>,
) -> FlexTensor {
    let x = E::values(convolved);
    let mut output = ARENA.take::<E>(x.len());
    time(Kernel::Normalisation, call, || {
        batch_norm::normalize(
            isa,
            &statistics.affine(),
            x,
            residual,
            rectifier,
            &mut output,
        );
    });
    activation(output, convolved.shape())
}

/// Returns the normalisation behind a link, if its layer filled the link.
pub(super) fn norm_of(link: &NormLink) -> Option<&LinkedNorm> {
    link.norm.get()
}

/// Returns the normalisation that made a layer's input, with the link to it, if its layer filled
/// the link.
pub(super) fn before(options: &LayerOptions) -> Option<(&NormLink, &LinkedNorm)> {
    options
        .input
        .as_deref()
        .and_then(|link| Some((link, norm_of(link)?)))
}

/// Returns [`before`] if the layer has to normalise its input.
fn raw_before(options: &LayerOptions) -> Option<(&NormLink, &LinkedNorm)> {
    before(options).filter(|(link, norm)| reads_raw(link, norm))
}

/// Returns whether a layer's output stays the convolution's result, for its reader to normalise.
pub(super) fn leaves_raw(options: &LayerOptions) -> bool {
    options.residual == ResidualKind::None
        && options.output.as_ref().is_some_and(|link| link.may_be_raw)
}

/// Returns a layer's input for its backward pass: itself, or only its shape if the link to the
/// layer before has it.
pub(super) fn kept_input(input: &FlexTensor, options: &LayerOptions) -> FlexTensor {
    let is_again = before(options).is_some_and(|(link, norm)| {
        if reads_raw(link, norm) {
            norm.makes_convolved_again()
        } else {
            norm.makes_output_again()
        }
    });
    if is_again {
        only_shape(input)
    } else {
        input.clone()
    }
}

/// Returns whether the tensor behind the link is the normalisation's input, for its one reader to
/// normalise.
pub(super) fn reads_raw(link: &NormLink, norm: &LinkedNorm) -> bool {
    link.may_be_raw && !norm.has_residual
}

/// Input of a layer, with the normalisation that made it.
pub(super) struct Read<'a> {
    /// Contiguous.
    values: FlexTensor,
    /// Normalisation that made the input, if its layer filled the link, with its own input.
    norm: Option<(&'a NormLink, &'a LinkedNorm, FlexTensor)>,
}

impl<'a> Read<'a> {
    /// Reads in the forward pass, which needs the normalisation only to compute it.
    pub(super) fn given<E: Activation>(input: &FlexTensor, options: &'a LayerOptions) -> Self {
        let values = E::activations(input.clone());
        let norm = raw_before(options).map(|(link, norm)| (link, norm, values.clone()));
        Self { values, norm }
    }

    /// Reads in the backward pass, from the result of [`kept_input`].
    ///
    /// The sums of the norm's gradient are needed if the input's gradient is.
    pub(super) fn again<E: Activation>(
        kept: &FlexTensor,
        options: &'a LayerOptions,
        needs_input: bool,
    ) -> Self {
        let Some((link, norm)) = before(options) else {
            return Self {
                values: E::activations(kept.clone()),
                norm: None,
            };
        };
        if reads_raw(link, norm) {
            let convolved = norm.convolved::<E>();
            return Self {
                values: convolved.clone(),
                norm: Some((link, norm, convolved)),
            };
        }
        let values = norm
            .output::<E>()
            .unwrap_or_else(|| E::activations(kept.clone()));
        Self {
            values,
            norm: needs_input.then(|| (link, norm, norm.convolved::<E>())),
        }
    }

    pub(super) fn link(&self) -> Option<&'a NormLink> {
        self.norm.as_ref().map(|(link, ..)| *link)
    }

    pub(super) fn input<E: Activation>(&self) -> Input<'_, E> {
        let values = E::values(&self.values);
        let Some((link, norm, convolved)) = &self.norm else {
            return Input {
                stored: Some(values),
                norm: None,
            };
        };
        let gate = Gate::of(norm.rectifier, norm.has_residual, values);
        Input {
            stored: (!reads_raw(link, norm)).then_some(values),
            norm: Some(Saved {
                affine: norm.statistics.affine(),
                x: E::values(convolved),
                gate,
            }),
        }
    }
}
