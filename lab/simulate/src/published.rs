//! Published scaling results and predictions for the same ranks, gradients and networks.
//!
//! This checks plausibility only, because each result needs assumptions.
//!
//! In: a table of results with sources. Out: [`PublishedFigure`]s.
//! Invariant: predictions are computed, never stored.
//! Source: named in each entry, with the assumptions.

use distributed::gradients::ReductionKind;
use records::{BucketRecord, PublishedFigure};

use crate::{NetworkModel, SimulationError, StepProfile, predict};

/// Share of the forward pass in both passes; two of a layer's three products are in the backward
/// pass.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

/// Published result and the inputs of its simulation.
struct PublishedClaim {
    /// Publication.
    source: &'static str,
    /// Measurement.
    what: &'static str,
    /// GPUs.
    ranks: usize,
    /// Speedup per GPU.
    efficiency: f64,
    /// Parameters of the network, sent as `f32`.
    num_parameters: u64,
    /// Images per second of one GPU.
    images_per_second_of_one: f64,
    /// Samples of one GPU's step.
    batch_size_per_rank: usize,
    /// Most bytes of a bucket.
    bucket_bytes: u64,
    /// Network as in `--network`.
    network: &'static str,
    /// Inputs that the source does not state.
    assumed: &'static str,
}

const FIGURES: [PublishedClaim; 5] = [
    PublishedClaim {
        source: "Mahon et al. 2020 (CCGrid), abstract",
        what: "ResNet-44 on CIFAR-10, PyTorch DDP: 10.11 times one V100 on 12",
        ranks: 12,
        efficiency: 10.11 / 12.0,
        // With 1x1 convolutions in the shortcuts.
        num_parameters: 661_338,
        // 0.583 GFLOP an image at the 9.0 TFLOP/s of ResNet-50 on a V100.
        images_per_second_of_one: 15_400.0,
        batch_size_per_rank: 128,
        bucket_bytes: 25 << 20,
        network: "ib-edr@4:10us,10GB/s",
        assumed: "EDR InfiniBand, 4 GPUs a node, batch 128 a GPU, and the rate of one GPU, derived from its rate on ResNet-50",
    },
    PublishedClaim {
        source: "Wang (WASET), over InfiniBand",
        what: "ResNet-50, 64 GPUs",
        ranks: 64,
        efficiency: 0.89,
        num_parameters: 25_557_032,
        images_per_second_of_one: 367.0,
        batch_size_per_rank: 64,
        bucket_bytes: 25 << 20,
        network: "ib-edr",
        assumed: "EDR InfiniBand, a card for each GPU, V100 in f32 at NVIDIA's 367 images/s, batch 64 a GPU, buckets of 25 MiB",
    },
    PublishedClaim {
        source: "Wang (WASET), over 10 Gbit/s Ethernet",
        what: "ResNet-50, 64 GPUs",
        ranks: 64,
        efficiency: 0.65,
        num_parameters: 25_557_032,
        images_per_second_of_one: 367.0,
        batch_size_per_rank: 64,
        bucket_bytes: 25 << 20,
        network: "10gbe",
        assumed: "a card for each GPU, V100 in f32 at NVIDIA's 367 images/s, batch 64 a GPU, buckets of 25 MiB",
    },
    PublishedClaim {
        source: "Horovod's documentation",
        what: "ResNet-101, 128 servers with 4 Pascal GPUs, 25 Gbit/s RoCE",
        ranks: 512,
        efficiency: 0.90,
        num_parameters: 44_549_160,
        // 1,656.82 images/s on 16.
        images_per_second_of_one: 103.6,
        batch_size_per_rank: 64,
        bucket_bytes: 64 << 20,
        network: "5us,2.9GB/s@4:10us,10GB/s",
        assumed: "batch 64 a GPU, latencies, PCIe of 10 GB/s, one GPU as a sixteenth of the 1,656.82 images/s on 16, fusion buffers of 64 MiB",
    },
    PublishedClaim {
        source: "Horovod's documentation",
        what: "Inception V3, 128 servers with 4 Pascal GPUs, 25 Gbit/s RoCE",
        ranks: 512,
        efficiency: 0.90,
        num_parameters: 23_834_568,
        images_per_second_of_one: 142.0,
        batch_size_per_rank: 64,
        bucket_bytes: 64 << 20,
        network: "5us,2.9GB/s@4:10us,10GB/s",
        assumed: "batch 64 a GPU, latencies, PCIe of 10 GB/s, 142 images/s of one P100 (TensorFlow's benchmark page, from memory), no \
                  auxiliary head, fusion buffers of 64 MiB",
    },
];

/// Predicts every published result.
///
/// # Errors
/// When a result cannot be simulated.
pub fn published_answers() -> Result<Vec<PublishedFigure>, SimulationError> {
    FIGURES.iter().map(answer).collect()
}

fn answer(claim: &PublishedClaim) -> Result<PublishedFigure, SimulationError> {
    let network: NetworkModel = claim
        .network
        .parse()
        .expect("a figure's network reads as one");
    // Gradients of a GPU come evenly during the backward pass.
    let seconds = claim.batch_size_per_rank as f64 / claim.images_per_second_of_one;
    let backward_s = seconds * (1.0 - FORWARD_SHARE);
    let total = 4 * claim.num_parameters;
    let bucket = |index: u64| {
        let start = index * claim.bucket_bytes;
        let end = total.min(start + claim.bucket_bytes);
        BucketRecord {
            ready_s: backward_s * end as f64 / total as f64,
            bytes: end - start,
        }
    };
    let step = StepProfile {
        forward_s: seconds * FORWARD_SHARE,
        backward_s,
        buckets: (0..total.div_ceil(claim.bucket_bytes))
            .map(bucket)
            .collect(),
        batch_size_per_rank: claim.batch_size_per_rank,
        ..StepProfile::default()
    };
    let prediction = predict(&step, ReductionKind::Ring, &network, claim.ranks, true)?;
    Ok(PublishedFigure {
        source: claim.source.to_owned(),
        what: claim.what.to_owned(),
        ranks: claim.ranks as u64,
        published_efficiency: Some(claim.efficiency),
        predicted_efficiency: Some(prediction.efficiency),
        assumed: claim.assumed.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_an_answer_that_lies_between_half_and_all() {
        let answers = published_answers().unwrap();
        assert_eq!(answers.len(), FIGURES.len());
        for answer in &answers {
            let predicted = answer.predicted_efficiency.unwrap();
            assert!(predicted > 0.5 && predicted <= 1.0, "{answer:?}");
            assert!(!answer.assumed.is_empty());
        }
    }

    #[test]
    fn the_slower_network_loses_more() {
        let answers = published_answers().unwrap();
        let of = |text: &str| {
            answers
                .iter()
                .find(|answer| answer.source.contains(text))
                .unwrap()
        };
        assert!(of("Ethernet").predicted_efficiency < of("InfiniBand").predicted_efficiency);
    }
}
