//! Predictions, and their file.
//!
//! In: a measured step, a network, methods, numbers of ranks. Out: [`PredictionFile`].
//! Invariant: the same step, network and method give the same numbers, except for the measured time
//! of encoding.
//!
//! The cost of compression is measured with the real compressor on one rank. The rank encodes and
//! decodes only its own part. Decoding the top-k parts of other ranks is not included.

use std::time::Instant;

use distributed::communicator::SingleCommunicator;
use distributed::gradients::{BucketCompressor, CompressionKind, tensor_spans};
use records::{
    NetworkFacts, PREDICTION_SCHEMA, PredictionFile, PredictionRecord, ProfileFacts, ProfileFile,
};

use crate::profile_file::{step_of, work_of};
use crate::scenario::{Scaling, Scenario, predict_scenarios};
use crate::{NamedNetwork, SimulationError, StepProfile, Synchronisation};

/// Number of measurements of a compressor. The fastest counts.
const NUM_ENCODINGS: usize = 5;

/// A method of synchronisation to predict.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    /// Options of the method; the other values of the record are ignored.
    pub options: PredictionRecord,
    /// The method in the simulation. [`forecast`] measures the cost of compression.
    pub synchronisation: Synchronisation,
    /// True if buckets are reduced during the backward pass.
    pub overlap: bool,
    /// Largest bucket, bytes.
    pub bucket_bytes: u64,
}

/// Predicts for one network, without date and commit. `profiles` has one step, or two for strong
/// scaling. Also returns the omitted predictions, each with its reason.
///
/// # Errors
/// If a time of a profile or of the network is negative or not finite, or a method cannot be
/// simulated.
pub fn forecast(
    profiles: &[ProfileFile],
    network: &NamedNetwork,
    methods: &[Method],
    ranks: &[usize],
    scaling: Scaling,
) -> Result<(PredictionFile, Vec<String>), SimulationError> {
    let profile = &profiles[0];
    let step = step_of(profile);
    let second = profiles.get(1).map(step_of);
    let mut options = Vec::new();
    let mut scenarios = Vec::new();
    let mut left_out = Vec::new();
    for method in methods {
        let synchronisation = match method.synchronisation {
            Synchronisation::Compressed { kind, .. } => Synchronisation::Compressed {
                kind,
                encoding_s_per_byte: encoding_s_per_byte(&step, kind)?,
            },
            other => other,
        };
        for &ranks in ranks {
            let scenario = Scenario {
                synchronisation,
                overlap: method.overlap,
                bucket_bytes: method.bucket_bytes,
                scaling,
                ranks,
            };
            match scenario.why_not(step.batch_size_per_rank) {
                Some(why) => {
                    let place = records::counted(ranks, "rank");
                    left_out.push(format!("{} on {place}: {why}", method.options.method));
                }
                None => {
                    options.push(&method.options);
                    scenarios.push(scenario);
                }
            }
        }
    }
    let numbers = predict_scenarios(&step, second.as_ref(), &network.model, &scenarios)?;
    let records = options.iter().zip(numbers);
    let records = records.map(|(options, numbers)| PredictionRecord {
        method: options.method.clone(),
        sync: options.sync.clone(),
        reduction: options.reduction.clone(),
        compress: options.compress.clone(),
        servers: options.servers,
        server_placement: options.server_placement.clone(),
        local_steps: options.local_steps,
        ..numbers
    });
    Ok((file(profile, network, records.collect()), left_out))
}

/// Returns the seconds that one rank needs to encode and decode a byte of gradients.
fn encoding_s_per_byte(
    profile: &StepProfile,
    kind: CompressionKind,
) -> Result<f64, SimulationError> {
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

fn file(
    profile: &ProfileFile,
    network: &NamedNetwork,
    predictions: Vec<PredictionRecord>,
) -> PredictionFile {
    PredictionFile {
        schema: PREDICTION_SCHEMA.to_owned(),
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
            source: network.source.clone(),
            alpha_s: network.model.link.alpha,
            bytes_per_second: network.model.link.beta.recip(),
            ranks_per_node: Some(network.model.ranks_per_node()),
            text: network.model.to_string(),
        },
        predictions,
        ..PredictionFile::default()
    }
}
