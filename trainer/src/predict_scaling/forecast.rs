//! Predictions, and the file they are written to.
//!
//! In: a measured step, a network, methods, numbers of ranks. Out: [`Forecast`].
//! Invariant: the same step, network and method give the same numbers, but for what encoding takes, which is measured each time.

use std::time::SystemTime;

use anyhow::Result;
use distributed::CompressionKind;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use simulate::{Predictor, StepProfile, Synchronisation};

use super::profile_file::{BucketRecord, LayerSeconds, ProfileFile, at_batch};
use super::published::Answer;
use crate::config::{
    NamedNetwork, NetworkSource, PlacementKind, ScalingConfig, ScalingKind, SyncConfig, SyncMethod, scaling_method_name,
};
use crate::simulation::synchronisation;
use crate::synchronizer::bucket_cap_bytes;

/// The step that was predicted from, seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileFacts {
    /// Forward pass.
    pub forward_s: f64,
    /// Backward pass.
    pub backward_s: f64,
    /// Optimizer.
    pub optimizer_s: f64,
    /// Waiting for images.
    pub input_s: f64,
    /// All else.
    pub other_s: f64,
    /// Standard deviation of a step, of which the slowest rank's delay follows.
    #[serde(default)]
    pub spread_s: f64,
    /// In the order of their reduction.
    pub buckets: Vec<BucketRecord>,
    /// The backward pass by layer.
    pub layers: Vec<LayerSeconds>,
}

/// The network that was predicted for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkFacts {
    /// As it was called.
    pub name: String,
    /// `named`, `flags`, or `measured` and the file.
    pub source: String,
    /// Seconds a message.
    pub alpha_s: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Ranks on each node.
    pub ranks_per_node: usize,
    /// As `--network` reads it, with what lies inside a node.
    #[serde(default)]
    pub text: String,
}

/// One prediction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictionRecord {
    /// The method in one word, as `--methods` reads it.
    #[serde(default)]
    pub method: String,
    /// `--sync`.
    pub sync: String,
    /// `--reduction`, of an uncompressed all-reduce.
    pub reduction: Option<String>,
    /// `--compress`.
    pub compress: String,
    /// `--servers`.
    pub servers: Option<usize>,
    /// `--server-placement`.
    #[serde(default)]
    pub server_placement: Option<String>,
    /// `--every`.
    pub local_steps: Option<u64>,
    /// Ranks that train.
    pub ranks: usize,
    /// Samples of one rank's step.
    pub batch_size_per_rank: usize,
    /// `weak` or `strong`.
    pub scaling: ScalingKind,
    /// A step, milliseconds.
    pub step_ms: f64,
    /// Over all ranks.
    pub images_per_second: f64,
    /// Times as fast as one rank.
    pub speedup: f64,
    /// Speedup a rank.
    pub efficiency: f64,
    /// Gradients travel, hidden or not, milliseconds a step.
    pub communication_ms: f64,
    /// A step is longer by it than without the others, but for stragglers; milliseconds.
    pub exposed_ms: f64,
    /// Limit of a bucket.
    pub bucket_bytes: u64,
    /// Limit with which training is fastest; none where nothing is sent in buckets or alone.
    pub best_bucket_bytes: Option<u64>,
    /// Speed with that one.
    pub best_images_per_second: Option<f64>,
    /// The measured cell of a study that it stands for.
    pub cell: Option<String>,
}

/// The file of `--output`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictionFile {
    /// `lockstep.prediction/1`.
    pub schema: String,
    /// In UTC, RFC 3339.
    pub created: String,
    /// Commit of the program, or "unknown".
    pub commit: String,
    /// Name of the network of layers.
    pub model: String,
    /// Number format of activations.
    pub dtype: String,
    /// Backend and device of the measured step.
    pub device: String,
    /// Samples of the measured step.
    pub batch_size_per_rank: usize,
    /// Compute threads of the measured rank.
    pub threads: usize,
    /// The measured step.
    pub profile: ProfileFacts,
    /// The network between ranks.
    pub network: NetworkFacts,
    /// By method, then ranks.
    pub predictions: Vec<PredictionRecord>,
    /// Published figures and what the same simulation says of them.
    pub published: Vec<Answer>,
    /// Cells of a study that the predictions stand for, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<Option<String>>,
}

/// The predictions for one network, and what was left out of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// As it is written.
    pub file: PredictionFile,
    /// Why, in words.
    pub left_out: Vec<String>,
}

/// Predicts for one network; `profiles` has one step, or a second one for strong scaling.
///
/// # Errors
/// When a time of a profile or of the network is negative or not finite.
pub fn forecast(
    profiles: &[ProfileFile],
    network: &NamedNetwork,
    config: &ScalingConfig,
    published: Vec<Answer>,
) -> Result<Forecast> {
    let profile = &profiles[0];
    let mut left_out = Vec::new();
    let mut tasks = Vec::new();
    for sync in &config.methods {
        let synchronisation = synchronisation(&profile.step(), sync)?;
        for &ranks in &config.ranks {
            match why_not(profile, sync, config.scaling, ranks) {
                Some(why) => left_out.push(format!("{} on {ranks} ranks: {why}", scaling_method_name(&sync.method))),
                None => tasks.push((sync, synchronisation, ranks)),
            }
        }
    }
    // The largest worlds take longest: those first, so that no core is left with one of them at the end.
    let mut order: Vec<usize> = (0..tasks.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(tasks[index].2));
    let mut records = order
        .into_par_iter()
        .with_max_len(1)
        .map(|index| {
            let (sync, synchronisation, ranks) = tasks[index];
            Ok((index, record(profiles, network, config.scaling, sync, synchronisation, ranks)?))
        })
        .collect::<Result<Vec<_>>>()?;
    records.sort_by_key(|(index, _)| *index);
    let predictions = records.into_iter().map(|(_, record)| record).collect();
    Ok(Forecast { file: file(profile, network, predictions, published), left_out })
}

/// Why such a run cannot be.
fn why_not(profile: &ProfileFile, sync: &SyncConfig, scaling: ScalingKind, ranks: usize) -> Option<String> {
    match sync.method {
        SyncMethod::ParameterServer { servers, placement: PlacementKind::Beside, .. } if servers > ranks => {
            Some(format!("{servers} servers need as many ranks"))
        }
        _ if scaling == ScalingKind::Strong && !profile.batch_size_per_rank.is_multiple_of(ranks) => {
            Some(format!("they do not divide a global batch of {}", profile.batch_size_per_rank))
        }
        _ => None,
    }
}

fn record(
    profiles: &[ProfileFile],
    network: &NamedNetwork,
    scaling: ScalingKind,
    sync: &SyncConfig,
    synchronisation: Synchronisation,
    ranks: usize,
) -> Result<PredictionRecord> {
    let whole = profiles[0].step();
    let step = match scaling {
        ScalingKind::Weak => whole.clone(),
        ScalingKind::Strong => at_batch(profiles, whole.batch_size_per_rank / ranks),
    };
    let total_bytes: u64 = step.buckets.iter().map(|bucket| bucket.bytes).sum();
    let bucket_bytes = bucket_cap_bytes(sync, total_bytes as usize) as u64;
    let step = step.with_bucket_cap(bucket_bytes);
    let mut predictor = Predictor::new(&step, synchronisation, &network.model, ranks)?;
    let prediction = predictor.predict(&step, sync.overlap)?;
    let has_buckets = ranks > 1 && sync.overlap && !matches!(sync.method, SyncMethod::LocalSgd { .. });
    let best = if has_buckets { Some(predictor.best_bucket_bytes(&step)?) } else { None };
    let of_one = whole.batch_size_per_rank as f64 / whole.compute_s();
    let speedup = prediction.images_per_second / of_one;
    let (servers, placement, local_steps) = match sync.method {
        SyncMethod::ParameterServer { servers, placement, .. } => (Some(servers), Some(placement.to_string()), None),
        SyncMethod::LocalSgd { every, .. } => (None, None, Some(every)),
        _ => (None, None, None),
    };
    let (reduction, compress) = match &sync.method {
        SyncMethod::Allreduce { compression, .. } if compression.is_some() => (None, compression.to_string()),
        SyncMethod::Allreduce { reduction, .. } => (Some(reduction.to_string()), CompressionKind::None.to_string()),
        SyncMethod::Exact { .. } => (Some("exact".to_owned()), CompressionKind::None.to_string()),
        _ => (None, CompressionKind::None.to_string()),
    };
    Ok(PredictionRecord {
        method: scaling_method_name(&sync.method),
        sync: sync.method.kind().to_string(),
        reduction,
        compress,
        servers,
        server_placement: placement,
        local_steps,
        ranks,
        batch_size_per_rank: step.batch_size_per_rank,
        scaling,
        step_ms: prediction.step_s * 1e3,
        images_per_second: prediction.images_per_second,
        speedup,
        efficiency: speedup / ranks as f64,
        communication_ms: prediction.communication_s * 1e3,
        exposed_ms: prediction.exposed_s * 1e3,
        bucket_bytes,
        best_bucket_bytes: best.map(|(bytes, _)| bytes),
        best_images_per_second: best.map(|(_, prediction)| prediction.images_per_second),
        cell: None,
    })
}

fn file(
    profile: &ProfileFile,
    network: &NamedNetwork,
    predictions: Vec<PredictionRecord>,
    published: Vec<Answer>,
) -> PredictionFile {
    PredictionFile {
        schema: "lockstep.prediction/1".to_owned(),
        created: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        commit: env!("LOCKSTEP_COMMIT").to_owned(),
        model: profile.model.clone(),
        dtype: profile.dtype.clone(),
        device: profile.device.clone(),
        batch_size_per_rank: profile.batch_size_per_rank,
        threads: profile.threads,
        profile: ProfileFacts {
            forward_s: profile.forward_s,
            backward_s: profile.backward_s,
            optimizer_s: profile.optimizer_s,
            input_s: profile.input_s,
            other_s: profile.other_s,
            spread_s: profile.step_spread_s,
            buckets: profile.buckets.clone(),
            layers: profile.layers(),
        },
        network: NetworkFacts {
            name: network.name.clone(),
            source: match &network.source {
                NetworkSource::Named => "named".to_owned(),
                NetworkSource::Flags => "flags".to_owned(),
                NetworkSource::Measured(path) => format!("measured {}", path.display()),
            },
            alpha_s: network.model.link.alpha,
            bytes_per_second: network.model.link.beta.recip(),
            ranks_per_node: network.model.ranks_per_node(),
            text: network.model.to_string(),
        },
        predictions,
        published,
        cells: Vec::new(),
    }
}

/// The step that all of it was predicted from.
pub(super) fn compute_s(profile: &ProfileFacts) -> f64 {
    let step = StepProfile {
        forward_s: profile.forward_s,
        backward_s: profile.backward_s,
        optimizer_s: profile.optimizer_s,
        other_s: profile.input_s + profile.other_s,
        ..StepProfile::default()
    };
    step.compute_s()
}

#[cfg(test)]
mod tests {
    use super::super::profile_file::tests::profile;
    use super::*;
    use crate::cli::PredictScalingArgs;
    use crate::config::PredictScalingConfig;

    fn predicted(args: PredictScalingArgs) -> Forecast {
        let args = PredictScalingArgs { profile: Some(vec!["step.json".into()]), ..args };
        let config = PredictScalingConfig::resolve(&args, 1).unwrap().scaling.unwrap();
        forecast(&[profile()], &config.networks[0], &config, Vec::new()).unwrap()
    }

    fn with(methods: &[&str], ranks: &[usize], scaling: ScalingKind) -> PredictScalingArgs {
        PredictScalingArgs {
            network: Some(vec!["1gbe".to_owned()]),
            methods: Some(methods.iter().map(|&text| text.to_owned()).collect()),
            ranks: Some(ranks.to_vec()),
            scaling: Some(scaling),
            ..PredictScalingArgs::default()
        }
    }

    #[test]
    fn every_method_is_predicted_and_survives_its_file() {
        let args = PredictScalingArgs { methods: None, ..with(&[], &[1, 2, 8], ScalingKind::Weak) };
        let Forecast { file, left_out } = predicted(args);
        assert_eq!((file.predictions.len(), left_out.len()), (27, 0));
        let read: PredictionFile = serde_json::from_str(&serde_json::to_string(&file).unwrap()).unwrap();
        assert_eq!(read.predictions.len(), file.predictions.len());
        for (record, read) in file.predictions.iter().zip(&read.predictions) {
            assert_eq!(record.method, read.method);
            assert!((record.step_ms - read.step_ms).abs() < 1e-9);
            assert!(record.efficiency <= 1.0 + 1e-9 && record.exposed_ms >= 0.0, "{record:?}");
            assert!(record.ranks > 1 || (record.step_ms - 100.0).abs() < 1e-9, "{record:?}");
            if let Some(best) = record.best_images_per_second {
                assert!(best > 0.95 * record.images_per_second, "{record:?}");
            }
        }
    }

    #[test]
    fn strong_scaling_keeps_the_global_batch_and_leaves_out_what_does_not_divide_it() {
        let Forecast { file, left_out } = predicted(with(&["allreduce:ring"], &[1, 2, 3, 32], ScalingKind::Strong));
        let batches: Vec<(usize, usize)> =
            file.predictions.iter().map(|record| (record.ranks, record.batch_size_per_rank)).collect();
        assert_eq!(batches, [(1, 32), (2, 16), (32, 1)]);
        assert_eq!(left_out, ["allreduce:ring on 3 ranks: they do not divide a global batch of 32"]);
        // What the optimizer and the rest take is not shared: Amdahl's law, as the network is fast next to 50 ms.
        let two = &file.predictions[1];
        assert!(two.speedup < 1.0 / (0.1 + 0.9 / 2.0) + 1e-9 && two.speedup > 1.6, "{two:?}");
        let servers = predicted(with(&["parameter-server:4"], &[2], ScalingKind::Weak));
        assert_eq!((servers.file.predictions.len(), servers.left_out.len()), (0, 1));
    }
}
