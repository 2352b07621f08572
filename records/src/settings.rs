//! Settings of a run or a study's cell: which of them are its work, and which method of synchronisation they name.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What a rank alone has in common with many: its work.
pub const WORK: [&str; 7] = ["model", "dtype", "kernels", "device", "threads", "image_size", "grad_accum_steps"];

/// How and where it was measured, by which its speed differs as well.
pub const ORIGIN: [&str; 2] = ["kind", "study"];

/// Settings in which a single rank may differ from those whose reference it is: where and how ranks meet, how long and at which rate
/// they train.
pub const OF_SEVERAL: [&str; 26] = [
    "network",
    "launcher",
    "communication",
    "hosts",
    "sync",
    "reduction",
    "virtual_shards",
    "overlap",
    "bucket_mib",
    "update",
    "batch_norm",
    "compress",
    "compress_warmup_steps",
    "servers",
    "server_placement",
    "staleness",
    "every",
    "from_step",
    "timeout",
    "trace",
    "steps",
    "warmup_steps",
    "epochs",
    "warmup_epochs",
    "learning_rate",
    "seed",
];

/// The names of the settings that are not the same in both; one without a value is like one that is not there.
pub fn differences<'a>(some: &'a BTreeMap<String, String>, others: &'a BTreeMap<String, String>) -> BTreeSet<&'a str> {
    let value = |settings: &'a BTreeMap<String, String>, key: &str| settings.get(key).map_or("", String::as_str);
    let keys = some.keys().chain(others.keys()).map(String::as_str);
    keys.filter(|key| value(some, key) != value(others, key)).collect()
}

/// A setting as text; `None` where it is no single value.
pub fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    }
}

/// The method of synchronisation in one word, from flags by their names; `None` for one that has no such word.
pub fn method(settings: &BTreeMap<String, String>) -> Option<String> {
    if let Some(method) = settings.get("method") {
        return Some(method.clone());
    }
    let get = |keys: [&str; 2], default: &str| {
        keys.iter().find_map(|key| settings.get(*key)).map_or(default, String::as_str).to_owned()
    };
    let own = if get(["server-placement", "server_placement"], "beside") == "own" { "@own" } else { "" };
    Some(match settings.get("sync").map_or("allreduce", String::as_str) {
        "allreduce" => match (get(["compress", "compress"], "none"), get(["reduction", "reduction"], "hierarchical")) {
            (_, reduction) if reduction == "exact" => reduction,
            (compress, reduction) if compress == "none" => format!("allreduce:{reduction}"),
            (compress, _) => format!("allreduce+{compress}"),
        },
        "local-sgd" => format!("local-sgd:{}", get(["every", "local_steps"], "8")),
        sync @ ("parameter-server" | "async-parameter-server") => {
            let bound = settings.get("staleness").map_or(String::new(), |bound| format!(":{bound}"));
            format!("{sync}:{}{bound}{own}", get(["servers", "servers"], "1"))
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
            method(&pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()).unwrap()
        };
        assert_eq!(method(&[]), "allreduce:hierarchical");
        assert_eq!(method(&[("sync", "allreduce"), ("compress", "bf16")]), "allreduce+bf16");
        assert_eq!(method(&[("reduction", "exact")]), "exact");
        assert_eq!(method(&[("sync", "local-sgd"), ("every", "4")]), "local-sgd:4");
        let servers = [("sync", "async-parameter-server"), ("staleness", "2"), ("server-placement", "own")];
        assert_eq!(method(&servers), "async-parameter-server:1:2@own");
    }
}
