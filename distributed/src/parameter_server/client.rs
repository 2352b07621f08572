//! Worker side of parameter servers.
//!
//! In: gradients of buckets. Out: parameters.
//! Invariant: one request is pending at a time. The next request starts after the answer.

use std::sync::{Arc, Mutex, PoisonError};

use super::message::{Request, TO_SERVER, TO_WORKER};
use super::server::{Server, ServerPlan};
use crate::reduction::{BucketContext, BucketReduction, Traffic};
use crate::watchdog::RankStatus;
use crate::{CollectiveError, Communicator, replica::bytes_to_floats};

/// Connection of a worker to all servers.
#[derive(Debug)]
pub struct ServerClient {
    plan: ServerPlan,
    communicator: Arc<dyn Communicator>,
    /// Server on this rank, if there is one.
    local_server: Option<Arc<Server>>,
    rank_status: Arc<RankStatus>,
    /// Lock that permits one request at a time.
    turn: Mutex<()>,
}

impl ServerClient {
    /// Connects this worker. `local_server` is the server on this rank, if there is one.
    /// `rank_status` notes waits for the local server.
    pub fn new(
        plan: ServerPlan,
        communicator: Arc<dyn Communicator>,
        local_server: Option<Arc<Server>>,
        rank_status: Arc<RankStatus>,
    ) -> Self {
        Self {
            plan,
            communicator,
            local_server,
            rank_status,
            turn: Mutex::new(()),
        }
    }

    /// Returns the current parameters and optimizer state of a bucket, `len` elements each, from
    /// its server.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    pub fn fetch(
        &self,
        bucket: usize,
        len: usize,
    ) -> Result<(Vec<f32>, Vec<f32>), CollectiveError> {
        let bytes = self.ask(
            self.plan.rank_of(bucket),
            Request::Fetch { bucket },
            8 * len,
        )?;
        let mut parameters = bytes_to_floats(&bytes);
        let velocities = parameters.split_off(len);
        Ok((parameters, velocities))
    }

    /// Replaces a bucket's parameters and optimizer state on its server.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    pub fn restore(
        &self,
        bucket: usize,
        parameters: &[f32],
        velocities: &[f32],
    ) -> Result<(), CollectiveError> {
        let request = Request::Restore {
            bucket,
            parameters: parameters.to_vec(),
            velocities: velocities.to_vec(),
        };
        self.tell(self.plan.rank_of(bucket), request)
    }

    /// Returns the number of updates of all servers, by staleness.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    pub fn histogram(&self) -> Result<Vec<u64>, CollectiveError> {
        let mut total = Vec::new();
        for &server in &self.plan.servers {
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            self.tell(server, Request::Histogram)?;
            let bytes = match self.own(server) {
                Some(own) => self.own_answer(own)?,
                // The worker does not know the length of the answer.
                None => self.communicator.receive_any(TO_WORKER)?.1,
            };
            for (staleness, count) in bytes
                .as_chunks()
                .0
                .iter()
                .map(|bytes| u64::from_le_bytes(*bytes))
                .enumerate()
            {
                if total.len() <= staleness {
                    total.resize(staleness + 1, 0);
                }
                total[staleness] += count;
            }
        }
        Ok(total)
    }

    /// Notifies all servers that this worker will push no more gradients.
    ///
    /// # Errors
    /// Returns an error if the job ends.
    pub fn leave(&self) -> Result<(), CollectiveError> {
        self.plan
            .servers
            .iter()
            .try_for_each(|&server| self.tell(server, Request::Leave))
    }

    fn own(&self, server: usize) -> Option<&Server> {
        if server != self.communicator.rank() {
            return None;
        }
        self.local_server.as_deref()
    }

    /// Returns the answer of this rank's server, which may wait for other workers.
    fn own_answer(&self, own: &Server) -> Result<Vec<u8>, CollectiveError> {
        let _noted = self.rank_status.note("the answer of the local server");
        own.own_answer()
    }

    fn tell(&self, server: usize, request: Request) -> Result<(), CollectiveError> {
        match self.own(server) {
            Some(own) => own.handle(server, request),
            None => self
                .communicator
                .send(server, TO_SERVER, &request.to_bytes()),
        }
    }

    fn ask(
        &self,
        server: usize,
        request: Request,
        answer_bytes: usize,
    ) -> Result<Vec<u8>, CollectiveError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.tell(server, request)?;
        match self.own(server) {
            Some(own) => self.own_answer(own),
            None => {
                let mut bytes = vec![0; answer_bytes];
                self.communicator.receive(server, TO_WORKER, &mut bytes)?;
                Ok(bytes)
            }
        }
    }
}

impl BucketReduction for Arc<ServerClient> {
    fn reduce(
        &mut self,
        BucketContext {
            learning_rate,
            has_samples,
        }: BucketContext,
        bucket: usize,
        values: &mut Vec<f32>,
    ) -> Result<Traffic, CollectiveError> {
        let len = values.len();
        let gradient = if has_samples {
            std::mem::take(values)
        } else {
            Vec::new()
        };
        let server = self.plan.rank_of(bucket);
        let answer = self.ask(
            server,
            Request::Push {
                bucket,
                learning_rate,
                gradient,
            },
            4 * len,
        )?;
        *values = bytes_to_floats(&answer);
        let sent = if self.own(server).is_some() {
            0
        } else {
            4 * len as u64
        };
        let ring = Traffic::of_sum(len, size_of::<f32>(), self.plan.num_workers);
        Ok(Traffic {
            bytes_sent: sent,
            ..ring
        })
    }

    fn runs_on_one_rank(&self) -> bool {
        true
    }

    fn waits_on(&self) -> Option<Arc<dyn Communicator>> {
        Some(Arc::clone(&self.communicator))
    }
}
