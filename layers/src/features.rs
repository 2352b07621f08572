//! Activations between layers, computed when their readers are known, so that several layers become
//! one operation.
//!
//! In: modules applied to features one after the other, as in PyTorch.
//! Out: `[N, H, W, C]`.
//! Invariant: the result is that of modules which compute immediately. A convolution waits for the
//! normalisation, residual and ReLU after it; this layer waits for its reader. Only a single reader
//! may normalise its input. Activations without a reader are not computed, on any rank.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Add, Div, Mul, Sub};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use burn::module::ParamId;
use burn::nn::BatchNorm;
use burn::tensor::{FloatDType, Tensor};

use crate::choices::{Activations, Computation};
use crate::context::PassContext;
use crate::elementwise::Elementwise;
use crate::layer::{Convolved, Normalised, Skip};
use crate::norm::{expect_channels, expect_values, folded, takes_batch_statistics};
use crate::ops::single::{Operation, computes, on_both, on_features};
use crate::ops::{NormLink, stock};
use kernels::activation::Function;
use kernels::batch_norm::Rectifier;

thread_local! {
    /// Pending features of this thread that will update the statistics of a normalisation, by the
    /// normalisation's scale.
    static WAITING: RefCell<Vec<(ParamId, Weak<RefCell<State>>)>> = const { RefCell::new(Vec::new()) };
}

/// Activations `[N, H, W, C]` on their way through a network, computed when they are read.
///
/// Clones share their values. `into` converts a tensor to features, and features to a tensor.
#[derive(Clone)]
pub struct Features(Rc<RefCell<State>>);

enum State {
    Ready(Values),
    Convolved(Box<Convolved>),
    Normalised(Box<Normalised>),
    /// Shortcut A of these values, padded to this number of channels.
    Shortcut(Values, usize),
    /// Being computed; stays so after a panic.
    Taken,
}

/// Computed features, with what their readers need to walk over them as seldom as they can.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pub(crate) tensor: Tensor<4>,
    pub(crate) link: Option<Arc<NormLink>>,
}

impl From<Tensor<4>> for Values {
    fn from(tensor: Tensor<4>) -> Self {
        Self { tensor, link: None }
    }
}

impl Values {
    /// Converts to the number format of activations; wider formats than f32 stay. A rounded value
    /// has no link: its gradient is another tensor.
    pub(crate) fn in_format(self, activations: Activations) -> Self {
        let wanted = format(&self.tensor, activations);
        self.cast(wanted)
    }

    /// Keeps the link if the number format stays.
    fn cast(self, dtype: FloatDType) -> Self {
        if dtype == FloatDType::from(self.tensor.dtype()) {
            self
        } else {
            self.tensor.cast(dtype).into()
        }
    }
}

/// Returns the number format in which such activations are computed; wider formats than f32 stay.
pub(crate) fn format(tensor: &Tensor<4>, activations: Activations) -> FloatDType {
    match (activations, FloatDType::from(tensor.dtype())) {
        (Activations::F32, FloatDType::F16 | FloatDType::BF16) => FloatDType::F32,
        (Activations::F32, other) => other,
        (Activations::Bf16, _) => FloatDType::BF16,
        (Activations::F16, _) => FloatDType::F16,
    }
}

impl State {
    fn evaluate(self) -> Values {
        match self {
            Self::Ready(values) => values,
            Self::Convolved(convolved) => convolved.evaluate().into(),
            Self::Normalised(layer) => layer.evaluate(NormLink::new(false)),
            Self::Shortcut(Values { tensor, .. }, channels) => {
                let zero_channels = (channels - tensor.dims()[3]) / 2;
                stock::subsample_and_pad(tensor, zero_channels).into()
            }
            Self::Taken => panic!("features: expected values, but computing them panicked before"),
        }
    }

    /// Returns the scale of the normalisation whose statistics this computation updates.
    fn moves(&self) -> Option<ParamId> {
        let Self::Normalised(layer) = self else {
            return None;
        };
        takes_batch_statistics(&layer.norm, &layer.input.tensor).then_some(layer.norm.gamma.id)
    }
}

impl From<State> for Features {
    fn from(state: State) -> Self {
        let moved = state.moves();
        let features = Rc::new(RefCell::new(state));
        if let Some(scale) = moved {
            WAITING.with_borrow_mut(|waiting| {
                waiting.retain(|(_, features)| features.strong_count() > 0);
                waiting.push((scale, Rc::downgrade(&features)));
            });
        }
        Self(features)
    }
}

/// Computes what waits to move the statistics of `norm`, which is used once more: they move in the
/// order of the program, not of the readers.
fn compute_waiting(norm: &BatchNorm) {
    let of_norm = |(scale, features): &(ParamId, Weak<RefCell<State>>)| {
        features
            .upgrade()
            .filter(|features| *scale == norm.gamma.id && features.borrow().moves().is_some())
    };
    let waiting: Vec<_> =
        WAITING.with_borrow(|waiting| waiting.iter().filter_map(of_norm).collect());
    waiting
        .into_iter()
        .for_each(|features| drop(Features(features).values()));
}

impl From<Tensor<4>> for Features {
    fn from(tensor: Tensor<4>) -> Self {
        State::Ready(tensor.into()).into()
    }
}

impl From<Values> for Features {
    fn from(values: Values) -> Self {
        State::Ready(values).into()
    }
}

impl From<Features> for Tensor<4> {
    fn from(features: Features) -> Self {
        features.into_values().tensor
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0.borrow() {
            State::Ready(values) => write!(f, "Features({:?})", values.tensor.dims()),
            _ => f.write_str("Features(not computed yet)"),
        }
    }
}

impl Features {
    /// Computes the features and returns their shape, `[N, H, W, C]`. All ranks must make this
    /// call.
    pub fn dims(&self) -> [usize; 4] {
        self.values().tensor.dims()
    }

    /// Returns the features one after the other along the channels, in the number format of the
    /// first.
    ///
    /// # Shapes
    /// Each `[N, H, W, C_i]`. Returns `[N, H, W, sum of C_i]`.
    ///
    /// # Panics
    /// If there are no features, or other extents than channels differ.
    pub fn cat(features: Vec<Self>) -> Self {
        let all: Vec<Values> = features.into_iter().map(Self::into_values).collect();
        let first = &all
            .first()
            .expect("features: cat needs at least one")
            .tensor;
        let dtype = FloatDType::from(first.dtype());
        let extents = first.dims();
        let computation = PassContext::current().computation;
        let is_ours = computes(first, &computation) && dtype != FloatDType::F16;
        let all = all.into_iter().map(|values| {
            let dims = values.tensor.dims();
            assert!(
                dims[..3] == extents[..3] && dims[3] > 0,
                "features: cat: expected {:?} and channels, got {dims:?}",
                &extents[..3]
            );
            values.cast(dtype)
        });
        if is_ours {
            let join = |left, right| on_both(left, right, Operation::Cat, computation.isa);
            return all
                .reduce(join)
                .expect("features: cat needs at least one")
                .into();
        }
        stock::cat(all.map(|values| values.tensor).collect()).into()
    }

    /// Returns shortcut A: every second row and column, padded to `channels` channels with zeros,
    /// half of them first and half last (He et al. 2015, arXiv 1512.03385, section 3.3). It has no
    /// parameters.
    ///
    /// # Shapes
    /// `[N, H, W, C]` to `[N, ceil(H / 2), ceil(W / 2), channels]`.
    ///
    /// # Panics
    /// If the number of added channels is odd.
    pub fn subsample_and_pad(self, channels: usize) -> Self {
        let values = self.into_values();
        let [.., channels_in] = values.tensor.dims();
        let fits = channels >= channels_in && (channels - channels_in).is_multiple_of(2);
        assert!(
            fits,
            "shortcut A: expected {channels_in} channels and an even number more, got {channels}"
        );
        State::Shortcut(values, channels).into()
    }

    pub(crate) fn convolved(convolved: Convolved) -> Self {
        State::Convolved(Box::new(convolved)).into()
    }

    pub(crate) fn normalised(self, norm: &BatchNorm) -> Self {
        compute_waiting(norm);
        match self.into_state() {
            State::Convolved(convolved) if convolved.can_be_fused() => {
                State::Normalised(Box::new(convolved.normalised(norm))).into()
            }
            other => {
                let context = PassContext::current();
                let input = other.evaluate().tensor;
                expect_channels(norm, input.dims()[3], || input.dims());
                expect_values(norm, &input);
                if !takes_batch_statistics(norm, &input) {
                    return in_f32(input, |input| {
                        let (scale, shift) = folded(norm, &input, context.hook.as_ref());
                        stock::scale_shift(input, scale, shift)
                    })
                    .into();
                }
                let is_ours = computes(&input, &context.computation);
                let layer = |input| Normalised::without_convolution(context, norm, input);
                if is_ours {
                    return State::Normalised(Box::new(layer(input))).into();
                }
                in_f32(input, |input| {
                    layer(input).evaluate(NormLink::new(false)).tensor
                })
                .into()
            }
        }
    }

    /// Returns the values for a layer with the norm `next`. The values may be raw, to be normalised
    /// by that layer, if it is the only reader and has the same settings.
    pub(crate) fn into_values_for(self, next: &BatchNorm, computation: &Computation) -> Values {
        match self.into_state() {
            State::Normalised(layer) if matches!(layer.skip, Skip::None) => {
                let may_be_raw = layer.may_stay_raw(next, computation);
                layer.evaluate(NormLink::new(may_be_raw))
            }
            other => other.evaluate(),
        }
    }

    /// Returns the features with this rectifier in the same operation, or the unchanged features if
    /// the operation cannot have it.
    pub(crate) fn rectified(self, rectifier: Rectifier) -> Result<Self, Self> {
        match self.into_state() {
            State::Normalised(mut layer)
                if layer.rectifier == Rectifier::None && layer.takes(rectifier) =>
            {
                layer.rectifier = rectifier;
                Ok(State::Normalised(layer).into())
            }
            other => Err(other.into()),
        }
    }

    pub(crate) fn into_values(self) -> Values {
        self.into_state().evaluate()
    }

    /// Returns the pending computation, if no other clone holds these features; else their values.
    fn into_state(self) -> State {
        match Rc::try_unwrap(self.0) {
            Ok(only) => only.into_inner(),
            Err(shared) => State::Ready(Self(shared).values()),
        }
    }

    fn values(&self) -> Values {
        let values = self.0.replace(State::Taken).evaluate();
        self.0.replace(State::Ready(values.clone()));
        values
    }
}

impl Add for Features {
    type Output = Self;

    /// Returns the sum. If one side ends in a normalisation, the sum and a ReLU after it become
    /// part of that layer's operation.
    fn add(self, other: Self) -> Self {
        match (self.into_state(), other.into_state()) {
            (State::Normalised(layer), other) if layer.can_take_residual() => {
                with_residual(layer, other)
            }
            (other, State::Normalised(layer)) if layer.can_take_residual() => {
                with_residual(layer, other)
            }
            (left, right) => sum(left.evaluate(), right.evaluate()).into(),
        }
    }
}

/// An operation of two sides, each values or one factor for several of them.
macro_rules! arithmetic {
    ($($name:ident::$method:ident by $compute:ident $doc:literal),*) => {
        $(
            impl $name for Features {
                type Output = Self;

                #[doc = concat!("The ", $doc, " of each value; sides of shape 1 in an axis are repeated. Of two number formats it is computed in f32, \
                    and given in that of the pass.")]
                fn $method(self, other: Self) -> Self {
                    $compute(self.into_values(), other.into_values().tensor, $name::$method).into()
                }
            }

            impl $name<Tensor<4>> for Features {
                type Output = Self;

                #[doc = concat!("As of features: the ", $doc, " with a factor of each channel, `[1, 1, 1, C]`, or of each image and channel, \
                    `[N, 1, 1, C]`, in any number format.")]
                fn $method(self, other: Tensor<4>) -> Self {
                    self.$method(Self::from(other))
                }
            }
        )*
    };
}

arithmetic!(Sub::sub by binary "difference", Mul::mul by product "product", Div::div by binary "quotient");

fn with_residual(mut layer: Box<Normalised>, residual: State) -> Features {
    let [n, height, width, channels] = layer.out_dims();
    layer.skip = match residual {
        State::Shortcut(values, of) if of == channels && halved(&values) == [n, height, width] => {
            Skip::ShortcutA(values)
        }
        other => {
            let values = other.evaluate();
            if values.tensor.dims() != [n, height, width, channels] {
                return sum(layer.evaluate(NormLink::new(false)), values).into();
            }
            Skip::Identity(values)
        }
    };
    State::Normalised(layer).into()
}

/// Adds, equal shapes by Lockstep's kernel.
fn sum(left: Values, right: Values) -> Values {
    let computation = PassContext::current().computation;
    let [of_left, of_right] = [&left.tensor, &right.tensor];
    let is_ours = computes(of_left, &computation)
        && of_left.dims() == of_right.dims()
        && of_left.dtype() == of_right.dtype()
        && FloatDType::from(of_left.dtype()) != FloatDType::F16;
    if !is_ours {
        return binary(left, right.tensor, Add::add);
    }
    on_both(left, right, Operation::Add, computation.isa)
}

/// Multiplies, with a factor of each image and channel by Lockstep's kernel.
fn product(
    left: Values,
    right: Tensor<4>,
    operation: impl FnOnce(Tensor<4>, Tensor<4>) -> Tensor<4>,
) -> Values {
    let computation = PassContext::current().computation;
    let x = &left.tensor;
    let [n, .., channels] = x.dims();
    let has_factors = right.dims() == [n, 1, 1, channels];
    let has_format = format(x, computation.activations) == FloatDType::from(x.dtype());
    if !(has_factors && has_format && computes(x, &computation)) {
        return binary(left, right, operation);
    }
    let factors = widened(right).reshape([n, channels]).into_dispatch();
    let parameters = [Some(factors), None];
    on_features(left, parameters, Operation::Scale, computation.isa)
}

/// Applies an operation in the memory order of the operands; for two number formats in f32, then
/// rounded to the format of the pass.
fn binary(
    left: Values,
    right: Tensor<4>,
    operation: impl FnOnce(Tensor<4>, Tensor<4>) -> Tensor<4>,
) -> Values {
    let left = left.tensor;
    let computation = PassContext::current().computation;
    let is_alike = left.dtype() == right.dtype();
    let [left, right] = if is_alike {
        [left, right]
    } else {
        [left, right].map(widened)
    };
    let result = if computes(&left, &computation) {
        operation(left, right)
    } else {
        stock::binary(left, right, operation)
    };
    let result = Values::from(result);
    if is_alike {
        result
    } else {
        result.in_format(computation.activations)
    }
}

/// Returns the images, rows and columns of shortcut A.
fn halved(values: &Values) -> [usize; 3] {
    let [n, height, width, _] = values.tensor.dims();
    [n, height.div_ceil(2), width.div_ceil(2)]
}

/// Returns `max(x, 0)`.
pub fn relu(features: impl Into<Features>) -> Features {
    features.into().apply(Function::Relu)
}

/// Applies burn's operations in f32 to a tensor of 16 bits, and converts the result back to its
/// number format. burn's operations need operands of one format, and parameters and factors are
/// f32.
///
/// ```
/// # use burn::tensor::{Device, FloatDType, Tensor};
/// # let x = Tensor::<4>::ones([2, 3, 3, 5], &Device::flex());
/// # let scale = Tensor::<4>::ones([1, 1, 1, 5], &Device::flex());
/// let y = layers::in_f32(x.cast(FloatDType::BF16), |x| x * scale);
/// ```
pub fn in_f32<const D: usize>(
    tensor: Tensor<D>,
    operation: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    let dtype = FloatDType::from(tensor.dtype());
    operation(widened(tensor)).cast(dtype)
}

/// Returns the tensor in the number format that the [`PassContext`] chooses for activations.
///
/// A layer computes in the format of its input. So a model calls this on its input, and casts its
/// output to f32.
pub fn in_activations<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match PassContext::current().computation.activations {
        Activations::F32 => tensor,
        Activations::Bf16 => tensor.cast(FloatDType::BF16),
        Activations::F16 => tensor.cast(FloatDType::F16),
    }
}

/// Widens a tensor that is narrower than f32 to f32.
pub(crate) fn widened<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    match FloatDType::from(tensor.dtype()) {
        FloatDType::F16 | FloatDType::BF16 => tensor.cast(FloatDType::F32),
        _ => tensor,
    }
}
