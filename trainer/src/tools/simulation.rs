//! The speed of many ranks, predicted from the step of one.
//!
//! In: a measured step, the method, a network. Out: the method for a simulation; a table.
//! Invariant: every line of the table says that it is simulated.
//!
//! The cost of compression is measured with the real compressor on one rank: encoding and decoding
//! its own part. Decoding what other ranks send by top-k is not included.

use std::time::Instant;

use anyhow::{Result, bail};
use distributed::communicator::SingleCommunicator;
use distributed::gradients::{BucketCompressor, CompressionKind, ReductionKind, tensor_spans};
use simulate::{Predictor, ServerPlacement, StepProfile, Synchronisation};

use crate::config::{PlacementKind, SimulationConfig, SyncConfig, SyncMethod};
use crate::step::sync_plan::consistency;

/// Measurements of a compressor; the fastest counts.
const NUM_ENCODINGS: usize = 5;

/// Returns one line for each number of ranks.
///
/// # Errors
/// Fewer ranks than servers on them; impossible times in the profile.
pub fn lines(
    profile: &StepProfile,
    sync: &SyncConfig,
    simulation: &SimulationConfig,
) -> Result<Vec<String>> {
    let synchronisation = synchronisation(profile, sync)?;
    let mut lines = vec![format!(
        "simulated {} over {}, overlap {}: batch {} a rank, {:.1} ms of computing a step, {} of gradients",
        sync.method.kind(),
        simulation.network,
        if sync.overlap { "on" } else { "off" },
        profile.batch_size_per_rank,
        profile.compute_s() * 1e3,
        humanised(profile.buckets.iter().map(|bucket| bucket.bytes).sum()),
    )];
    for &ranks in &simulation.ranks {
        let mut predictor = Predictor::new(profile, synchronisation, &simulation.network, ranks)?;
        let prediction = predictor.predict(profile, sync.overlap)?;
        lines.push(format!(
            "simulated {ranks:5} ranks | {:9.1} ms a step | exposed comm {:8.2} ms of {:8.2} | {:10.1} img/s | speedup {:7.2} | efficiency {:5.1} %",
            prediction.step_s * 1e3,
            prediction.exposed_s * 1e3,
            prediction.communication_s * 1e3,
            prediction.images_per_second,
            prediction.speedup,
            100.0 * prediction.efficiency,
        ));
    }
    Ok(lines)
}

/// Returns the method for a simulation.
pub fn synchronisation(profile: &StepProfile, sync: &SyncConfig) -> Result<Synchronisation> {
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

/// Returns the seconds per byte of gradients that one rank needs to encode and decode.
fn encoding_s_per_byte(profile: &StepProfile, kind: CompressionKind) -> Result<f64> {
    let layout = profile.layout().unwrap_or_default();
    if layout.num_elements() == 0 {
        return Ok(0.0);
    }
    let mut compressor = BucketCompressor::new(kind, tensor_spans(layout.entries()), 0);
    let mut fastest_s = f64::INFINITY;
    for _ in 0..NUM_ENCODINGS {
        // Different magnitudes and signs, as in gradients.
        let mut values: Vec<f32> = (0..layout.num_elements())
            .map(|index| ((index * 7919) % 997) as f32 / 499.0 - 1.0)
            .collect();
        let start = Instant::now();
        compressor.sum(&mut values, &SingleCommunicator::new())?;
        fastest_s = fastest_s.min(start.elapsed().as_secs_f64());
    }
    Ok(fastest_s / (layout.num_elements() * size_of::<f32>()) as f64)
}

fn humanised(bytes: u64) -> String {
    format!("{:.2} MiB", bytes as f64 / (1 << 20) as f64)
}
