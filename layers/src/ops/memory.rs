//! Memory for results and scratch of Lockstep's kernels on Flex.
//!
//! In: a number of values. Out: tensors over blocks of one arena, which all ranks of the process
//! share.
//! Invariant: after the first step the arena asks the system for no more memory.

use std::cell::Cell;
use std::sync::LazyLock;

use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{AllocationProperty, Bytes, DType, Shape, TensorData, bf16, f16};
use half::slice::HalfFloatSliceExt;
use kernels::Element;
use kernels::arena::{Arena, Buffer};
use kernels::copies::{convert, swap_axes};
use kernels::scratch::Scratch;
use kernels::simd::Isa;

/// Memory of the operations' results: one arena for all ranks of the process, filled by the first
/// step.
pub(super) static ARENA: LazyLock<Arena> = LazyLock::new(Arena::new);

thread_local! {
    static SCRATCH: Cell<Buffers> = const { Cell::new(Buffers { packed: Scratch::new(), workspace: Scratch::new() }) };
}

/// Buffers that no operation keeps.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) packed: Scratch,
    pub(super) workspace: Scratch,
}

/// Runs `work` with this thread's buffers, which the next operation uses again. A thread of a rayon
/// pool that waits for others' pieces may start another pass in between: that pass gets other
/// buffers.
pub(super) fn with_scratch<T>(work: impl FnOnce(&mut Buffers) -> T) -> T {
    let mut buffers = SCRATCH.take();
    let result = work(&mut buffers);
    SCRATCH.set(buffers);
    result
}

/// Returns the tensor in memory order.
pub(super) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    if tensor.dtype() == DType::F32 {
        f32::activations(tensor)
    } else {
        tensor.to_contiguous()
    }
}

/// Returns a view of one zero as a tensor of this shape and type.
pub(super) fn only_shape(tensor: &FlexTensor) -> FlexTensor {
    let zero = Flex::float_zeros(Shape::new([1; 4]), &tensor.device(), tensor.dtype().into());
    Flex::float_expand(zero, tensor.shape())
}

/// Returns the values of what [`contiguous`] returned.
pub(super) fn floats(contiguous: &FlexTensor) -> &[f32] {
    contiguous
        .as_slice()
        .expect("contiguous and f32: the input's type is checked, the others have the same")
}

/// Returns a tensor of few values.
pub(super) fn tensor<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(values, shape))
}

/// A type that Lockstep's kernels store activations in.
pub(super) trait Activation: Element + burn::tensor::Element + bytemuck::Pod {
    /// Returns the tensor contiguous and of this type.
    fn activations(tensor: FlexTensor) -> FlexTensor {
        let dtype = <Self as burn::tensor::Element>::dtype();
        match (tensor.dtype(), dtype) {
            (own, wanted) if own == wanted => {
                untransposed::<Self>(&tensor).unwrap_or_else(|| tensor.to_contiguous())
            }
            (DType::F16, DType::F32) => widened(&tensor.to_contiguous()),
            (DType::BF16, DType::F32) => {
                converted::<bf16, Self>(bf16::values(&tensor.to_contiguous()), tensor.shape())
            }
            _ => Flex::float_cast(tensor, dtype.into()).to_contiguous(),
        }
    }

    /// Returns the values of what [`Activation::activations`] returned.
    fn values(activations: &FlexTensor) -> &[Self] {
        activations.as_slice().expect("contiguous and of this type")
    }
}

impl<E: Element + burn::tensor::Element + bytemuck::Pod> Activation for E {}

/// Returns a copy in memory order of a tensor whose last two axes are exchanged in memory, which
/// burn copies many times slower; None for another tensor.
fn untransposed<E: Activation>(tensor: &FlexTensor) -> Option<FlexTensor> {
    let shape = tensor.shape();
    let &[.., rows, columns] = shape.as_slice() else {
        return None;
    };
    if tensor.is_contiguous() {
        return None;
    }
    let axes = shape.num_dims();
    let in_memory = tensor.transpose(axes - 2, axes - 1);
    let (start, end) = in_memory.layout().contiguous_offsets()?;
    let values = &in_memory.storage::<E>()[start..end];
    let mut copy = ARENA.take::<E>(values.len());
    let matrices = values.len() / (rows * columns);
    swap_axes([matrices, columns, rows, 1], values, &mut copy);
    Some(activation(copy, shape))
}

/// Widens a contiguous tensor of f16 to f32, by the processor's conversion (F16C) where it has
/// one.
fn widened(tensor: &FlexTensor) -> FlexTensor {
    let halves: &[f16] = tensor.as_slice().expect("contiguous and f16");
    let mut values = ARENA.take::<f32>(halves.len());
    halves.convert_to_f32_slice(&mut values);
    activation(values, tensor.shape())
}

/// Returns the values in another format.
pub(super) fn converted<A: Activation, B: Activation>(
    values: &[A],
    shape: impl Into<Shape>,
) -> FlexTensor {
    let mut to = ARENA.take::<B>(values.len());
    convert(Isa::detect(), values, &mut to);
    activation(to, shape)
}

/// Returns the tensor of f32 rounded to f16: what Lockstep's kernels compute of activations in f16.
pub(super) fn rounded_to_f16(tensor: FlexTensor) -> FlexTensor {
    let tensor = contiguous(tensor);
    let values = floats(&tensor);
    let mut halves = vec![f16::ZERO; values.len()];
    halves.convert_from_f32_slice(values);
    FlexTensor::from_data(TensorData::new(halves, tensor.shape()))
}

/// Returns a tensor over a block of the arena, which gets it back when the last clone of the tensor
/// is dropped. burn copies such a tensor before it writes in place.
pub(super) fn activation<E: Activation>(block: Buffer<E>, shape: impl Into<Shape>) -> FlexTensor {
    struct Owner<E: Element>(Buffer<E>);
    impl<E: Element> AsRef<[u8]> for Owner<E> {
        fn as_ref(&self) -> &[u8] {
            self.0.as_bytes()
        }
    }
    let bytes = Bytes::from_shared(
        bytes::Bytes::from_owner(Owner(block)),
        AllocationProperty::Native,
    );
    FlexTensor::from_data(TensorData::from_bytes(
        bytes,
        shape.into(),
        <E as burn::tensor::Element>::dtype(),
    ))
}

pub(super) fn inverse_std(variance: f32, epsilon: f64) -> f32 {
    (1.0 / (f64::from(variance) + epsilon).sqrt()) as f32
}

pub(super) fn inverse_stds(variances: &[f32], epsilon: f64) -> Vec<f32> {
    variances
        .iter()
        .map(|&variance| inverse_std(variance, epsilon))
        .collect()
}

pub(super) fn to_f32(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}
