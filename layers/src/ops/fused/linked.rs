//! A layer's normalisation on Flex as its readers see it, and the activations that the backward pass makes again.
//!
//! In: what a layer's forward pass knew. Out: the convolution's result and what the layer gave. What [`Recompute`] names is made when the first
//! backward pass asks for it, and given up when the layer's own ends; of a layer that is not trained nothing is.
//! Invariant: what is made again has the bits of the forward pass: the same kernels with the same statistics, in which no other rank has a part.
//! Source: Chen et al. 2016, arXiv 1604.06174.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::flex::FlexTensor;
use kernels::batch_norm::{self, Affine, Gate, Rectifier, Saved};
use kernels::layer::Input;

use super::call::LayerCall;
use super::flex::{call, convolve, output_shape};
use super::{FusedOptions, NormLink, Residual};
use crate::choices::Recompute;
use crate::ops::clock::{Kernel, time};
use crate::ops::memory::{ARENA, Activation, activation, floats, only_shape};

/// A normalisation in training.
#[derive(Debug)]
pub(in crate::ops) struct LinkedNorm {
    pub(in crate::ops) statistics: Statistics,
    pub(in crate::ops) rectifier: Rectifier,
    /// Whether something was added before it.
    pub(in crate::ops) has_residual: bool,
    /// Its input, `[N, H, W, C]`.
    convolved: Convolved,
    /// `None`: whoever reads what it gave holds that.
    output: Option<OutputAgain>,
}

/// What a normalisation does to each channel.
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

/// An activation that is made when asked for.
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
    /// What was convolved; of its shape only, where the link to the layer before has it.
    input: FlexTensor,
    weight: FlexTensor,
    options: FusedOptions,
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
    /// By the layer behind the link.
    Of(Arc<NormLink>),
}

impl LinkedNorm {
    /// Of a normalisation without a residual, whose input and output are held.
    pub(in crate::ops) fn held(
        convolved: FlexTensor,
        statistics: Statistics,
        rectifier: Rectifier,
    ) -> Self {
        let (convolved, output) = (Convolved::Held(convolved), None);
        Self {
            statistics,
            rectifier,
            has_residual: false,
            convolved,
            output,
        }
    }

    /// Of a layer that was called so, with what its options say about memory.
    pub(super) fn of_layer(
        call: LayerCall,
        options: &FusedOptions,
        [input, weight, residual, convolved]: [&FlexTensor; 4],
        statistics: Statistics,
    ) -> Self {
        let residual = match (options.residual, &options.residual_from) {
            (Residual::None, _) => Some(ResidualAgain::None),
            (Residual::Identity, Some(link))
                if norm_of(link).is_some_and(Self::makes_output_again) =>
            {
                Some(ResidualAgain::Of(Arc::clone(link)))
            }
            // Held as a rule, by the layer that made it for its gate, or by its readers.
            (Residual::Identity, Some(_)) => Some(ResidualAgain::Held(residual.clone())),
            // Nobody else would hold it; or the stage before would have to be made again to begin with.
            (Residual::Identity, None) | (Residual::ShortcutA, _) => None,
        };
        let output =
            residual.filter(|_| options.recompute == Recompute::Norms && !leaves_raw(options));
        Self {
            statistics,
            rectifier: options.rectifier,
            has_residual: options.residual != Residual::None,
            convolved: if options.recompute == Recompute::Convolutions {
                // Not to itself, nor to what only other passes need.
                let options = FusedOptions {
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
            output: output.map(|residual| OutputAgain {
                call,
                residual,
                made: Made::default(),
            }),
        }
    }

    pub(super) fn makes_convolved_again(&self) -> bool {
        matches!(self.convolved, Convolved::Again(_))
    }

    pub(super) fn makes_output_again(&self) -> bool {
        self.output.is_some()
    }

    /// The normalisation's input, `[N, H, W, C]`.
    pub(in crate::ops) fn convolved<E: Activation>(&self) -> FlexTensor {
        match &self.convolved {
            Convolved::Held(convolved) => convolved.clone(),
            Convolved::Again(again) => again.made.get_or(|| again.make::<E>()),
        }
    }

    /// What the layer gave, if readers do not hold it.
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
            let residual = residual
                .as_ref()
                .map_or(batch_norm::Residual::None, |residual| {
                    batch_norm::Residual::Identity(E::values(residual))
                });
            normalised(call, &self.statistics, E::values(&convolved), residual)
        }))
    }

    /// When the layer's own backward pass is over, nobody will ask again.
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
        let call = call::<E>(&self.input, &self.weight, &self.options);
        let raw = raw_before(&self.options).map(|(_, norm)| norm.convolved::<E>());
        let input = Read::given::<E>(raw.as_ref().unwrap_or(&self.input), &self.options);
        let mut moments = vec![0.0; 2 * call.shape.out_channels];
        activation(
            convolve::<E>(&call, &input, &self.weight, &mut moments),
            output_shape(&call.shape),
        )
    }
}

/// What a layer gives, of its convolution's result.
pub(super) fn normalised<E: Activation>(
    call: &LayerCall,
    statistics: &Statistics,
    convolved: &[E],
    residual: batch_norm::Residual<'_, E>,
) -> FlexTensor {
    let mut output = ARENA.take::<E>(convolved.len());
    time(Kernel::Normalisation, Some(call), || {
        batch_norm::normalize(
            call.isa,
            &statistics.affine(),
            convolved,
            residual,
            call.rectifier,
            &mut output,
        );
    });
    activation(output, output_shape(&call.shape))
}

/// The normalisation behind a link, if the layer that it leads to filled it.
pub(super) fn norm_of(link: &NormLink) -> Option<&LinkedNorm> {
    link.norm.get()
}

/// The normalisation that made a layer's input, with the link to it, if that one's layer filled the link.
pub(super) fn before(options: &FusedOptions) -> Option<(&NormLink, &LinkedNorm)> {
    options
        .input
        .as_deref()
        .and_then(|link| Some((link, norm_of(link)?)))
}

/// The same, where the layer has to normalise what it reads.
fn raw_before(options: &FusedOptions) -> Option<(&NormLink, &LinkedNorm)> {
    before(options).filter(|(link, norm)| reads_raw(link, norm))
}

/// Whether a layer's output stays the convolution's result, for its reader to normalise.
pub(super) fn leaves_raw(options: &FusedOptions) -> bool {
    options.residual == Residual::None
        && options.output.as_ref().is_some_and(|link| link.may_be_raw)
}

/// What a backward pass is given for a layer's input: itself, or only its shape where the link to the layer before has it.
pub(super) fn kept_input(input: &FlexTensor, options: &FusedOptions) -> FlexTensor {
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

/// Whether what stands behind the link is the normalisation's input, for its one reader to normalise.
pub(super) fn reads_raw(link: &NormLink, norm: &LinkedNorm) -> bool {
    link.may_be_raw && !norm.has_residual
}

/// What a layer reads, with what its link tells.
pub(super) struct Read<'a> {
    /// Contiguous.
    values: FlexTensor,
    /// The normalisation that made it, if its layer filled the link, with that one's input.
    norm: Option<(&'a NormLink, &'a LinkedNorm, FlexTensor)>,
}

impl<'a> Read<'a> {
    /// In the forward pass, which asks for the normalisation only where it has to do it.
    pub(super) fn given<E: Activation>(input: &FlexTensor, options: &'a FusedOptions) -> Self {
        let values = E::activations(input.clone());
        let norm = raw_before(options).map(|(link, norm)| (link, norm, values.clone()));
        Self { values, norm }
    }

    /// In the backward pass; `kept` is of [`kept_input`], and the sums of the norm's gradient are wanted where the input's is.
    pub(super) fn again<E: Activation>(
        kept: &FlexTensor,
        options: &'a FusedOptions,
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
