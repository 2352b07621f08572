//! Positions of a module's parameters in one flat buffer.
//!
//! In: any burn module. Out: paths, shapes and offsets in module order, and flat copies to and from
//! the module.
//! Invariant: equal modules have equal layouts on every rank. Parameter ids are random in each
//! process and are never compared.

use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, TensorData};
use sha2::{Digest, Sha256};

use crate::CollectiveError;
use crate::on_device::{ElementOrder, place, tensors};

/// A parameter, or a running statistic, in the flat buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterEntry {
    /// Field names from the module's root, separated by dots, without enum variants:
    /// `layer1.0.conv1.weight`.
    pub path: String,
    /// burn's parameter id in this process.
    pub id: ParamId,
    /// Shape of the tensor.
    pub shape: Vec<usize>,
    /// Index of the first element in the flat buffer.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
}

impl ParameterEntry {
    /// Returns the indices of the elements in the flat buffer.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.len
    }
}

/// Some float tensors of a module, in module order, consecutive in one flat `f32` buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParameterLayout {
    entries: Vec<ParameterEntry>,
    num_elements: usize,
}

impl ParameterLayout {
    /// Returns the layout of the trainable parameters of `module`, in training or a
    /// [`Module::valid`] copy.
    ///
    /// Initialises parameters that are not yet initialised.
    pub fn new<M: Module>(module: &M) -> Self {
        Self::of(module, true)
    }

    /// Returns the layout of the other float tensors: norm statistics, and parameters frozen by
    /// `no_grad`.
    pub fn state<M: Module>(module: &M) -> Self {
        Self::of(module, false)
    }

    /// Returns the layout of only the norm statistics. Forward passes change them, so they may
    /// differ between ranks.
    pub fn statistics<M: Module>(module: &M) -> Self {
        // In burn, every parameter may require a gradient, but no running state may.
        Self::of(&module.clone().train().map(&mut RequireGradients), false)
    }

    /// Returns a layout of tensors with these paths and shapes, in this order, without a module.
    pub fn from_shapes(shapes: impl IntoIterator<Item = (String, Vec<usize>)>) -> Self {
        let mut layout = Self::default();
        for (path, shape) in shapes {
            layout.push(path, ParamId::new(), shape);
        }
        layout
    }

    /// Returns the tensors, in module order.
    pub fn entries(&self) -> &[ParameterEntry] {
        &self.entries
    }

    /// Returns the length of the flat buffer.
    pub fn num_elements(&self) -> usize {
        self.num_elements
    }

    /// Rejects entries with the same parameter id, such as a clone of a parameter in another
    /// module. A backward pass reports the gradient for only one of the entries.
    ///
    /// # Errors
    /// Returns an error with the first two entries that share an id.
    pub fn expect_unshared(&self) -> Result<(), CollectiveError> {
        let mut paths = HashMap::new();
        let shared = self
            .entries
            .iter()
            .find_map(|entry| Some((paths.insert(entry.id, &entry.path)?, &entry.path)));
        match shared {
            Some((first, second)) => Err(CollectiveError::Failed(format!(
                "{first} and {second} are one parameter, expected one for each. Let both places use one module, or give each its own parameter."
            ))),
            None => Ok(()),
        }
    }

    /// Returns a digest of paths, shapes and offsets, the same in every process.
    pub fn hash(&self) -> u64 {
        let mut digest = Sha256::new();
        for entry in &self.entries {
            digest.update((entry.path.len() as u64).to_le_bytes());
            digest.update(&entry.path);
            digest.update((entry.shape.len() as u64).to_le_bytes());
            for size in entry.shape.iter().chain([&entry.offset]) {
                digest.update((*size as u64).to_le_bytes());
            }
        }
        first_u64(digest)
    }

    fn of<M: Module>(module: &M, trainable: bool) -> Self {
        // `train` restores the gradient requirement that `valid` removes. It creates running states
        // without a gradient requirement.
        let mut lister = Lister {
            path: Path::default(),
            trainable,
            layout: Self::default(),
        };
        module.clone().train().visit(&mut lister);
        lister.layout
    }

    fn push(&mut self, path: String, id: ParamId, shape: Vec<usize>) {
        let len = shape.iter().product();
        self.entries.push(ParameterEntry {
            path,
            id,
            shape,
            offset: self.num_elements,
            len,
        });
        self.num_elements += len;
    }
}

/// Returns the tensors of `layout` in `module`, flat.
///
/// Norm statistics include the updates of all forward passes, even the last update, which burn
/// keeps pending.
///
/// # Panics
/// Panics if `layout` belongs to another module.
pub fn read<M: Module>(module: &M, layout: &ParameterLayout) -> Vec<f32> {
    let mut values = vec![0.0; layout.num_elements()];
    for (entry, tensor) in
        layout
            .entries()
            .iter()
            .zip(tensors(module, layout, ElementOrder::Module))
    {
        with_values(tensor, |own| values[entry.range()].copy_from_slice(own));
    }
    values
}

/// Returns `module` with the tensors of `layout` replaced by `values`. Ids, gradient requirements,
/// types and devices are unchanged.
///
/// Norm statistics are written to burn's running states, so clones of `module` that share these
/// states see the new values. Parameters of clones are unchanged.
///
/// # Panics
/// Panics if `layout` belongs to another module, or if `values` and the layout differ in length.
pub fn write<M: Module>(module: M, layout: &ParameterLayout, values: &[f32]) -> M {
    assert_eq!(
        values.len(),
        layout.num_elements(),
        "values and layout differ in length"
    );
    place(module, layout, ElementOrder::Module, |entry, device| {
        Tensor::from_data(
            TensorData::new(values[entry.range()].to_vec(), [entry.len]),
            device,
        )
    })
}

/// Names of the modules around the visited tensor. Empty for an enum variant, which is not part of
/// a path.
#[derive(Default)]
pub(crate) struct Path(Vec<String>);

impl Path {
    pub(crate) fn enter(&mut self, name: &str, container_type: &str) {
        self.0.push(if container_type.starts_with("Enum:") {
            String::new()
        } else {
            name.to_owned()
        });
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.0
            .iter()
            .map(String::as_str)
            .filter(|name| !name.is_empty())
    }

    pub(crate) fn exit(&mut self) {
        self.0.pop();
    }

    fn dotted(&self) -> String {
        self.names().collect::<Vec<_>>().join(".")
    }

    /// Returns true if the current path is `dotted`, without building a string for each tensor and
    /// step.
    fn is(&self, dotted: &str) -> bool {
        if self.names().next().is_none() {
            return dotted.is_empty();
        }
        dotted
            .split('.')
            .eq(self.names().flat_map(|name| name.split('.')))
    }
}

/// Position in a layout during a visit of its module.
pub(crate) struct Cursor<'a> {
    path: Path,
    layout: &'a ParameterLayout,
    next: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(layout: &'a ParameterLayout) -> Self {
        Self {
            path: Path::default(),
            layout,
            next: 0,
        }
    }

    pub(crate) fn enter(&mut self, name: &str, container_type: &str) {
        self.path.enter(name, container_type);
    }

    pub(crate) fn exit(&mut self) {
        self.path.exit();
    }

    /// Returns the path of the current tensor.
    pub(crate) fn path(&self) -> String {
        self.path.dotted()
    }

    /// Returns the entry of the current tensor, or `None` if the layout does not contain the
    /// tensor.
    pub(crate) fn take(&mut self) -> Option<&'a ParameterEntry> {
        let entry = self
            .layout
            .entries
            .get(self.next)
            .filter(|entry| self.path.is(&entry.path))?;
        self.next += 1;
        Some(entry)
    }

    /// Checks that the module contained all tensors of the layout.
    ///
    /// # Panics
    /// Panics if a tensor was missing.
    pub(crate) fn finish(&self) {
        if let Some(entry) = self.layout.entries.get(self.next) {
            panic!(
                "the module has no tensor {} at its place, expected the module the layout was made of",
                entry.path
            );
        }
    }
}

/// Passes the elements of a flat f32 tensor to `use_values`.
pub(crate) fn with_values<R>(tensor: Tensor<1>, use_values: impl FnOnce(&[f32]) -> R) -> R {
    use_values(tensor.into_data().as_slice().expect("the tensor is f32"))
}

/// Returns the first eight bytes of a digest.
pub(crate) fn first_u64(digest: Sha256) -> u64 {
    let bytes = digest.finalize();
    u64::from_le_bytes(std::array::from_fn(|index| bytes[index]))
}

struct RequireGradients;

impl ModuleMapper for RequireGradients {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.set_require_grad(true)
    }
}

struct Lister {
    path: Path,
    trainable: bool,
    layout: ParameterLayout,
}

impl ModuleVisitor for Lister {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() == self.trainable {
            self.layout.push(
                self.path.dotted(),
                param.id,
                param.shape().as_slice().to_vec(),
            );
        }
    }
}
