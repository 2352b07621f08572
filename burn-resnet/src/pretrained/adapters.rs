//! Tensors of a module as PyTorch has them, and back.
//!
//! In: a tensor, and the module in which it stands. Out: the same under the other's name, in the other's layout; what comes in also in
//! the type that the module's own tensor has. Invariant: one undoes the other. burn-store knows most layers, the rest is here.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::Module;
use burn::store::burn_pack::Tensor;
use burn::store::{
    BurnToPyTorchAdapter, FloatCastAdapter, ModuleAdapter, ModuleContext, ModuleSnapshot, PyTorchToBurnAdapter,
};
use burn::tensor::DType;

/// What PyTorch calls a parameter of a layer whose names burn-store does not translate.
fn name_in_pytorch(parameter: &str, layer: &str) -> Option<&'static str> {
    match (layer, parameter) {
        ("Struct:InstanceNorm", "gamma") | ("Struct:PRelu", "alpha") => Some("weight"),
        ("Struct:InstanceNorm", "beta") => Some("bias"),
        _ => None,
    }
}

/// From a module to PyTorch.
#[derive(Clone, Debug)]
pub(super) struct ToPyTorch;

impl ModuleAdapter for ToPyTorch {
    fn adapt(&self, tensor: Tensor, context: ModuleContext<'_>) -> Tensor {
        let mut tensor = BurnToPyTorchAdapter.adapt(tensor, context);
        let start = tensor.name.rfind('.').map_or(0, |dot| dot + 1);
        if let Some(name) = context.module_type().and_then(|layer| name_in_pytorch(&tensor.name[start..], layer)) {
            tensor.name.replace_range(start.., name);
        }
        tensor
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// From PyTorch to a module, of which these are the types by path. burn-store would give it those of the file.
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
        PyTorchToBurnAdapter.get_alternative_param_name(parameter, layer).or_else(own)
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// A tensor of a module.
pub(super) struct OwnTensor {
    /// In the module.
    pub(super) path: String,
    /// In a file.
    pub(super) name: String,
    pub(super) dtype: DType,
}

/// The tensors of `model`, in module order.
pub(super) fn own_tensors<M: Module>(model: &M) -> Vec<OwnTensor> {
    let own = model.collect(None, None, false).into_iter();
    let named = model.collect(None, Some(Box::new(ToPyTorch)), false);
    own.zip(named).map(|(own, named)| OwnTensor { path: own.name, name: named.name, dtype: own.dtype }).collect()
}
