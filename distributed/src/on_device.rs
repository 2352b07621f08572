//! Tensors of a layout on their device. No data pass through host memory.
//!
//! In: a module and its layout. Out: flat, detached tensors on the module's device, and the module
//! with other tensors.
//! Invariant: the functions move handles and read no element, so they never wait for the device.

use std::{array, slice};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Gradients, Shape, Tensor, TensorData};

use crate::layout::Cursor;
use crate::replica::{ParameterEntry, ParameterLayout};

/// Order of elements in a flat tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementOrder {
    /// Order of the module's tensors.
    Module,
    /// `[O, H, W, I]` for tensors of four dimensions (`[O, I, H, W]` in the module). A GPU's
    /// convolutions read weights and write gradients in this order without a copy. Other tensors
    /// have the order of `Module`.
    ChannelsLast,
}

impl ElementOrder {
    /// # Panics
    /// Panics if the shapes of tensor and entry differ.
    fn flat<const D: usize>(self, tensor: Tensor<D>, entry: &ParameterEntry) -> Tensor<1> {
        assert_eq!(
            tensor.shape().as_slice(),
            entry.shape,
            "{}: tensor and layout differ in shape",
            entry.path
        );
        let ordered = if self.moves(D) {
            tensor.permute(array::from_fn(|axis| [0, 2, 3, 1][axis]))
        } else {
            tensor
        };
        ordered.reshape([entry.len]).cast(FloatDType::F32)
    }

    /// # Panics
    /// Panics if `flat` and `shape` differ in their number of elements.
    fn shaped<const D: usize>(self, flat: Tensor<1>, shape: Shape) -> Tensor<D> {
        if !self.moves(D) {
            return flat.reshape(shape);
        }
        let ordered: [usize; D] = array::from_fn(|axis| shape[[0, 2, 3, 1][axis]]);
        flat.reshape(ordered)
            .permute(array::from_fn(|axis| [0, 3, 1, 2][axis]))
    }

    fn moves(self, num_dimensions: usize) -> bool {
        self == Self::ChannelsLast && num_dimensions == 4
    }
}

/// Returns the tensors of `layout` in `module`, each flat, in this order and in f32.
///
/// Norm statistics include the updates of all forward passes so far.
///
/// # Panics
/// Panics if `layout` belongs to another module.
pub fn tensors<M: Module>(
    module: &M,
    layout: &ParameterLayout,
    order: ElementOrder,
) -> Vec<Tensor<1>> {
    // `valid` applies pending updates of running states.
    let values = taken(&module.valid(), layout, order, Source::Values);
    values
        .into_iter()
        .map(|tensor| tensor.expect("a parameter has a value"))
        .collect()
}

/// Returns `module` with the tensors of `layout` replaced by `tensors`, flat in this order. Ids,
/// shapes, gradient requirements and types are unchanged. The function is the device version of
/// [`write`](crate::replica::write).
///
/// # Panics
/// Panics if `layout` belongs to another module, or if a tensor and its entry differ in their
/// number of elements.
pub fn replace<M: Module>(
    module: M,
    layout: &ParameterLayout,
    order: ElementOrder,
    tensors: Vec<Tensor<1>>,
) -> M {
    assert_eq!(
        tensors.len(),
        layout.entries().len(),
        "tensors and layout differ in number"
    );
    let mut tensors = tensors.into_iter();
    place(module, layout, order, |_, _| {
        tensors
            .next()
            .expect("there are as many tensors as entries")
    })
}

/// Returns `module` with each tensor of `layout` replaced by the result of `make`, flat in this
/// order. The arguments of `make` are the entry and the device without autodiff.
pub(crate) fn place<M: Module>(
    module: M,
    layout: &ParameterLayout,
    order: ElementOrder,
    make: impl FnMut(&ParameterEntry, &Device) -> Tensor<1>,
) -> M {
    // A pending update would overwrite the new tensors at the next forward pass. `valid` applies
    // pending updates.
    drop(module.valid());
    let mut placer = Placer {
        cursor: Cursor::new(layout),
        order,
        make,
    };
    let module = module.map(&mut placer);
    placer.cursor.finish();
    module
}

/// Removes the gradients of `layout`'s parameters from the tape, each flat, in this order and in
/// f32. A gradient is `None` if the tape does not contain it.
///
/// # Panics
/// Panics if `layout` belongs to another module.
pub fn take_gradients<M: Module>(
    module: &M,
    layout: &ParameterLayout,
    order: ElementOrder,
    gradients: Gradients,
) -> Vec<Option<Tensor<1>>> {
    taken(module, layout, order, Source::Tape(gradients))
}

/// Removes gradients like [`take_gradients`], but from the container for burn's optimizers.
///
/// # Panics
/// Panics if `layout` belongs to another module.
pub(crate) fn take_params<M: Module>(
    module: &M,
    layout: &ParameterLayout,
    params: GradientsParams,
) -> Vec<Option<Tensor<1>>> {
    taken(module, layout, ElementOrder::Module, Source::Params(params))
}

/// Returns the flat gradients of `layout` in the container for burn's optimizers, without those
/// that are `removed`. An empty `removed` keeps all.
///
/// # Panics
/// Panics if `layout` belongs to another module.
pub(crate) fn to_params<M: Module>(
    module: &M,
    layout: &ParameterLayout,
    gradients: &[f32],
    removed: &[bool],
) -> GradientsParams {
    let each = Registered {
        gradients,
        removed: removed.iter(),
        params: GradientsParams::new(),
    };
    walk(module, layout, each).params
}

/// Ids of a layout's tensors in a module.
pub(crate) struct Identities {
    /// burn's ids, in the order of the layout.
    pub(crate) ids: Vec<ParamId>,
    /// Path of a parameter that requires a gradient and is not in the layout.
    pub(crate) unlisted: Option<String>,
}

/// # Panics
/// Panics if `layout` belongs to another module.
pub(crate) fn identities<M: Module>(module: &M, layout: &ParameterLayout) -> Identities {
    let ids = Vec::with_capacity(layout.entries().len());
    walk(
        module,
        layout,
        Identities {
            ids,
            unlisted: None,
        },
    )
}

impl EachTensor for Identities {
    fn visit<const D: usize>(&mut self, param: &Param<Tensor<D>>, _: &ParameterEntry) {
        self.ids.push(param.id);
    }

    fn visit_unlisted<const D: usize>(&mut self, param: &Param<Tensor<D>>, cursor: &Cursor<'_>) {
        if param.is_require_grad() {
            self.unlisted = Some(cursor.path());
        }
    }
}

/// An action on each tensor of a module.
trait EachTensor {
    fn visit<const D: usize>(&mut self, param: &Param<Tensor<D>>, entry: &ParameterEntry);

    /// Visits a tensor that is not in the layout.
    fn visit_unlisted<const D: usize>(&mut self, _: &Param<Tensor<D>>, _: &Cursor<'_>) {}
}

/// Calls `each` with the tensors of `module`.
///
/// # Panics
/// Panics if `layout` belongs to another module.
fn walk<M: Module, V: EachTensor>(module: &M, layout: &ParameterLayout, each: V) -> V {
    let mut walk = Walk {
        cursor: Cursor::new(layout),
        each,
    };
    module.visit(&mut walk);
    walk.cursor.finish();
    walk.each
}

struct Walk<'a, V> {
    cursor: Cursor<'a>,
    each: V,
}

impl<V: EachTensor> ModuleVisitor for Walk<'_, V> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.cursor.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.cursor.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        match self.cursor.take() {
            Some(entry) => self.each.visit(param, entry),
            None => self.each.visit_unlisted(param, &self.cursor),
        }
    }
}

/// Source of the tensors of a walk.
enum Source {
    Values,
    Tape(Gradients),
    Params(GradientsParams),
}

struct Taken {
    source: Source,
    order: ElementOrder,
    tensors: Vec<Option<Tensor<1>>>,
}

fn taken<M: Module>(
    module: &M,
    layout: &ParameterLayout,
    order: ElementOrder,
    source: Source,
) -> Vec<Option<Tensor<1>>> {
    let each = Taken {
        source,
        order,
        tensors: Vec::with_capacity(layout.entries().len()),
    };
    walk(module, layout, each).tensors
}

impl EachTensor for Taken {
    fn visit<const D: usize>(&mut self, param: &Param<Tensor<D>>, entry: &ParameterEntry) {
        let tensor = match &mut self.source {
            Source::Values => Some(param.val().inner()),
            Source::Tape(gradients) => param.val().grad_remove(gradients),
            Source::Params(params) => params.remove::<D>(param.id),
        };
        let flat = tensor.map(|tensor| self.order.flat(tensor, entry));
        self.tensors.push(flat);
    }
}

struct Registered<'a> {
    gradients: &'a [f32],
    removed: slice::Iter<'a, bool>,
    params: GradientsParams,
}

impl EachTensor for Registered<'_> {
    fn visit<const D: usize>(&mut self, param: &Param<Tensor<D>>, entry: &ParameterEntry) {
        // The tensors are visited in the order of the layout.
        if self.removed.next() == Some(&true) {
            return;
        }
        let tensor = param.val();
        // The parameter was frozen after the layout's creation. Optimizers skip parameters without
        // a gradient.
        if tensor.is_autodiff() && !param.is_require_grad() {
            return;
        }
        let data = TensorData::new(self.gradients[entry.range()].to_vec(), tensor.shape());
        let gradient = Tensor::<D>::from_data(data, &tensor.device().inner());
        self.params
            .register(param.id, gradient.cast(FloatDType::from(tensor.dtype())));
    }
}

struct Placer<'a, F> {
    cursor: Cursor<'a>,
    order: ElementOrder,
    make: F,
}

impl<F: FnMut(&ParameterEntry, &Device) -> Tensor<1>> ModuleMapper for Placer<'_, F> {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.cursor.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.cursor.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(entry) = self.cursor.take() else {
            return param;
        };
        param.map(|tensor| {
            assert_eq!(
                tensor.shape().as_slice(),
                entry.shape,
                "{}: tensor and layout differ in shape",
                entry.path
            );
            let own = (self.make)(entry, &tensor.device().inner());
            let placed = self
                .order
                .shaped::<D>(own, tensor.shape())
                .cast(FloatDType::from(tensor.dtype()));
            let placed = if tensor.is_autodiff() {
                placed.autodiff()
            } else {
                placed
            };
            placed.set_require_grad(tensor.is_require_grad())
        })
    }
}
