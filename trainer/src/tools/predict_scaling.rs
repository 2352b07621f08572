//! Methods of synchronisation in the form of the simulation.

use distributed::gradients::ReductionKind;
use records::{PredictionRecord, ProfileFile};
use simulate::{Method, Synchronisation, step_of};

use crate::config::cli::SyncArgs;
use crate::config::{
    OnOff, ReductionChoice, SyncMethod, SyncSection, UpdateKind, scaling_method_name,
};
use crate::step::sync_plan::{bucket_cap_bytes, consistency};

/// Returns the method that these options request, for the model of `profile`.
pub fn method(sync: &SyncSection, profile: &ProfileFile) -> Method {
    let synchronisation = match sync.method {
        SyncMethod::Allreduce { compression, .. } if compression.is_some() => {
            Synchronisation::Compressed {
                kind: compression.0,
                encoding_s_per_byte: 0.0,
            }
        }
        SyncMethod::Allreduce { reduction, .. } => {
            let kind = reduction.and_then(ReductionChoice::kind);
            kind.map_or(Synchronisation::Nccl, Synchronisation::AllReduce)
        }
        SyncMethod::Exact { .. } => Synchronisation::AllReduce(ReductionKind::Exact),
        SyncMethod::ParameterServer {
            servers,
            placement,
            asynchronous,
        } => Synchronisation::ParameterServer {
            servers,
            placement,
            consistency: consistency(asynchronous),
        },
        SyncMethod::LocalSgd { every, .. } => Synchronisation::LocalSgd { every },
    };
    let flags = SyncArgs::from(sync.clone());
    let gradient_bytes = step_of(profile).num_bytes();
    let is_on_device = sync.update == UpdateKind::Device;
    Method {
        options: PredictionRecord {
            method: scaling_method_name(&sync.method),
            sync: sync.method.kind().to_string(),
            reduction: flags.reduction.map(|reduction| reduction.to_string()),
            compress: Some(flags.compress.unwrap_or_default().to_string()),
            servers: flags.servers,
            server_placement: flags.server_placement.map(|place| place.to_string()),
            local_steps: flags.every,
            ..PredictionRecord::default()
        },
        synchronisation,
        // A device sends all gradients after the backward pass.
        overlap: sync.overlap == OnOff::On && !is_on_device,
        bucket_bytes: match is_on_device {
            true => gradient_bytes,
            false => bucket_cap_bytes(sync, gradient_bytes as usize) as u64,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cli::PredictScalingArgs;
    use crate::config::{Family, ScalingConfig};
    use records::PredictionFile;
    use simulate::{Scaling, forecast};

    /// Returns a step of 100 ms with 32 samples.
    fn profile() -> ProfileFile {
        let text = include_str!("../../../lab/simulate/tests/profile.json");
        serde_json::from_str(text).unwrap()
    }

    fn predicted(args: PredictScalingArgs) -> (PredictionFile, Vec<String>) {
        let args = PredictScalingArgs {
            profile: Some(vec!["step.json".into()]),
            ..args
        };
        let config = ScalingConfig::resolve(&args, &Family::BUILT_IN, 1)
            .unwrap()
            .unwrap();
        let methods = config.methods.iter();
        let methods: Vec<Method> = methods.map(|sync| method(sync, &profile())).collect();
        let network = &config.networks[0];
        forecast(
            &[profile()],
            network,
            &methods,
            &config.ranks,
            config.scaling,
        )
        .unwrap()
    }

    fn with(methods: &[&str], ranks: &[usize], scaling: Scaling) -> PredictScalingArgs {
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
            ..with(&[], &[1, 2, 8], Scaling::Weak)
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
        let (file, left_out) =
            predicted(with(&["allreduce:ring"], &[1, 2, 3, 32], Scaling::Strong));
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
        let servers = predicted(with(&["parameter-server:4"], &[2], Scaling::Weak));
        assert_eq!((servers.0.predictions.len(), servers.1.len()), (0, 1));
    }
}
