//! The tensors of a pickle, by the path of keys and attributes to each.
//!
//! In: a pickle. Out: for each tensor its path, type, shape, strides and place in a storage, or the
//! reason that it has no such form.
//! Invariant: all other values of the pickle are ignored. The time is bounded by the number of
//! values.

use std::sync::Arc;

use burn::tensor::{BoolStore, DType};

use super::legacy;
use super::pickle::{Id, Node, Object, Pickle};

/// The most nested containers around a tensor.
const MAX_DEPTH: usize = 200;

/// The most values that are visited on the way to all tensors. Containers may share parts, so there
/// can be more paths than values.
const MAX_VISITS: usize = 1 << 24;

/// The tables of a `torch.nn.Module`, whose entries are its `state_dict`.
const MODULE_TABLES: [&str; 3] = ["_parameters", "_buffers", "_modules"];

/// A tensor as a part of its storage.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct View {
    pub(super) storage: Storage,
    pub(super) dtype: DType,
    /// The number of elements before the first.
    pub(super) offset: usize,
    pub(super) shape: Vec<usize>,
    pub(super) stride: Vec<usize>,
}

impl View {
    /// Returns the storage and the offset of the elements. Two tensors with the same result are
    /// one.
    pub(super) fn place(&self) -> Option<(String, usize)> {
        match &self.storage {
            Storage::Named(key) => Some((key.clone(), self.offset)),
            Storage::Bytes(_) => None,
        }
    }
}

/// The place of the elements of tensors.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Storage {
    /// In the file, under this key.
    Named(String),
    /// In the pickle itself, as `pickle.dump` writes them.
    Bytes(Arc<Vec<u8>>),
}

/// A tensor, or the Python type of a tensor without strides.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) tensor: Result<View, String>,
}

/// Returns the tensors of `pickle` in its order.
///
/// # Errors
/// If the paths to tensors are too many or too long for a network.
pub(super) fn tensors(pickle: &Pickle) -> Result<Vec<Entry>, String> {
    let mut walk = Walk {
        pickle,
        holds: holders(pickle),
        way: Vec::new(),
        path: Vec::new(),
        visits: 0,
        found: Vec::new(),
    };
    walk.value(pickle.root)?;
    Ok(walk.found)
}

/// Returns for each value whether it is a tensor or contains one.
fn holders(pickle: &Pickle) -> Vec<bool> {
    let mut holds = vec![false; pickle.nodes().len()];
    let mut edges = Vec::new();
    let mut found = Vec::new();
    for (id, node) in (0..).zip(pickle.nodes()) {
        let mut within = |part: Id| edges.push((part, id));
        match node {
            Node::Sequence(items) => items.iter().copied().for_each(&mut within),
            Node::Dict(items) => items.iter().for_each(|&(_, value)| within(value)),
            Node::Object(object) => {
                within(object.arguments);
                object.items.iter().for_each(|&(_, value)| within(value));
                object.state.into_iter().for_each(&mut within);
                if tensor(pickle, object).is_some() {
                    found.push(id);
                }
            }
            _ => {}
        }
    }
    edges.sort_unstable();
    while let Some(id) = found.pop() {
        if !std::mem::replace(&mut holds[id as usize], true) {
            let from = edges.partition_point(|&(part, _)| part < id);
            found.extend(
                edges[from..]
                    .iter()
                    .take_while(|&&(part, _)| part == id)
                    .map(|&(_, whole)| whole),
            );
        }
    }
    holds
}

struct Walk<'a> {
    pickle: &'a Pickle,
    holds: Vec<bool>,
    /// The containers around the present value. Python's objects may contain themselves.
    way: Vec<Id>,
    path: Vec<String>,
    visits: usize,
    found: Vec<Entry>,
}

impl Walk<'_> {
    fn value(&mut self, id: Id) -> Result<(), String> {
        self.visits += 1;
        if self.visits > MAX_VISITS {
            return Err(format!("more than {MAX_VISITS} values lead to its tensors"));
        }
        if !self.holds[id as usize] || self.way.contains(&id) {
            return Ok(());
        }
        if self.way.len() == MAX_DEPTH {
            return Err(format!("a tensor is nested deeper than {MAX_DEPTH} levels"));
        }
        self.way.push(id);
        let pickle = self.pickle;
        match pickle.node(id) {
            Node::Dict(items) => self.entries(items, &[])?,
            Node::Sequence(items) => {
                for (index, &item) in items.iter().enumerate() {
                    self.under(index.to_string(), item)?;
                }
            }
            Node::Object(object) => self.object(object)?,
            _ => {}
        }
        self.way.pop();
        Ok(())
    }

    fn under(&mut self, key: String, id: Id) -> Result<(), String> {
        self.path.push(key);
        self.value(id)?;
        self.path.pop();
        Ok(())
    }

    fn entries(&mut self, items: &[(Id, Id)], without: &[String]) -> Result<(), String> {
        for &(key, value) in items {
            if let Some(key) = self.pickle.text(key).filter(|key| !without.contains(key)) {
                self.under(key, value)?;
            }
        }
        Ok(())
    }

    fn object(&mut self, object: &Object) -> Result<(), String> {
        if let Some(tensor) = tensor(self.pickle, object) {
            self.found.push(Entry {
                path: self.path.join("."),
                tensor,
            });
            return Ok(());
        }
        let arguments = self.pickle.sequence(object.arguments).unwrap_or_default();
        match self.pickle.class(object.class) {
            Some(
                "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state",
            ) => {
                return arguments.first().map_or(Ok(()), |&data| self.value(data));
            }
            Some("collections.OrderedDict") => {
                // Before protocol 2 its items are an argument: a list of pairs.
                for &pair in arguments
                    .first()
                    .and_then(|&list| self.pickle.sequence(list))
                    .unwrap_or_default()
                {
                    if let Some(&[key, value]) = self.pickle.sequence(pair) {
                        self.entries(&[(key, value)], &[])?;
                    }
                }
            }
            _ => {}
        }
        self.entries(&object.items, &[])?;
        let Some(state) = object.state else {
            return Ok(());
        };
        // The state is the attributes, or a pair of the attributes and those of `__slots__`.
        for &attributes in self.pickle.sequence(state).unwrap_or(&[state]) {
            if let Node::Dict(attributes) = self.pickle.node(attributes) {
                self.attributes(attributes)?;
            }
        }
        Ok(())
    }

    /// Visits the attributes of an object; of a module, the entries of its `state_dict`.
    fn attributes(&mut self, attributes: &[(Id, Id)]) -> Result<(), String> {
        let pickle = self.pickle;
        let attribute = |name: &str| {
            let is_named = |&&(key, _): &&(Id, Id)| matches!(pickle.node(key), Node::Text(text) if text == name);
            attributes.iter().rfind(is_named).map(|&(_, value)| value)
        };
        let tables = MODULE_TABLES.map(|table| match attribute(table).map(|id| pickle.node(id)) {
            Some(Node::Dict(items)) => Some(items.as_slice()),
            // Older versions of PyTorch keep them in an `OrderedDict`.
            Some(Node::Object(object)) => Some(object.items.as_slice()),
            _ => None,
        });
        let [Some(parameters), Some(buffers), Some(modules)] = tables else {
            return self.entries(attributes, &[]);
        };
        // It is a set; some versions write it as a call with a list.
        let left_out = attribute("_non_persistent_buffers_set").map(|set| match pickle.node(set) {
            Node::Object(call) => pickle
                .sequence(call.arguments)
                .and_then(|arguments| arguments.first())
                .copied(),
            _ => Some(set),
        });
        let left_out = left_out
            .flatten()
            .and_then(|list| pickle.sequence(list))
            .unwrap_or_default();
        let left_out: Vec<String> = left_out
            .iter()
            .filter_map(|&name| pickle.text(name))
            .collect();
        self.entries(parameters, &[])?;
        self.entries(buffers, &left_out)?;
        self.entries(modules, &[])
    }
}

/// Returns the tensor that an object stands for, if any. The error is a type without strides.
fn tensor(pickle: &Pickle, object: &Object) -> Option<Result<View, String>> {
    let arguments = pickle.sequence(object.arguments)?;
    let class = pickle.class(object.class)?;
    let rebuilt = match class {
        // Storage, offset, shape, strides, whether it requires a gradient, hooks. The third version
        // adds the type.
        "torch._utils._rebuild_tensor" | "torch._utils._rebuild_tensor_v2" => {
            rebuilt(pickle, arguments, None)
        }
        "torch._utils._rebuild_tensor_v3" => rebuilt(
            pickle,
            arguments,
            arguments.get(6).and_then(|&dtype| pickle.class(dtype)),
        ),
        // A function, the subclass, the arguments of the function, the attributes of the subclass.
        "torch._tensor._rebuild_from_type_v2" => {
            let &[class, _, arguments, ..] = arguments else {
                return None;
            };
            return tensor(
                pickle,
                &Object {
                    class,
                    arguments,
                    items: Vec::new(),
                    state: None,
                },
            );
        }
        "numpy.core.multiarray._reconstruct" | "numpy._core.multiarray._reconstruct" => {
            // A version, the shape, the type, whether columns come first, the bytes.
            let &[_, shape, dtype, order, values] = pickle.sequence(object.state?)? else {
                return None;
            };
            let columns_first = matches!(pickle.node(order), Node::Bool(true));
            return array(pickle, values, dtype, shape, columns_first);
        }
        "numpy.core.numeric._frombuffer" | "numpy._core.numeric._frombuffer" => {
            let &[values, dtype, shape, order] = arguments else {
                return None;
            };
            return array(
                pickle,
                values,
                dtype,
                shape,
                pickle.text(order).as_deref() == Some("F"),
            );
        }
        _ if class.starts_with("torch._utils._rebuild_")
            && !class.contains("_rebuild_parameter") =>
        {
            None
        }
        _ => return None,
    };
    Some(rebuilt.ok_or_else(|| class.to_owned()))
}

fn rebuilt(pickle: &Pickle, arguments: &[Id], dtype: Option<&str>) -> Option<View> {
    let &[storage, offset, shape, stride, ..] = arguments else {
        return None;
    };
    let (storage, of_storage, before) = storage_of(pickle, storage)?;
    Some(View {
        storage,
        dtype: dtype.map_or(of_storage, dtype_of)?,
        offset: pickle.number(offset)?.checked_add(before)?,
        shape: pickle.numbers(shape)?,
        stride: pickle.numbers(stride)?,
    })
}

/// Returns a storage, the type of its elements if it has one, and the number of elements before the
/// view.
fn storage_of(pickle: &Pickle, id: Id) -> Option<(Storage, Option<DType>, usize)> {
    match pickle.node(id) {
        Node::Reference(reference) => {
            let reference = StorageReference::of(pickle, *reference)?;
            Some((
                Storage::Named(reference.key),
                reference.dtype,
                reference.before,
            ))
        }
        // `pickle.dump` has each storage as a separate file of `torch.save`.
        Node::Object(object)
            if pickle.class(object.class) == Some("torch.storage._load_from_bytes") =>
        {
            let &[file] = pickle.sequence(object.arguments)? else {
                return None;
            };
            let (dtype, bytes) = legacy::one_storage(&bytes(pickle, file)?)?;
            Some((Storage::Bytes(Arc::new(bytes)), Some(dtype), 0))
        }
        _ => None,
    }
}

/// The reference of `torch.save` to a storage, in a pickle.
pub(super) struct StorageReference {
    pub(super) key: String,
    /// `None` if the tensor has the type.
    pub(super) dtype: Option<DType>,
    /// The number of elements before the view: files of PyTorch 0.4 and earlier name parts of
    /// storages.
    before: usize,
}

impl StorageReference {
    pub(super) fn of(pickle: &Pickle, id: Id) -> Option<Self> {
        let fields = pickle.sequence(id)?;
        let &[tag, class, key, _device, _len, ..] = fields else {
            return None;
        };
        if !matches!(pickle.node(tag), Node::Text(tag) if tag == "storage") {
            return None;
        }
        let part = fields.get(5).and_then(|&part| pickle.sequence(part));
        let before = part
            .and_then(|part| pickle.number(*part.get(1)?))
            .unwrap_or(0);
        let class = pickle.class(class)?;
        let class = class.rsplit('.').next().unwrap_or(class);
        Some(Self {
            key: pickle.text(key)?,
            dtype: dtype_of(class),
            before,
        })
    }
}

/// Returns the type by the name that PyTorch gives to it or to its storages.
fn dtype_of(name: &str) -> Option<DType> {
    Some(match name.strip_prefix("torch.").unwrap_or(name) {
        "DoubleStorage" | "float64" => DType::F64,
        "FloatStorage" | "float32" => DType::F32,
        "HalfStorage" | "float16" => DType::F16,
        "BFloat16Storage" | "bfloat16" => DType::BF16,
        "LongStorage" | "int64" => DType::I64,
        "IntStorage" | "int32" => DType::I32,
        "ShortStorage" | "int16" => DType::I16,
        "CharStorage" | "int8" => DType::I8,
        "uint64" => DType::U64,
        "uint32" => DType::U32,
        "uint16" => DType::U16,
        "ByteStorage" | "uint8" => DType::U8,
        "BoolStorage" | "bool" => DType::Bool(BoolStore::Native),
        _ => return None,
    })
}

/// Returns a NumPy array.
fn array(
    pickle: &Pickle,
    values: Id,
    dtype: Id,
    shape: Id,
    columns_first: bool,
) -> Option<Result<View, String>> {
    let Node::Object(dtype) = pickle.node(dtype) else {
        return None;
    };
    let code = pickle.text(*pickle.sequence(dtype.arguments)?.first()?)?;
    let unread = || Some(Err(format!("numpy.ndarray of type {code}")));
    let dtype = match code.trim_start_matches(['<', '=', '|']) {
        "f8" => DType::F64,
        "f4" => DType::F32,
        "f2" => DType::F16,
        "i8" => DType::I64,
        "i4" => DType::I32,
        "u1" => DType::U8,
        _ => return unread(),
    };
    let (Some(shape), Some(bytes)) = (pickle.numbers(shape), bytes(pickle, values)) else {
        return unread();
    };
    let mut axes: Vec<usize> = (0..shape.len()).collect();
    if !columns_first {
        axes.reverse();
    }
    let mut stride = vec![1; shape.len()];
    let mut step = 1_usize;
    for axis in axes {
        stride[axis] = step;
        step = step.saturating_mul(shape[axis]);
    }
    Some(Ok(View {
        storage: Storage::Bytes(Arc::new(bytes)),
        dtype,
        offset: 0,
        shape,
        stride,
    }))
}

/// Returns bytes. Protocols before 3 write them as a call that encodes text.
fn bytes(pickle: &Pickle, id: Id) -> Option<Vec<u8>> {
    match pickle.node(id) {
        Node::Bytes(bytes) => Some(bytes.clone()),
        Node::Object(call) if pickle.class(call.class) == Some("_codecs.encode") => {
            let Node::Text(text) = pickle.node(*pickle.sequence(call.arguments)?.first()?) else {
                return None;
            };
            text.chars()
                .map(|character| u8::try_from(character).ok())
                .collect()
        }
        _ => None,
    }
}
