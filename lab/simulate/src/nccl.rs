//! Time of NCCL's all-reduce on GPUs of equal nodes.
//!
//! In: a network, a number of GPUs, bytes. Out: seconds.
//! Invariant: the fastest algorithm and protocol counts, as in NCCL.
//! Source: NCCL 2.22, `src/graph/tuning.cc`, the model by which NCCL chooses: its latencies, and
//! its shares of the bandwidth. Sanders, Speck & Traeff 2009, Two-tree algorithms for full
//! bandwidth broadcast, reduction and scan, for the trees between nodes.
//!
//! SHARP, which sums in the switches of NVLink and InfiniBand, is left out.

use crate::network::NetworkModel;

/// Protocols LL, LL128 and Simple of a ring through all GPUs: microseconds of the start, of a step
/// inside a node, and of a step between nodes; share of the bandwidth.
const RING: [[f64; 4]; 3] = [
    [6.6, 0.6, 2.7, 0.25],
    [14.0, 1.9, 4.0, 0.92],
    [8.4, 3.4, 14.0, 1.0],
];

/// The same for a chain inside each node and double binary trees between nodes.
const TREE: [[f64; 4]; 3] = [
    [6.8, 0.6, 5.0, 0.24],
    [14.0, 1.25, 8.5, 0.86],
    [0.0, 28.0, 28.0, 0.92],
];

/// Share of a tree's bandwidth at 1 to 32 MB; NCCL's table has 0.4 to 0.9.
const TREE_SHARE: f64 = 0.6;

/// Most bytes per second of LL on one, two and more nodes.
const MOST_LL: [f64; 3] = [87.7e9, 39.0e9, 20.4e9];

/// Returns the seconds of an all-reduce of `bytes` by `gpus` GPUs; 0 for one.
///
/// The link inside a node has the bandwidth of a ring over NVLink. A node has an adapter of the
/// other link for each GPU. Latencies are NCCL's, not those of the links.
pub(crate) fn all_reduce_s(network: &NetworkModel, gpus: usize, bytes: u64) -> f64 {
    if gpus < 2 {
        return 0.0;
    }
    let nodes = gpus.div_ceil(network.ranks_per_node());
    let per_node = gpus.div_ceil(nodes);
    let mut bandwidth = network.link(true).beta.recip();
    if nodes > 1 {
        bandwidth = bandwidth.min(per_node as f64 / network.link(false).beta);
    }
    let fastest_s = |protocols: &[[f64; 4]; 3], inside: usize, between: usize, ratio: f64| {
        let limits = [MOST_LL[nodes.min(3) - 1], f64::INFINITY, f64::INFINITY];
        let seconds = protocols.iter().zip(limits).map(|(protocol, most)| {
            let [start, step_inside, step_between, share] = protocol;
            let steps_us = inside as f64 * step_inside + between as f64 * step_between;
            let bytes_per_second = (bandwidth * share).min(most) * ratio;
            (start + steps_us) * 1e-6 + bytes as f64 / bytes_per_second
        });
        seconds.fold(f64::INFINITY, f64::min)
    };
    let steps = 2 * (gpus - 1);
    let between = if nodes > 1 { 2 * nodes } else { 0 };
    let ring_ratio = gpus as f64 / steps as f64;
    let depth = nodes.next_power_of_two().ilog2() as usize;
    f64::min(
        fastest_s(&RING, steps.saturating_sub(between), between, ring_ratio),
        fastest_s(&TREE, 2 * (per_node - 1), 2 * depth, 0.5 * TREE_SHARE),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seconds on nodes of eight H100 with an adapter of 400 Gbit/s for each GPU.
    fn seconds(gpus: usize, bytes: u64) -> f64 {
        let network = "1.5us,47GB/s@8:1us,370GB/s".parse().unwrap();
        all_reduce_s(&network, gpus, bytes)
    }

    #[test]
    fn large_messages_have_about_the_published_bandwidth() {
        let bus = |gpus: usize| {
            let copies = 2.0 * (gpus - 1) as f64 / gpus as f64;
            8.0 * copies / seconds(gpus, 8_000_000_000)
        };
        // NVIDIA/nccl-tests, issue 212: 370 GB/s on 8 GPUs. Four nodes at Voltage Park: 331 GB/s.
        assert!((bus(8) - 370.0).abs() < 5.0, "{}", bus(8));
        assert!((bus(32) / 331.0 - 1.0).abs() < 0.15, "{}", bus(32));
    }

    #[test]
    fn small_messages_take_logarithmic_time_between_nodes() {
        let growth = seconds(512, 1 << 20) - seconds(64, 1 << 20);
        assert!(growth > 0.0 && growth < 60e-6, "{growth}");
        assert_eq!(seconds(1, 1 << 20), 0.0);
    }
}
