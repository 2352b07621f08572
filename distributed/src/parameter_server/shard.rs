//! State and decisions of a parameter server, without messages.
//!
//! In: gradients of buckets from workers. Out: the workers to answer, and updated parameters.
//! Invariant: in synchronous mode gradients are added in worker order, so that the result does not
//! depend on arrival order.
//! Source: Li et al. 2014, OSDI, "Scaling distributed machine learning with the parameter server";
//! Ho et al. 2013, NIPS, "More effective distributed ML via a stale synchronous parallel parameter
//! server", for the bound.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::algorithms::add;

/// Optimizer of the buckets that a server holds.
pub trait ShardUpdate: Send + Debug {
    /// Applies one update to a bucket's parameters.
    fn update(&mut self, bucket: usize, learning_rate: f64, gradient: &[f32]);

    /// Returns a bucket's parameters and optimizer state, which have the same length.
    fn state(&self, bucket: usize) -> (&[f32], &[f32]);

    /// Replaces a bucket's parameters and optimizer state.
    fn restore(&mut self, bucket: usize, parameters: &[f32], velocities: &[f32]);
}

/// Times of a server's updates and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// One update with the sum of all workers' gradients, then an answer to all workers.
    Synchronous,
    /// An update with each gradient on its arrival. A worker gets its answer once it is at most
    /// `bound` pushes ahead of the slowest worker. `None` answers immediately.
    Asynchronous {
        /// Maximum lead in pushes.
        bound: Option<u64>,
    },
}

/// The buckets of one server.
#[derive(Debug)]
pub struct Shard {
    update: Box<dyn ShardUpdate>,
    consistency: Consistency,
    num_workers: usize,
    buckets: BTreeMap<usize, BucketState>,
    /// True for each worker that has left.
    has_left: Vec<bool>,
    /// Number of updates by staleness.
    histogram: Vec<u64>,
}

#[derive(Debug)]
struct BucketState {
    /// Number of updates so far.
    version: u64,
    /// Number of pushes of each worker.
    num_pushes: Vec<u64>,
    /// Version that each worker last received.
    seen: Vec<u64>,
    /// The gradient of each worker in the current synchronous step.
    gradients: Vec<Option<Vec<f32>>>,
    /// True for each worker that waits for an answer.
    waits: Vec<bool>,
}

impl Shard {
    /// Returns a server with the buckets of `update`, for workers `0..num_workers`.
    pub fn new(
        update: Box<dyn ShardUpdate>,
        consistency: Consistency,
        num_workers: usize,
        buckets: impl IntoIterator<Item = usize>,
    ) -> Self {
        let state = || BucketState {
            version: 0,
            num_pushes: vec![0; num_workers],
            seen: vec![0; num_workers],
            gradients: vec![None; num_workers],
            waits: vec![false; num_workers],
        };
        let buckets = buckets
            .into_iter()
            .map(|bucket| (bucket, state()))
            .collect();
        Self {
            update,
            consistency,
            num_workers,
            buckets,
            has_left: vec![false; num_workers],
            histogram: Vec::new(),
        }
    }

    /// Processes a worker's gradient of a bucket. An empty gradient counts as a push without
    /// samples. Returns the workers to answer now, with the parameters of [`state`](Self::state).
    ///
    /// # Panics
    /// Panics if the bucket does not belong to this shard, or if the worker pushes before its last
    /// answer.
    pub fn push(
        &mut self,
        worker: usize,
        bucket: usize,
        learning_rate: f64,
        gradient: Vec<f32>,
    ) -> Vec<usize> {
        let state = self
            .buckets
            .get_mut(&bucket)
            .expect("a bucket goes to the server that holds it");
        assert!(
            !state.waits[worker],
            "bucket {bucket}: worker {worker} pushed again before it was answered"
        );
        state.waits[worker] = true;
        state.num_pushes[worker] += 1;
        match self.consistency {
            Consistency::Synchronous => {
                state.gradients[worker] = Some(gradient);
                if state.gradients.iter().all(Option::is_some) {
                    let gradients: Vec<Vec<f32>> = state
                        .gradients
                        .iter_mut()
                        .filter_map(Option::take)
                        .collect();
                    let sum = sum(gradients);
                    self.apply(bucket, learning_rate, &sum, None);
                }
            }
            Consistency::Asynchronous { .. } if !gradient.is_empty() => {
                self.apply(bucket, learning_rate, &gradient, Some(worker));
            }
            Consistency::Asynchronous { .. } => {}
        }
        self.answerable(bucket)
    }

    /// Notes that a worker will push no more. Returns the workers to answer now, by bucket.
    pub fn leave(&mut self, worker: usize) -> Vec<(usize, usize)> {
        self.has_left[worker] = true;
        let buckets: Vec<usize> = self.buckets.keys().copied().collect();
        buckets
            .into_iter()
            .flat_map(|bucket| {
                self.answerable(bucket)
                    .into_iter()
                    .map(move |to| (bucket, to))
            })
            .collect()
    }

    /// Returns true if all workers have left.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.has_left.iter().all(|&left| left)
    }

    /// Returns true if all workers but `worker` have left.
    pub(crate) fn is_abandoned_but_by(&self, worker: usize) -> bool {
        self.has_left
            .iter()
            .enumerate()
            .all(|(other, &left)| left || other == worker)
    }

    /// Notes that a worker receives a bucket's [`state`](Self::state) without a push. Its next
    /// gradient belongs to these parameters.
    pub fn fetch(&mut self, worker: usize, bucket: usize) {
        let state = self
            .buckets
            .get_mut(&bucket)
            .expect("a bucket is asked for at the server that holds it");
        state.seen[worker] = state.version;
    }

    /// Returns a bucket's parameters and optimizer state.
    pub fn state(&self, bucket: usize) -> (&[f32], &[f32]) {
        self.update.state(bucket)
    }

    /// Replaces a bucket's parameters and optimizer state.
    pub fn restore(&mut self, bucket: usize, parameters: &[f32], velocities: &[f32]) {
        self.update.restore(bucket, parameters, velocities);
    }

    /// Returns the number of updates by the staleness of their gradients.
    pub fn histogram(&self) -> &[u64] {
        &self.histogram
    }

    fn apply(
        &mut self,
        bucket: usize,
        learning_rate: f64,
        gradient: &[f32],
        worker: Option<usize>,
    ) {
        self.update.update(bucket, learning_rate, gradient);
        let state = self.buckets.get_mut(&bucket).expect("the caller found it");
        let staleness = worker.map_or(0, |worker| state.version - state.seen[worker]) as usize;
        state.version += 1;
        if self.histogram.len() <= staleness {
            self.histogram.resize(staleness + 1, 0);
        }
        self.histogram[staleness] += 1;
    }

    /// Returns the waiting workers that may now receive a bucket, and ends their wait.
    fn answerable(&mut self, bucket: usize) -> Vec<usize> {
        let state = self.buckets.get_mut(&bucket).expect("the caller found it");
        let present = (0..self.num_workers).filter(|&worker| !self.has_left[worker]);
        let slowest = present
            .map(|worker| state.num_pushes[worker])
            .min()
            .unwrap_or(u64::MAX);
        let mut answered = Vec::new();
        for worker in 0..self.num_workers {
            let may_go = match self.consistency {
                Consistency::Synchronous => state.gradients[worker].is_none(),
                Consistency::Asynchronous { bound: None } => true,
                Consistency::Asynchronous { bound: Some(bound) } => {
                    state.num_pushes[worker].saturating_sub(slowest) <= bound
                }
            };
            if state.waits[worker] && may_go {
                state.waits[worker] = false;
                state.seen[worker] = state.version;
                answered.push(worker);
            }
        }
        answered
    }
}

/// Sums gradients in the given order. Empty gradients are zero.
fn sum(gradients: Vec<Vec<f32>>) -> Vec<f32> {
    let mut gradients = gradients
        .into_iter()
        .filter(|gradient| !gradient.is_empty());
    let mut total = gradients.next().unwrap_or_default();
    for gradient in gradients {
        add(&mut total, &gradient);
    }
    total
}

/// Returns the server of each bucket. Buckets are assigned in order of size, largest first. Each
/// bucket goes to the server with the fewest elements so far, or to the lowest of equals.
pub fn assign_buckets(bucket_sizes: &[usize], num_servers: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..bucket_sizes.len()).collect();
    order.sort_by_key(|&bucket| (std::cmp::Reverse(bucket_sizes[bucket]), bucket));
    let mut loads = vec![0; num_servers];
    let mut servers = vec![0; bucket_sizes.len()];
    for bucket in order {
        let server = (0..num_servers)
            .min_by_key(|&server| loads[server])
            .expect("there is a server");
        loads[server] += bucket_sizes[bucket];
        servers[bucket] = server;
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An optimizer with one parameter per bucket and plain gradient descent. The state counts
    /// updates.
    #[derive(Debug, Default)]
    struct Descent(BTreeMap<usize, ([f32; 1], [f32; 1])>);

    impl ShardUpdate for Descent {
        fn update(&mut self, bucket: usize, learning_rate: f64, gradient: &[f32]) {
            let (parameters, updates) = self.0.entry(bucket).or_default();
            parameters[0] -= learning_rate as f32 * gradient.first().unwrap_or(&0.0);
            updates[0] += 1.0;
        }

        fn state(&self, bucket: usize) -> (&[f32], &[f32]) {
            self.0
                .get(&bucket)
                .map_or((&[], &[]), |(parameters, updates)| (parameters, updates))
        }

        fn restore(&mut self, bucket: usize, parameters: &[f32], velocities: &[f32]) {
            self.0.insert(bucket, ([parameters[0]], [velocities[0]]));
        }
    }

    fn shard(consistency: Consistency, num_workers: usize) -> Shard {
        Shard::new(
            Box::new(Descent::default()),
            consistency,
            num_workers,
            [0, 1],
        )
    }

    #[test]
    fn a_synchronous_server_answers_all_after_one_update_with_the_sum() {
        let mut shard = shard(Consistency::Synchronous, 3);
        assert_eq!(shard.push(2, 0, 0.5, vec![4.0]), Vec::<usize>::new());
        assert_eq!(shard.push(0, 0, 0.5, vec![2.0]), Vec::<usize>::new());
        assert_eq!(shard.push(1, 0, 0.5, Vec::new()), vec![0, 1, 2]);
        assert_eq!(shard.state(0), ([-3.0].as_slice(), [1.0].as_slice()));
        assert_eq!(shard.histogram(), [1]);
    }

    #[test]
    fn an_asynchronous_server_answers_at_once_and_counts_how_stale_each_update_was() {
        let mut shard = shard(Consistency::Asynchronous { bound: None }, 2);
        assert_eq!(shard.push(0, 1, 1.0, vec![1.0]), vec![0]);
        assert_eq!(shard.push(0, 1, 1.0, vec![1.0]), vec![0]);
        assert_eq!(shard.push(1, 1, 1.0, vec![1.0]), vec![1]);
        assert_eq!(shard.push(0, 1, 1.0, vec![1.0]), vec![0]);
        assert_eq!(shard.state(1), ([-4.0].as_slice(), [4.0].as_slice()));
        assert_eq!(shard.histogram(), [2, 1, 1]);
    }

    #[test]
    fn a_gradient_of_fetched_parameters_is_stale_by_the_updates_since_then() {
        let mut shard = shard(Consistency::Asynchronous { bound: None }, 2);
        for _ in 0..5 {
            shard.push(0, 0, 1.0, vec![1.0]);
        }
        shard.fetch(1, 0);
        shard.push(0, 0, 1.0, vec![1.0]);
        shard.push(1, 0, 1.0, vec![1.0]);
        assert_eq!(shard.histogram(), [6, 1]);
    }

    #[test]
    fn a_bounded_worker_waits_until_the_slowest_is_near_enough_or_has_left() {
        let mut shard = shard(Consistency::Asynchronous { bound: Some(1) }, 2);
        assert_eq!(shard.push(0, 0, 1.0, vec![1.0]), vec![0]);
        assert_eq!(shard.push(0, 0, 1.0, vec![1.0]), Vec::<usize>::new());
        assert_eq!(shard.push(1, 0, 1.0, vec![1.0]), vec![0, 1]);
        assert_eq!(shard.push(0, 0, 1.0, vec![1.0]), Vec::<usize>::new());
        assert_eq!(shard.leave(1), vec![(0, 0)]);
        assert!(!shard.is_abandoned());
        shard.leave(0);
        assert!(shard.is_abandoned());
    }

    #[test]
    fn one_asynchronous_worker_is_sequential_descent() {
        let mut shard = shard(Consistency::Asynchronous { bound: None }, 1);
        for step in 1..=3 {
            assert_eq!(shard.push(0, 0, 0.25, vec![4.0]), vec![0]);
            assert_eq!(shard.state(0).0, [-(step as f32)]);
        }
        assert_eq!(shard.histogram(), [3]);
    }

    #[test]
    fn every_bucket_has_a_server_and_loads_differ_by_no_more_than_one_bucket() {
        for num_servers in 1..=4 {
            for sizes in [
                vec![5, 1, 1, 1, 4],
                vec![3; 7],
                vec![9],
                (1..20).collect::<Vec<usize>>(),
            ] {
                let servers = assign_buckets(&sizes, num_servers);
                let mut loads = vec![0; num_servers];
                servers
                    .iter()
                    .zip(&sizes)
                    .for_each(|(&server, size)| loads[server] += size);
                let least = loads.iter().min().unwrap();
                let most = loads.iter().max().unwrap();
                assert!(
                    most - least <= *sizes.iter().max().unwrap(),
                    "{sizes:?} on {num_servers}: {loads:?}"
                );
            }
        }
    }
}
