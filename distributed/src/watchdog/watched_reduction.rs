//! A reduction that tells the watchdog which bucket it is at.
//!
//! In: buckets. Out: what the reduction inside makes of them. Invariant: nothing but what this rank is seen to do changes.

use std::sync::Arc;

use super::RankStatus;
use crate::{
    CollectiveError, Communicator,
    reduction::{BucketContext, BucketReduction, ReductionState, Traffic},
};

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

    fn roll_back(&mut self) {
        self.inner.roll_back();
    }

    fn state(&self) -> Option<ReductionState> {
        self.inner.state()
    }

    fn restore(&mut self, num_steps: u64, state: &ReductionState) {
        self.inner.restore(num_steps, state);
    }

    fn num_slots(&self) -> usize {
        self.inner.num_slots()
    }

    fn runs_on_one_rank(&self) -> bool {
        self.inner.runs_on_one_rank()
    }

    fn waits_on(&self) -> Option<Arc<dyn Communicator>> {
        self.inner.waits_on()
    }
}
