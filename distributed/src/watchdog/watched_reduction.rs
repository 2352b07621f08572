//! A reduction that tells the watchdog which bucket it is at.
//!
//! In: buckets. Out: what the reduction inside makes of them. Invariant: nothing but what this rank is seen to do changes.

use std::sync::Arc;

use super::RankStatus;
use crate::{BucketContext, BucketReduction, Carried, CollectiveError, Communicator, Traffic};

/// Tells of each bucket before and after another reduction takes it.
#[derive(Debug)]
pub struct WatchedReduction {
    inner: Box<dyn BucketReduction>,
    rank_status: Arc<RankStatus>,
}

impl WatchedReduction {
    /// `inner`, whose buckets are noted in `rank_status`.
    pub fn new(inner: Box<dyn BucketReduction>, rank_status: Arc<RankStatus>) -> Self {
        Self { inner, rank_status }
    }
}

impl BucketReduction for WatchedReduction {
    fn reduce(
        &mut self,
        context: BucketContext,
        bucket: usize,
        values: &mut Vec<f32>,
    ) -> Result<Traffic, CollectiveError> {
        self.rank_status.bucket(Some(bucket));
        let traffic = self.inner.reduce(context, bucket, values);
        self.rank_status.bucket(None);
        traffic
    }

    fn take_back(&mut self) {
        self.inner.take_back();
    }

    fn carried(&self) -> Option<Carried> {
        self.inner.carried()
    }

    fn go_on(&mut self, num_steps: u64, carried: &Carried) {
        self.inner.go_on(num_steps, carried);
    }

    fn num_slots(&self) -> usize {
        self.inner.num_slots()
    }

    fn is_needed_alone(&self) -> bool {
        self.inner.is_needed_alone()
    }

    fn waits_on(&self) -> Option<Arc<dyn Communicator>> {
        self.inner.waits_on()
    }
}
