//! Settings of a run or a study's cell: classes of settings, and the synchronisation method.

use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Settings of the work of one rank; they have the same meaning on one and on many ranks.
pub const WORK: [&str; 7] = [
    "model",
    "dtype",
    "kernels",
    "device",
    "threads",
    "image_size",
    "grad_accum_steps",
];

/// Settings of synchronisation; a profile of one rank does not depend on them.
pub const OF_SYNCHRONISATION: [&str; 13] = [
    "sync",
    "reduction",
    "virtual_shards",
    "overlap",
    "compress",
    "compress_warmup_steps",
    "servers",
    "server_placement",
    "staleness",
    "every",
    "from_step",
    "timeout",
    "trace",
];

/// Further settings in which a single rank may differ from the ranks whose reference it is.
const OF_SEVERAL: [&str; 13] = [
    "network",
    "launcher",
    "communication",
    "hosts",
    "bucket_mib",
    "update",
    "batch_norm",
    "steps",
    "warmup_steps",
    "epochs",
    "warmup_epochs",
    "learning_rate",
    "seed",
];

/// Returns true if a single rank may differ in this setting from ranks whose reference it is.
pub(crate) fn is_of_several(key: &str) -> bool {
    OF_SYNCHRONISATION.contains(&key) || OF_SEVERAL.contains(&key)
}

/// Returns true if an option changes the work of a single rank, and therefore predictions.
pub fn is_of_rank(key: &str) -> bool {
    key == "batch_norm" || !is_of_several(key)
}

/// Returns the names of settings that differ; an empty value equals a missing one.
pub(crate) fn differences<'a>(
    some: &'a BTreeMap<String, String>,
    others: &'a BTreeMap<String, String>,
) -> BTreeSet<&'a str> {
    let value = |settings: &'a BTreeMap<String, String>, key: &str| {
        settings.get(key).map_or("", String::as_str)
    };
    let keys = some.keys().chain(others.keys()).map(String::as_str);
    keys.filter(|key| value(some, key) != value(others, key))
        .collect()
}

/// Returns true if the known settings of a measurement agree with this work.
pub(crate) fn is_of_work(told: &BTreeMap<String, String>, work: &BTreeMap<String, String>) -> bool {
    work.iter()
        .all(|(key, value)| told.get(key).is_none_or(|own| own == value))
}

/// Multiplies `batch_size_per_rank`, the samples of a pass, by the passes of a step.
pub fn count_all_passes(settings: &mut BTreeMap<String, String>) {
    let number = |key: &str| {
        settings
            .get(key)
            .and_then(|text| text.parse::<usize>().ok())
    };
    let product = number("batch_size_per_rank").zip(number("grad_accum_steps"));
    if let Some(product) = product.and_then(|(batch, passes)| batch.checked_mul(passes)) {
        settings.insert("batch_size_per_rank".to_owned(), product.to_string());
    }
}

/// Returns a setting as text; `None` for lists and objects.
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}

/// Returns the name of a variant as files have it; empty for other values.
pub fn name(variant: impl Serialize) -> String {
    let value = serde_json::to_value(variant).unwrap_or_default();
    text(&value).unwrap_or_default()
}

/// Returns the synchronisation method as one word; `None` if it has none.
pub fn method(settings: &BTreeMap<String, String>) -> Option<String> {
    if let Some(method) = settings.get("method") {
        return Some(method.clone());
    }
    let get =
        |key: &str, default: &str| settings.get(key).map_or(default, String::as_str).to_owned();
    let own = match get("server_placement", "beside").as_str() {
        "own" => "@own",
        _ => "",
    };
    let servers = get("servers", "1");
    let bound = settings.get("staleness").map(|bound| format!(":{bound}"));
    let bound = bound.unwrap_or_default();
    let compress = get("compress", "none");
    let reduction = get("reduction", "hierarchical");
    Some(match get("sync", "allreduce").as_str() {
        "allreduce" if reduction == "exact" => reduction,
        "allreduce" if compress == "none" => format!("allreduce:{reduction}"),
        "allreduce" => format!("allreduce+{compress}"),
        "local-sgd" => format!("local-sgd:{}", get("every", "8")),
        sync @ ("parameter-server" | "async-parameter-server") => {
            format!("{sync}:{servers}{bound}{own}")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_a_study_name_their_method() {
        let method = |pairs: &[(&str, &str)]| {
            method(
                &pairs
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                    .collect(),
            )
        };
        let servers = [
            ("sync", "async-parameter-server"),
            ("staleness", "2"),
            ("server_placement", "own"),
        ];
        for (pairs, expected) in [
            (&[][..], "allreduce:hierarchical"),
            (&[("reduction", "ring")], "allreduce:ring"),
            (
                &[("sync", "allreduce"), ("compress", "bf16")],
                "allreduce+bf16",
            ),
            (&[("reduction", "exact"), ("compress", "none")], "exact"),
            (&[("sync", "local-sgd")], "local-sgd:8"),
            (&[("sync", "local-sgd"), ("every", "4")], "local-sgd:4"),
            (
                &[("sync", "parameter-server"), ("servers", "2")],
                "parameter-server:2",
            ),
            (&servers[..1], "async-parameter-server:1"),
            (&servers, "async-parameter-server:1:2@own"),
        ] {
            assert_eq!(method(pairs).as_deref(), Some(expected));
        }
        assert_eq!(method(&[("sync", "post-local-sgd")]), None);
    }
}
