//! Consistency of replicas: broadcast of modules, averages, fingerprints, seeds.
//!
//! In: a module on every rank. Out: root's parameters on every rank, fingerprints, averaged norm
//! statistics, and seeds for burn's random numbers.
//! Invariant: with one rank, the module's bits are untouched. No two ranks, and no two steps of a
//! rank, have the same seed.

use burn::module::Module;
use sha2::{Digest, Sha256};

use crate::communicator::expect_equal;
use crate::error::list;
use crate::layout::first_u64;
use crate::{
    CollectiveError, Communicator, ROOT,
    replica::{ParameterLayout, read, write},
};

/// Returns `module` with the parameters and norm statistics of rank `root`.
///
/// # Errors
/// Returns an error on all ranks if the modules differ in structure.
///
/// # Collective
/// Must be called by all ranks, with the same root.
pub fn broadcast_module<M: Module>(
    module: M,
    communicator: &dyn Communicator,
    root: usize,
) -> Result<M, CollectiveError> {
    if communicator.world_size() == 1 {
        return Ok(module);
    }
    let parameters = ParameterLayout::new(&module);
    let state = ParameterLayout::state(&module);
    let describe = |layout: &ParameterLayout| {
        format!(
            "{} with {} elements (hash {:016x})",
            layout.entries().len(),
            layout.num_elements(),
            layout.hash()
        )
    };
    let description = format!(
        "{} parameters, {} statistics",
        describe(&parameters),
        describe(&state)
    );
    expect_equal(communicator, "module", &description)?;
    let mut module = module;
    for layout in [parameters, state] {
        let mut bytes = floats_to_bytes(&read(&module, &layout));
        communicator.broadcast(root, &mut bytes)?;
        module = write(module, &layout, &bytes_to_floats(&bytes));
    }
    Ok(module)
}

/// Returns `module` with norm statistics that are the plain mean over all ranks.
///
/// Sums are computed in double precision, so statistics that are equal on all ranks keep their
/// bits. The statistics of clones that share burn's running states change too (see [`write()`]). A
/// [`Module::valid`] copy gives averages for an evaluation without a change of the model in
/// training.
///
/// # Errors
/// Returns an error if the collective fails.
///
/// # Collective
/// Must be called by all ranks.
///
/// # Differs from PyTorch
/// `DistributedDataParallel` broadcasts root's buffers in every forward pass. Here the ranks'
/// buffers differ until this call.
pub fn average_norm_statistics<M: Module>(
    module: M,
    communicator: &dyn Communicator,
) -> Result<M, CollectiveError> {
    if communicator.world_size() == 1 {
        return Ok(module);
    }
    let layout = ParameterLayout::statistics(&module);
    let mut sums: Vec<f64> = read(&module, &layout).into_iter().map(f64::from).collect();
    communicator.all_reduce_sum_f64(&mut sums)?;
    let num_ranks = communicator.world_size() as f64;
    let means: Vec<f32> = sums
        .into_iter()
        .map(|sum| (sum / num_ranks) as f32)
        .collect();
    Ok(write(module, &layout, &means))
}

/// Returns the SHA-256 of the bits of all trainable parameters in module order, as little-endian
/// `f32`. Norm statistics are not included.
pub fn fingerprint<M: Module>(module: &M) -> String {
    let digest = digest_of(&read(module, &ParameterLayout::new(module)));
    digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns the first 64 bits of the SHA-256 of each tensor's bits, as little-endian `f32`. `values`
/// are flat in the order of `layout`.
///
/// # Panics
/// Panics if `values` and the layout differ in length.
pub fn tensor_hashes(layout: &ParameterLayout, values: &[f32]) -> Vec<u64> {
    assert_eq!(
        values.len(),
        layout.num_elements(),
        "values and layout differ in length"
    );
    layout
        .entries()
        .iter()
        .map(|entry| first_u64(digest_of(&values[entry.range()])))
        .collect()
}

fn digest_of(values: &[f32]) -> Sha256 {
    let mut digest = Sha256::new();
    // Converting one value at a time takes several times as long.
    values
        .chunks(1 << 12)
        .for_each(|values| digest.update(floats_to_bytes(values)));
    digest
}

/// Returns the fingerprint of `module`, which must be the same on all ranks. `epoch` appears in the
/// error message.
///
/// # Errors
/// Returns an error on all ranks if fingerprints differ. The error names every rank that differs
/// from root.
///
/// # Collective
/// Must be called by all ranks.
pub fn check_fingerprint<M: Module>(
    module: &M,
    communicator: &dyn Communicator,
    epoch: u64,
) -> Result<String, CollectiveError> {
    let mine = fingerprint(module);
    let fingerprints = communicator.all_gather(mine.as_bytes())?;
    let ranks: Vec<usize> = (0..fingerprints.len())
        .filter(|&rank| fingerprints[rank] != fingerprints[ROOT])
        .collect();
    match ranks.first() {
        None => Ok(mine),
        Some(&first) => Err(CollectiveError::Failed(format!(
            "epoch {}: parameters drifted apart: fingerprint is {} on {}, expected {} as on rank {ROOT}",
            epoch.saturating_add(1),
            String::from_utf8_lossy(&fingerprints[first]),
            list(&ranks),
            String::from_utf8_lossy(&fingerprints[ROOT])
        ))),
    }
}

/// Returns the bytes of `values`, four per value.
pub fn floats_to_bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Returns the floats in `bytes`, the inverse of [`floats_to_bytes`]. Ignores incomplete floats at
/// the end.
pub fn bytes_to_floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}

/// Distance between the seeds of ranks. It is odd, so that all seeds differ, and has no pattern
/// (2^64 / the golden ratio).
const ODD_STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns a seed for `rank` and `step`, for `Device::seed` before the step's forward pass. With
/// the same seed on all ranks, all ranks would draw the same dropout masks.
pub fn draw_seed(seed: u64, rank: usize, step: u64) -> u64 {
    let of_rank = seed.wrapping_add((rank as u64 + 1).wrapping_mul(ODD_STRIDE));
    // The second multiplication separates the following steps from the steps of other ranks.
    of_rank.wrapping_mul(ODD_STRIDE).wrapping_add(step)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ranks_and_steps_have_seeds_that_differ() {
        let seeds: HashSet<u64> = (0..16)
            .flat_map(|rank| (0..1000).map(move |step| draw_seed(7, rank, step)))
            .collect();
        assert_eq!(seeds.len(), 16_000);
    }
}
