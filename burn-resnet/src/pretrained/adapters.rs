//! Conversion of a module's tensors to PyTorch's names and layouts, and back.
//!
//! In: a tensor and the module around it. Out: the same tensor under the other name, in the other
//! layout. A tensor that is read also gets the type of the module's tensor. Invariant: one
//! conversion undoes the other. burn-store knows most layers; the others are here. Names omit
//! variants of enums: `network.EffNet.stem` is `stem` if the whole model is in that enum.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param};
use burn::store::burn_pack::Tensor;
use burn::store::{
    BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleContext, ModuleSnapshot,
    PyTorchToBurnAdapter,
};
use burn::tensor::{Bool, DType, Int};

/// Returns PyTorch's name of a parameter if burn-store does not translate the names of its layer.
fn name_in_pytorch(parameter: &str, layer: &str) -> Option<&'static str> {
    match (layer, parameter) {
        ("Struct:InstanceNorm", "gamma") | ("Struct:PRelu", "alpha") => Some("weight"),
        ("Struct:InstanceNorm", "beta") => Some("bias"),
        _ => None,
    }
}

/// The conversion from a module to PyTorch.
#[derive(Clone, Debug)]
pub(super) struct ToPyTorch {
    /// The number of modules around an enum of networks. They are no part of a name.
    outer: usize,
}

impl ToPyTorch {
    pub(super) fn of<M: Module>(model: &M) -> Self {
        let mut ways = Ways::default();
        model.visit(&mut ways);
        Self {
            outer: ways.outer(),
        }
    }
}

impl ModuleAdapter for ToPyTorch {
    fn adapt(&self, tensor: Tensor, context: ModuleContext<'_>) -> Tensor {
        let mut tensor = BurnToPyTorchAdapter.adapt(tensor, context);
        for _ in 0..self.outer {
            tensor.name = tensor
                .name
                .split_once('.')
                .map_or_else(String::new, |(_, inner)| inner.to_owned());
        }
        let start = tensor.name.rfind('.').map_or(0, |dot| dot + 1);
        if let Some(name) = context
            .module_type()
            .and_then(|layer| name_in_pytorch(&tensor.name[start..], layer))
        {
            tensor.name.replace_range(start.., name);
        }
        tensor
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// The conversion from PyTorch to a module with these types by path. burn-store would give the
/// module the types of the file.
#[derive(Clone, Debug)]
pub(super) struct FromPyTorch(pub(super) Arc<HashMap<String, DType>>);

impl ModuleAdapter for FromPyTorch {
    fn adapt(&self, tensor: Tensor, context: ModuleContext<'_>) -> Tensor {
        let tensor = PyTorchToBurnAdapter.adapt(tensor, context);
        match self.0.get(&tensor.name) {
            Some(&dtype) if dtype.is_float() => FloatCastAdapter::to(dtype).adapt(tensor, context),
            _ => tensor,
        }
    }

    fn get_alternative_param_name(&self, parameter: &str, layer: &str) -> Option<String> {
        let own = || name_in_pytorch(parameter, layer).map(str::to_owned);
        PyTorchToBurnAdapter
            .get_alternative_param_name(parameter, layer)
            .or_else(own)
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// The modules around all tensors seen so far, from the outermost, each with whether it is a
/// variant of an enum.
#[derive(Default)]
struct Ways {
    present: Vec<(String, bool)>,
    shared: Option<Vec<(String, bool)>>,
}

impl Ways {
    fn tensor(&mut self) {
        match &mut self.shared {
            Some(shared) => {
                let len = shared
                    .iter()
                    .zip(&self.present)
                    .take_while(|(a, b)| a == b)
                    .count();
                shared.truncate(len);
            }
            None => self.shared = Some(self.present.clone()),
        }
    }

    /// Returns the number of modules around the innermost enum that all tensors are in.
    fn outer(&self) -> usize {
        let shared = self.shared.as_deref().unwrap_or_default();
        let variant = shared
            .iter()
            .rposition(|(_, is_variant)| *is_variant)
            .unwrap_or(0);
        shared[..variant]
            .iter()
            .filter(|(_, is_variant)| !is_variant)
            .count()
    }
}

impl ModuleVisitor for Ways {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.present
            .push((name.to_owned(), container_type.starts_with(VARIANT)));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.present.pop();
    }

    fn visit_float<const D: usize>(&mut self, _param: &Param<burn::tensor::Tensor<D>>) {
        self.tensor();
    }

    fn visit_int<const D: usize>(&mut self, _param: &Param<burn::tensor::Tensor<D, Int>>) {
        self.tensor();
    }

    fn visit_bool<const D: usize>(&mut self, _param: &Param<burn::tensor::Tensor<D, Bool>>) {
        self.tensor();
    }
}

/// The prefix of a container's type that marks a variant of an enum.
const VARIANT: &str = "Enum:";

/// A tensor of a module.
pub(super) struct OwnTensor {
    /// The path in the module.
    pub(super) path: String,
    /// The name in a file.
    pub(super) name: String,
    /// The shape in a file.
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
}

/// Returns the tensors of `model`, in module order.
pub(super) fn own_tensors<M: Module>(model: &M) -> Vec<OwnTensor> {
    let own = model.collect(None, None, false).into_iter();
    let named = model.collect(None, Some(Box::new(ToPyTorch::of(model))), true);
    own.zip(named)
        .map(|(own, named)| OwnTensor {
            path: own.name,
            name: named.name,
            shape: named.shape.as_slice().to_vec(),
            dtype: own.dtype,
        })
        .collect()
}
