//! Predictions for more ranks from the measured step of one rank: `trainer predict-scaling`.
//!
//! In: a measured step, a network, methods, numbers of ranks. Out: [`PredictionFile`].
//! Invariant: the same step, network and method give the same numbers, except for the measured time
//! of encoding. Predictions are marked as predictions, published figures with their source.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), section 5; Karp & Flatt 1990,
//! Measuring parallel processor performance.
//!
//! The cost of compression is measured with the real compressor on one rank. The rank encodes and
//! decodes only its own part. Decoding the top-k parts of other ranks is not included.

use std::time::Instant;

use anyhow::{Result, bail};
use distributed::communicator::SingleCommunicator;
use distributed::gradients::{BucketCompressor, CompressionKind, ReductionKind, tensor_spans};
use records::{
    NetworkFacts, PREDICTION_SCHEMA, PredictionFile, PredictionRecord, ProfileFacts, ProfileFile,
};
use simulate::{
    Scaling, Scenario, ServerPlacement, StepProfile, Synchronisation, predict_scenarios, step_of,
    work_of,
};

use crate::config::{
    NamedNetwork, NetworkSource, PlacementKind, ScalingKind, SyncConfig, SyncMethod,
    scaling_method_name,
};
use crate::step::sync_plan::{bucket_cap_bytes, consistency};

/// Number of measurements of a compressor. The fastest counts.
const NUM_ENCODINGS: usize = 5;

/// Predicts for one network. `profiles` has one step, or two for strong scaling. Also returns the
/// omitted predictions, each with its reason.
///
/// # Errors
/// If a time of a profile or of the network is negative or not finite, or a method cannot be
/// simulated.
pub fn forecast(
    profiles: &[ProfileFile],
    network: &NamedNetwork,
    methods: &[SyncConfig],
    ranks: &[usize],
    scaling: ScalingKind,
) -> Result<(PredictionFile, Vec<String>)> {
    let profile = &profiles[0];
    let step = step_of(profile);
    let second = profiles.get(1).map(step_of);
    let mut syncs = Vec::new();
    let mut scenarios = Vec::new();
    let mut left_out = Vec::new();
    for sync in methods {
        let synchronisation = synchronisation(&step, sync)?;
        for &ranks in ranks {
            let scenario = Scenario {
                synchronisation,
                overlap: sync.overlap,
                bucket_bytes: bucket_cap_bytes(sync, step.num_bytes() as usize) as u64,
                scaling: match scaling {
                    ScalingKind::Weak => Scaling::Weak,
                    ScalingKind::Strong => Scaling::Strong,
                },
                ranks,
            };
            match scenario.why_not(step.batch_size_per_rank) {
                Some(why) => {
                    let method = scaling_method_name(&sync.method);
                    left_out.push(format!("{method} on {ranks} ranks: {why}"));
                }
                None => {
                    syncs.push(sync);
                    scenarios.push(scenario);
                }
            }
        }
    }
    let mut records = predict_scenarios(&step, second.as_ref(), &network.model, &scenarios)?;
    for (record, sync) in records.iter_mut().zip(syncs) {
        record.scaling = scaling.to_string();
        name(record, &sync.method);
    }
    Ok((file(profile, network, records), left_out))
}

/// Returns the method in the form of the simulation.
fn synchronisation(profile: &StepProfile, sync: &SyncConfig) -> Result<Synchronisation> {
    Ok(match sync.method {
        SyncMethod::Allreduce { compression, .. } if compression.is_some() => {
            Synchronisation::Compressed {
                kind: compression.0,
                encoding_s_per_byte: encoding_s_per_byte(profile, compression.0)?,
            }
        }
        SyncMethod::Allreduce { reduction, .. } => match reduction.kind() {
            Some(kind) => Synchronisation::AllReduce(kind),
            None => bail!(
                "--reduction {reduction} cannot be simulated: its times on GPUs are not known; give another"
            ),
        },
        SyncMethod::Exact { .. } => Synchronisation::AllReduce(ReductionKind::Exact),
        SyncMethod::ParameterServer {
            servers,
            placement,
            asynchronous,
        } => Synchronisation::ParameterServer {
            servers,
            placement: match placement {
                PlacementKind::Beside => ServerPlacement::Beside,
                PlacementKind::Own => ServerPlacement::Own,
            },
            consistency: consistency(asynchronous),
        },
        SyncMethod::LocalSgd { every, .. } => Synchronisation::LocalSgd { every },
    })
}

/// Returns the seconds that one rank needs to encode and decode a byte of gradients.
fn encoding_s_per_byte(profile: &StepProfile, kind: CompressionKind) -> Result<f64> {
    let layout = profile.layout();
    if layout.num_elements() == 0 {
        return Ok(0.0);
    }
    let mut compressor = BucketCompressor::new(kind, tensor_spans(layout.entries()), 0);
    let mut fastest_s = f64::INFINITY;
    for _ in 0..NUM_ENCODINGS {
        // Magnitudes and signs differ, as in gradients.
        let mut values: Vec<f32> = (0..layout.num_elements())
            .map(|index| ((index * 7919) % 997) as f32 / 499.0 - 1.0)
            .collect();
        let start = Instant::now();
        compressor.sum(&mut values, &SingleCommunicator::new())?;
        fastest_s = fastest_s.min(start.elapsed().as_secs_f64());
    }
    Ok(fastest_s / (layout.num_elements() * size_of::<f32>()) as f64)
}

/// Adds the names of a method to its prediction.
fn name(record: &mut PredictionRecord, method: &SyncMethod) {
    record.method = scaling_method_name(method);
    record.sync = method.kind().to_string();
    record.compress = Some(CompressionKind::None.to_string());
    match *method {
        SyncMethod::Allreduce { compression, .. } if compression.is_some() => {
            record.compress = Some(compression.to_string());
        }
        SyncMethod::Allreduce { reduction, .. } => record.reduction = Some(reduction.to_string()),
        SyncMethod::Exact { .. } => record.reduction = Some("exact".to_owned()),
        SyncMethod::ParameterServer {
            servers, placement, ..
        } => {
            record.servers = Some(servers);
            record.server_placement = Some(placement.to_string());
        }
        SyncMethod::LocalSgd { every, .. } => record.local_steps = Some(every),
    }
}

fn file(
    profile: &ProfileFile,
    network: &NamedNetwork,
    predictions: Vec<PredictionRecord>,
) -> PredictionFile {
    PredictionFile {
        schema: PREDICTION_SCHEMA.to_owned(),
        created: records::now(),
        commit: env!("LOCKSTEP_COMMIT").to_owned(),
        model: profile.model.clone(),
        dtype: profile.dtype.clone(),
        device: profile.device.clone(),
        batch_size_per_rank: profile.batch_size_per_rank,
        threads: Some(profile.threads),
        work: work_of(profile),
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
            ranks_per_node: Some(network.model.ranks_per_node()),
            text: network.model.to_string(),
        },
        predictions,
        published: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cli::PredictScalingArgs;
    use crate::config::{Family, ScalingConfig};
    use records::{BucketRecord, PROFILE_SCHEMA, ParameterRecord};

    /// Returns a step of 100 ms with 32 samples.
    ///
    /// Its backward pass takes 60 ms through two layers of 64 KiB and one of 4 KiB.
    fn profile() -> ProfileFile {
        let parameter = |name: &str, shape: &[usize], ready_s| ParameterRecord {
            name: name.to_owned(),
            shape: shape.to_vec(),
            ready_s,
        };
        ProfileFile {
            schema: PROFILE_SCHEMA.to_owned(),
            model: "resnet20".to_owned(),
            dtype: "f32".to_owned(),
            threads: 1,
            batch_size_per_rank: 32,
            step_s: 0.1,
            forward_s: 0.03,
            backward_s: 0.06,
            optimizer_s: 0.005,
            other_s: 0.005,
            buckets: vec![BucketRecord {
                ready_s: 0.05,
                bytes: 135_168,
            }],
            parameters: vec![
                parameter("first.conv.weight", &[128, 128], 0.05),
                parameter("second.conv.weight", &[128, 128], 0.03),
                parameter("fc.weight", &[32, 32], 0.01),
            ],
            ..ProfileFile::default()
        }
    }

    fn predicted(args: PredictScalingArgs) -> (PredictionFile, Vec<String>) {
        let args = PredictScalingArgs {
            profile: Some(vec!["step.json".into()]),
            ..args
        };
        let config = ScalingConfig::resolve(&args, &Family::BUILT_IN, 1)
            .unwrap()
            .unwrap();
        let network = &config.networks[0];
        forecast(
            &[profile()],
            network,
            &config.methods,
            &config.ranks,
            config.scaling,
        )
        .unwrap()
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
        let args = PredictScalingArgs {
            methods: None,
            ..with(&[], &[1, 2, 8], ScalingKind::Weak)
        };
        let (file, left_out) = predicted(args);
        assert_eq!((file.predictions.len(), left_out.len()), (27, 0));
        let read: PredictionFile =
            serde_json::from_str(&serde_json::to_string(&file).unwrap()).unwrap();
        assert_eq!(read.predictions.len(), file.predictions.len());
        for (record, read) in file.predictions.iter().zip(&read.predictions) {
            assert_eq!(record.method, read.method);
            assert!((record.step_ms.unwrap() - read.step_ms.unwrap()).abs() < 1e-9);
            assert!(
                record.efficiency.unwrap() <= 1.0 + 1e-9 && record.exposed_ms.unwrap() >= 0.0,
                "{record:?}"
            );
            assert!(
                record.ranks > 1 || (record.step_ms.unwrap() - 100.0).abs() < 1e-9,
                "{record:?}"
            );
            if let Some(best) = record.best_images_per_second {
                assert!(
                    best > 0.95 * record.images_per_second.unwrap(),
                    "{record:?}"
                );
            }
        }
    }

    #[test]
    fn strong_scaling_keeps_the_global_batch_and_leaves_out_what_does_not_divide_it() {
        let (file, left_out) = predicted(with(
            &["allreduce:ring"],
            &[1, 2, 3, 32],
            ScalingKind::Strong,
        ));
        let batches: Vec<(usize, usize)> = file
            .predictions
            .iter()
            .map(|record| (record.ranks, record.batch_size_per_rank))
            .collect();
        assert_eq!(batches, [(1, 32), (2, 16), (32, 1)]);
        assert_eq!(
            left_out,
            ["allreduce:ring on 3 ranks: they do not divide a global batch of 32"]
        );
        // The ranks do not share the optimizer and the rest, so Amdahl's law holds: the network is
        // fast compared with 50 ms.
        let speedup = file.predictions[1].speedup.unwrap();
        assert!(
            speedup < 1.0 / (0.1 + 0.9 / 2.0) + 1e-9 && speedup > 1.6,
            "{speedup}"
        );
        let (file, left_out) = predicted(with(&["parameter-server:4"], &[2], ScalingKind::Weak));
        assert_eq!((file.predictions.len(), left_out.len()), (0, 1));
    }
}
