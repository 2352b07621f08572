//! A reduction that tells the watchdog which bucket it is at.

use std::sync::Arc;

use distributed::{BucketContext, BucketReduction, Carried, CollectiveError, Traffic, Whereabouts};

/// Tells of each bucket before and after `inner` reduces it.
#[derive(Debug)]
pub(super) struct StatusReporting {
    pub(super) inner: Box<dyn BucketReduction>,
    pub(super) status: Arc<Whereabouts>,
}

impl BucketReduction for StatusReporting {
    fn reduce(
        &mut self,
        context: BucketContext,
        bucket: usize,
        values: &mut Vec<f32>,
    ) -> Result<Traffic, CollectiveError> {
        self.status.bucket(Some(bucket));
        let traffic = self.inner.reduce(context, bucket, values);
        self.status.bucket(None);
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

    fn num_slabs(&self) -> usize {
        self.inner.num_slabs()
    }

    fn is_needed_alone(&self) -> bool {
        self.inner.is_needed_alone()
    }
}
