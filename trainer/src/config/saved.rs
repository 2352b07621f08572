//! The configuration in a checkpoint.
//!
//! In: what this program or an older one wrote there as JSON. Out: [`TrainConfig`].
//! Invariant: flags that are read here are filled and checked as typed ones are, but for what depends on the machine.
//!
//! Until format 2 a checkpoint held the configuration in words of its own instead of the flags; they are put into flags here.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::family::{Family, ModelOption};
use super::{TrainConfig, resolve};
use crate::config::choices::{PlacementKind, SyncKind};
use crate::config::cli::TrainArgs;

/// As it is written.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedConfig {
    /// Those that have an effect, by section and key as in a TOML file.
    flags: TrainArgs,
    /// What the flags of another family than the residual networks do not tell.
    own_model: Option<OwnModel>,
    /// All ranks, those that only serve, too.
    world_size: usize,
}

/// What a program that has not the family needs to know of a model.
#[derive(Serialize, Deserialize)]
struct OwnModel {
    name: String,
    /// The general options that it heeds.
    takes: Vec<ModelOption>,
}

impl From<TrainConfig> for SavedConfig {
    fn from(
        TrainConfig {
            flags,
            model_name,
            heeded,
            world_size,
        }: TrainConfig,
    ) -> Self {
        let is_own = flags.model.family() != Family::RESNET.name;
        Self {
            flags,
            own_model: is_own.then_some(OwnModel {
                name: model_name,
                takes: heeded,
            }),
            world_size,
        }
    }
}

impl TryFrom<Value> for TrainConfig {
    type Error = anyhow::Error;

    fn try_from(value: Value) -> Result<Self> {
        let saved = if value.get("flags").is_some() {
            value
        } else {
            of_format_2(value)?
        };
        let SavedConfig {
            mut flags,
            own_model,
            world_size,
        } = serde_json::from_value(saved)?;
        ensure!(world_size > 0, "world_size: expected at least 1, got 0");
        flags.model.name_family();
        let (model_name, heeded) = match own_model {
            Some(OwnModel { name, takes }) => (name, takes),
            None => (
                Family::RESNET.decide(&mut flags.model)?,
                Family::RESNET.options.to_vec(),
            ),
        };
        resolve::fill(&mut flags, &heeded, world_size)?;
        Ok(Self {
            flags,
            model_name,
            heeded,
            world_size,
        })
    }
}

/// The sections of format 2, of which most keys are those of flags.
fn of_format_2(old: Value) -> Result<Value> {
    let section = |name: &str| {
        old.get(name)
            .and_then(Value::as_object)
            .cloned()
            .with_context(|| format!("no {name}"))
    };
    let (mut model, mut data, mut train_split) =
        (section("model")?, section("data")?, section("train_split")?);
    let (mut batch, mut sync, mut optimizer) =
        (section("batch")?, section("sync")?, section("optimizer")?);
    let (mut schedule, mut run) = (section("schedule")?, section("run")?);

    let own_model = model
        .contains_key("takes")
        .then(|| Value::Object(model.clone()));
    if own_model.is_some() {
        model.retain(|key, _| key == "name");
        rename(&mut model, "name", "model");
    }
    put_source(&mut data, &mut train_split);
    let mut world_size = batch
        .remove("world_size")
        .and_then(|number| number.as_u64())
        .context("no world_size")?;
    batch.remove("micro_batch_size");
    let num_serving = put_method(&mut sync, &mut batch)?;
    world_size = world_size
        .checked_add(num_serving)
        .context("world_size: expected a number of ranks, got more")?;
    optimizer.insert(
        "scale_learning_rate".into(),
        json!(!is_null(&optimizer, "reference_batch_size")),
    );
    if let Some(Value::Object(course)) = schedule.remove("course") {
        schedule.extend(course);
    }
    if optimizer.get("weight_decay").and_then(Value::as_f64) == Some(0.0) {
        optimizer.remove("decay_norm_and_bias");
    }
    if schedule.get("warmup_epochs").and_then(Value::as_f64) == Some(0.0) {
        schedule.remove("warmup_start_factor");
    }
    run.remove("resume");
    if let Some(limit) = run
        .get("on_non_finite")
        .and_then(|choice| choice.pointer("/skip/limit"))
        .cloned()
    {
        run.extend([
            ("on_non_finite".into(), json!("skip")),
            ("max_skipped_steps".into(), limit),
        ]);
    }
    let mut compute = section("compute")?;
    if let Some(own) = &own_model {
        drop_untaken(own, &mut run, &mut compute);
    }
    let sections = [
        ("model", model),
        ("data", data),
        ("train-split", train_split),
        ("batch", batch),
        ("sync", sync),
        ("optimizer", optimizer),
        ("schedule", schedule),
        ("run", run),
        ("compute", compute),
    ];
    let flags: Map<String, Value> = sections
        .map(|(name, keys)| (name.to_owned(), flags(keys)))
        .into_iter()
        .collect();
    Ok(json!({ "flags": flags, "own_model": own_model, "world_size": world_size }))
}

/// Keys with dashes, without those that say nothing.
fn flags(section: Map<String, Value>) -> Value {
    let given = section.into_iter().filter(|(_, value)| !value.is_null());
    Value::Object(
        given
            .map(|(key, value)| (key.replace('_', "-"), value))
            .collect(),
    )
}

fn is_null(section: &Map<String, Value>, key: &str) -> bool {
    section.get(key).is_none_or(Value::is_null)
}

fn rename(section: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = section.remove(from) {
        section.insert(to.to_owned(), value);
    }
}

/// Puts what a data set needs under the names that its flags have.
fn put_source(data: &mut Map<String, Value>, train_split: &mut Map<String, Value>) {
    if let Some(Value::Object(mut source)) = data.remove("source") {
        let dataset = source
            .get("dataset")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        rename(&mut source, "dir", "data_dir");
        rename(&mut source, "num_test", &format!("{dataset}_test"));
        rename(&mut source, "num_classes", &format!("{dataset}_classes"));
        rename(&mut source, "seed", &format!("{dataset}_seed"));
        if let Some(num_train) = source.remove("num_train") {
            train_split.insert(format!("{dataset}_train"), num_train);
        }
        data.extend(source);
    }
    if let Some(Value::Object(mut normalization)) = data.remove("normalization") {
        rename(&mut normalization, "mean", "normalize_mean");
        rename(&mut normalization, "std", "normalize_std");
        data.extend(normalization);
    }
}

/// Puts the method of synchronisation into flags; how many ranks only serve.
fn put_method(sync: &mut Map<String, Value>, batch: &mut Map<String, Value>) -> Result<u64> {
    sync.remove("gpu");
    let bytes = sync
        .remove("bucket_cap_bytes")
        .and_then(|bytes| bytes.as_f64())
        .context("no bucket_cap_bytes")?;
    let overlap = if sync.get("overlap") == Some(&json!(true)) {
        "on"
    } else {
        "off"
    };
    let timeout = sync
        .get("timeout")
        .and_then(|timeout| timeout.get("secs"))
        .cloned()
        .context("no timeout")?;
    let Some(Value::Object(mut method)) = sync.remove("method") else {
        anyhow::bail!("no method")
    };
    let compresses = method
        .get("compression")
        .is_some_and(|compression| compression != "none");
    rename(&mut method, "compression", "compress");
    rename(&mut method, "placement", "server_placement");
    if compresses {
        method.remove("reduction");
        let has_warmup = method["compress"]
            .as_str()
            .is_some_and(|kind| kind.contains(':'));
        method.retain(|key, _| has_warmup || key != "compress_warmup_steps");
    } else {
        method.remove("compress");
        method.remove("compress_warmup_steps");
    }
    let mut num_serving = 0;
    match method
        .get("sync")
        .and_then(Value::as_str)
        .unwrap_or_default()
    {
        "exact" => {
            method.extend([
                ("sync".into(), json!(SyncKind::Allreduce)),
                ("reduction".into(), json!("exact")),
            ]);
            batch.remove("grad_accum_steps");
        }
        "parameter-server" => {
            if method.get("server_placement") == Some(&json!(PlacementKind::Own)) {
                num_serving = method
                    .get("servers")
                    .and_then(Value::as_u64)
                    .context("no servers")?;
            }
            if let Some(Value::Object(staleness)) = method.remove("asynchronous") {
                method.insert("sync".into(), json!(SyncKind::AsyncParameterServer));
                method.insert(
                    "staleness".into(),
                    staleness.get("bound").cloned().unwrap_or_default(),
                );
            }
        }
        "local-sgd"
            if method
                .get("from_step")
                .and_then(Value::as_u64)
                .is_some_and(|step| step > 0) =>
        {
            method.insert("sync".into(), json!(SyncKind::PostLocalSgd));
        }
        "local-sgd" => _ = method.remove("from_step"),
        _ => {}
    }
    sync.extend(method);
    sync.extend([
        ("bucket_mib".into(), json!(bytes / super::sync::MIB)),
        ("overlap".into(), json!(overlap)),
        ("timeout".into(), timeout),
    ]);
    Ok(num_serving)
}

/// Leaves out options of an own model that have no effect on it: format 2 held their defaults.
fn drop_untaken(own: &Value, run: &mut Map<String, Value>, compute: &mut Map<String, Value>) {
    let takes = |option: &str| {
        own["takes"]
            .as_array()
            .is_some_and(|takes| takes.contains(&json!(option)))
    };
    run.retain(|key, _| key != "zero_gamma" || takes("zero-gamma"));
    for key in ["kernels", "dtype", "convolution", "cpu"] {
        compute.retain(|other, _| other != key || takes(key));
    }
}
