//! Where in a PyTorch checkpoint the tensors of a network stand.
//!
//! In: a file that was found to be no larger than it should be. Out: the key of the dictionary that holds them, if it is not
//! the outermost one, or what was found in their place.
//! Invariant: no tensor is read.

use std::collections::HashMap;
use std::path::Path;

use burn::store::pytorch::PytorchReader;
use burn::store::pytorch_reader::PickleValue;

use crate::error::some;

/// The keys that programs use, the commonest first.
const KEYS: [&str; 4] = ["state_dict", "model_state_dict", "net", "model"];

/// How the reader calls a tensor.
const TENSOR: &str = "torch.Tensor";

/// The key of the dictionary with the tensors; `None` where they are at the top, or where their reader will tell better.
///
/// # Errors
/// What was found instead.
pub(super) fn key_of_tensors(path: &Path) -> Result<Option<String>, String> {
    let Ok(PickleValue::Dict(entries)) = PytorchReader::read_pickle_data(path, None) else { return Ok(None) };
    if let Some(key) = KEYS.into_iter().find(|&key| entries.get(key).is_some_and(is_dictionary_of_tensors)) {
        return Ok(Some(key.to_owned()));
    }
    if holds_tensors(&entries) {
        return Ok(None);
    }
    let mut others = entries.iter().filter(|(_, value)| is_dictionary_of_tensors(value));
    match (others.next(), others.next()) {
        (Some((key, _)), None) => Ok(Some(key.clone())),
        _ => Err(format!(
            "expected tensors by name, at the top or in a dictionary under {}, got {}; save the network's `state_dict()`",
            KEYS.join(", "),
            described(&entries)
        )),
    }
}

fn is_dictionary_of_tensors(value: &PickleValue) -> bool {
    matches!(value, PickleValue::Dict(entries) if holds_tensors(entries))
}

fn holds_tensors(entries: &HashMap<String, PickleValue>) -> bool {
    entries.values().any(|value| matches!(value, PickleValue::Unsupported(name) if name == TENSOR))
}

/// What stands at the top.
fn described(entries: &HashMap<String, PickleValue>) -> String {
    let mut keys: Vec<String> = entries.keys().cloned().collect();
    keys.sort_unstable();
    if keys.is_empty() { "an empty dictionary".to_owned() } else { format!("the keys {}", some(&keys)) }
}
