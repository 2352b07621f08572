//! Published scaling results and predictions for the same ranks, gradients and networks.
//!
//! This checks plausibility only, because each result needs assumptions.
//!
//! In: a table of results with sources. Out: [`PublishedFigure`]s, and predictions for clusters
//! without a published result.
//! Invariant: predictions are computed, never stored.
//! Source: named in each entry, with the assumptions.

use distributed::gradients::ReductionKind;
use records::{BucketRecord, PublishedFigure};

use crate::{NetworkModel, SimulationError, StepProfile, Synchronisation, predict};

/// Share of the forward pass in both passes; two of a layer's three products are in the backward
/// pass.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

const RING: Synchronisation = Synchronisation::AllReduce(ReductionKind::Ring);

/// Nodes of eight H100 with eight adapters. Measured by nccl-tests (NVIDIA/nccl-tests, issues 212
/// and 290): 370 GB/s by a ring over NVLink 4 of 900 GB/s in both directions, 46 to 48 GB/s of an
/// adapter of 400 Gbit/s.
const H100: &str = "1.5us,47GB/s@8:1us,370GB/s";

/// Published result and the inputs of its simulation.
#[derive(Clone, Copy)]
struct PublishedClaim {
    /// Publication.
    source: &'static str,
    /// Measurement.
    what: &'static str,
    /// GPUs.
    ranks: usize,
    /// Speedup per GPU; `None` if there is no measurement.
    efficiency: Option<f64>,
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
    /// Sum of the buckets, and whether it overlaps the backward pass.
    sum: (Synchronisation, bool),
    /// Inputs that the source does not state.
    assumed: &'static str,
}

const FIGURES: [PublishedClaim; 8] = [
    PublishedClaim {
        source: "Mahon et al. 2020 (CCGrid), abstract",
        what: "ResNet-44 on CIFAR-10, PyTorch DDP: 10.11 times one V100 on 12",
        ranks: 12,
        efficiency: Some(10.11 / 12.0),
        // With 1x1 convolutions in the shortcuts.
        num_parameters: 661_338,
        // 0.583 GFLOP an image at the 9.0 TFLOP/s of ResNet-50 on a V100.
        images_per_second_of_one: 15_400.0,
        batch_size_per_rank: 128,
        bucket_bytes: 25 << 20,
        network: "ib-edr@4:10us,10GB/s",
        sum: (RING, true),
        assumed: "EDR InfiniBand, 4 GPUs a node, batch 128 a GPU, and the rate of one GPU, derived from its rate on ResNet-50",
    },
    PublishedClaim {
        source: "Wang (WASET), over InfiniBand",
        what: "ResNet-50, 64 GPUs",
        ranks: 64,
        efficiency: Some(0.89),
        num_parameters: 25_557_032,
        images_per_second_of_one: 367.0,
        batch_size_per_rank: 64,
        bucket_bytes: 25 << 20,
        network: "ib-edr",
        sum: (RING, true),
        assumed: "EDR InfiniBand, a card for each GPU, V100 in f32 at NVIDIA's 367 images/s, batch 64 a GPU, buckets of 25 MiB",
    },
    PublishedClaim {
        source: "Wang (WASET), over 10 Gbit/s Ethernet",
        what: "ResNet-50, 64 GPUs",
        ranks: 64,
        efficiency: Some(0.65),
        num_parameters: 25_557_032,
        images_per_second_of_one: 367.0,
        batch_size_per_rank: 64,
        bucket_bytes: 25 << 20,
        network: "10gbe",
        sum: (RING, true),
        assumed: "a card for each GPU, V100 in f32 at NVIDIA's 367 images/s, batch 64 a GPU, buckets of 25 MiB",
    },
    PublishedClaim {
        source: "Horovod's documentation",
        what: "ResNet-101, 128 servers with 4 Pascal GPUs, 25 Gbit/s RoCE",
        ranks: 512,
        efficiency: Some(0.90),
        num_parameters: 44_549_160,
        // 1,656.82 images/s on 16.
        images_per_second_of_one: 103.6,
        batch_size_per_rank: 64,
        bucket_bytes: 64 << 20,
        network: "5us,2.9GB/s@4:10us,10GB/s",
        sum: (RING, true),
        assumed: "batch 64 a GPU, latencies, PCIe of 10 GB/s, one GPU as a sixteenth of the 1,656.82 images/s on 16, fusion buffers of 64 MiB",
    },
    PublishedClaim {
        source: "Horovod's documentation",
        what: "Inception V3, 128 servers with 4 Pascal GPUs, 25 Gbit/s RoCE",
        ranks: 512,
        efficiency: Some(0.90),
        num_parameters: 23_834_568,
        images_per_second_of_one: 142.0,
        batch_size_per_rank: 64,
        bucket_bytes: 64 << 20,
        network: "5us,2.9GB/s@4:10us,10GB/s",
        sum: (RING, true),
        assumed: "batch 64 a GPU, latencies, PCIe of 10 GB/s, 142 images/s of one P100 (TensorFlow's benchmark page, from memory), no \
                  auxiliary head, fusion buffers of 64 MiB",
    },
    PublishedClaim {
        source: "PyTorch, benchmarks/distributed/ddp/README.md",
        what: "ResNet-50, PyTorch DDP, two DGX-1: 306 of 329 images/s",
        ranks: 16,
        efficiency: Some(306.0 / 329.0),
        num_parameters: 25_557_032,
        images_per_second_of_one: 329.0,
        batch_size_per_rank: 32,
        bucket_bytes: 25 << 20,
        network: "1.5us,6GB/s@8:1us,120GB/s",
        sum: (Synchronisation::Nccl, true),
        assumed: "NVLink of 120 GB/s, NCCL's rate for V100, and four adapters of 12 GB/s a node",
    },
    PublishedClaim {
        source: "NVIDIA, DeepLearningExamples, ResNet50 v1.5 for PyTorch",
        what: "ResNet-50, PyTorch DDP in TF32, DGX A100: 7,248 images/s, 938 on one",
        ranks: 8,
        efficiency: Some(7248.0 / 8.0 / 938.0),
        num_parameters: 25_557_032,
        images_per_second_of_one: 938.0,
        batch_size_per_rank: 256,
        bucket_bytes: 25 << 20,
        network: "1.5us,24GB/s@8:1us,235GB/s",
        sum: (Synchronisation::Nccl, true),
        assumed: "batch 256 a GPU, and NVLink of 235 GB/s, NCCL's limit for A100",
    },
    PublishedClaim {
        source: "Li et al. 2020 (VLDB 13), scalability",
        what: "ResNet-50, PyTorch DDP: a step on 256 V100 takes twice as long as on one",
        ranks: 256,
        efficiency: Some(0.5),
        num_parameters: 25_557_032,
        images_per_second_of_one: 329.0,
        batch_size_per_rank: 32,
        bucket_bytes: 25 << 20,
        network: "1.5us,1.5GB/s@8:1us,120GB/s",
        sum: (Synchronisation::Nccl, true),
        assumed: "batch 32 and the rate of PyTorch's benchmark; one adapter of 12 GB/s for 8 GPUs that \
                  no other job uses, while the paper's cluster was shared",
    },
];

/// Captured steps of one H100 in TF32 (`docs/results/steps.csv`): job, parameters, images per
/// second of one GPU, batch, true for overlap. ResNet-44 has ResNet-20's rate over the ratio of
/// the products, 97.2 to 40.8 million an image.
#[rustfmt::skip]
const H100_JOBS: [(&str, u64, f64, usize, bool); 4] = [
    ("ResNet-20, batch 128, Lockstep", 272_474, 57_700.0, 128, false),
    ("ResNet-20, batch 128, PyTorch DDP", 272_474, 50_374.0, 128, true),
    ("ResNet-20, batch 1,024, Lockstep", 272_474, 87_500.0, 1024, false),
    ("ResNet-44, batch 128, Lockstep", 661_338, 24_200.0, 128, false),
];

/// Predicts every published result, and steps of 2, 8 and 64 H100, which have none.
///
/// # Errors
/// When a result cannot be simulated.
pub fn published_answers() -> Result<Vec<PublishedFigure>, SimulationError> {
    let jobs = H100_JOBS.iter();
    let unpublished = jobs.flat_map(|&(what, num_parameters, rate, batch, overlap)| {
        [2, 8, 64].map(|ranks| PublishedClaim {
            source: "nodes of 8 H100, not measured",
            what,
            ranks,
            efficiency: None,
            num_parameters,
            images_per_second_of_one: rate,
            batch_size_per_rank: batch,
            bucket_bytes: 25 << 20,
            network: H100,
            sum: (Synchronisation::Nccl, overlap),
            assumed: "the rate of one GPU, no delay by a slow GPU or by data, no SHARP",
        })
    });
    FIGURES
        .iter()
        .copied()
        .chain(unpublished)
        .map(answer)
        .collect()
}

fn answer(claim: PublishedClaim) -> Result<PublishedFigure, SimulationError> {
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
    let (sum, overlap) = claim.sum;
    let prediction = predict(&step, sum, &network, claim.ranks, overlap)?;
    Ok(PublishedFigure {
        source: claim.source.to_owned(),
        what: claim.what.to_owned(),
        ranks: claim.ranks as u64,
        published_efficiency: claim.efficiency,
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
        assert_eq!(answers.len(), FIGURES.len() + 3 * H100_JOBS.len());
        for answer in &answers {
            let predicted = answer.predicted_efficiency.unwrap();
            assert!(predicted > 0.5 && predicted <= 1.0, "{answer:?}");
            assert!(!answer.assumed.is_empty());
        }
    }

    #[test]
    fn the_tables_of_the_documentation_have_these_predictions() {
        let predicted = published_answers().unwrap();
        let mut predicted = predicted
            .iter()
            .map(|answer| format!("{:.1} %", 100.0 * answer.predicted_efficiency.unwrap()));
        for (table, columns) in [
            (include_str!("../../../docs/results/published.csv"), 3..4),
            (
                include_str!("../../../docs/results/gpus-predicted.csv"),
                2..5,
            ),
        ] {
            for line in table.lines().skip(1) {
                let cells: Vec<&str> = line.split(',').collect();
                for cell in &cells[columns.clone()] {
                    assert_eq!(Some(*cell), predicted.next().as_deref(), "{line}");
                }
            }
        }
        assert_eq!(predicted.next(), None);
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
