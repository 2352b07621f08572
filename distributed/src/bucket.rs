//! Groups of parameters whose gradients are reduced together.
//!
//! In: a layout and a limit in bytes. Out: contiguous ranges of the flat gradient buffer, last
//! parameters first.
//! Invariant: the buckets are a pure function and equal on all ranks. Each parameter lies
//! completely in one bucket.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), section 3.2.3: reverse order follows
//! the backward pass, and a small first bucket starts communication early.

use std::ops::Range;

use sha2::{Digest, Sha256};

use crate::layout::first_u64;
use crate::replica::ParameterLayout;

/// Limit of the first bucket, in bytes.
const FIRST_BUCKET_CAP_BYTES: usize = 1 << 18;

/// Parameters whose gradients one collective reduces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Indices of the elements in the flat buffer.
    pub elements: Range<usize>,
    /// Indices of the parameters in the layout, at least one.
    pub parameters: Range<usize>,
}

/// The buckets of a layout. Bucket 0 holds the last parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketPlan {
    buckets: Vec<Bucket>,
    layout_hash: u64,
}

impl BucketPlan {
    /// Returns the default limit for `total_bytes` of gradients: an eighth of the bytes, between 64
    /// and 512 KiB.
    ///
    /// The reduction of the last bucket does not overlap with the backward pass, so smaller buckets
    /// are better. Each bucket adds a latency, so very small buckets are worse. Larger buckets gain
    /// no bandwidth. Measured on hosts with 200 Mbit/s and 1 Gbit/s links.
    #[must_use]
    pub fn default_cap_bytes(total_bytes: usize) -> usize {
        (total_bytes / 8).clamp(1 << 16, 1 << 19)
    }

    /// Fills buckets from the last parameter to the first, each up to `bucket_cap_bytes`. The first
    /// bucket holds at most 256 KiB.
    ///
    /// A parameter larger than the limit has a bucket of only this parameter.
    ///
    /// # Units
    /// `bucket_cap_bytes` counts bytes of `f32`.
    pub fn new(layout: &ParameterLayout, bucket_cap_bytes: usize) -> Self {
        let entries = layout.entries();
        let mut buckets: Vec<Bucket> = Vec::new();
        let mut end = entries.len();
        while end > 0 {
            let cap_bytes = match buckets.len() {
                0 => bucket_cap_bytes.min(FIRST_BUCKET_CAP_BYTES),
                _ => bucket_cap_bytes,
            };
            let elements_end = entries[end - 1].range().end;
            let mut start = end - 1;
            while start > 0
                && (elements_end - entries[start - 1].offset) * size_of::<f32>() <= cap_bytes
            {
                start -= 1;
            }
            buckets.push(Bucket {
                elements: entries[start].offset..elements_end,
                parameters: start..end,
            });
            end = start;
        }
        Self {
            buckets,
            layout_hash: layout.hash(),
        }
    }

    /// Returns the buckets, in the order of their reduction.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Returns a digest of the layout and the buckets, the same in every process.
    pub fn hash(&self) -> u64 {
        let mut digest = Sha256::new();
        digest.update(self.layout_hash.to_le_bytes());
        for bucket in &self.buckets {
            digest.update((bucket.elements.start as u64).to_le_bytes());
            digest.update((bucket.elements.end as u64).to_le_bytes());
        }
        first_u64(digest)
    }
}
