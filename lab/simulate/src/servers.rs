//! Steps of workers and parameter servers in virtual time.
//!
//! In: the step of one rank, servers, a network. Out: seconds per step in the steady state.
//! Invariant: the [`Shard`] of real servers decides which worker is answered, and when.
//! Source: Li et al. 2014, Scaling distributed machine learning with the parameter server;
//! Lazowska et al. 1984, Quantitative System Performance, chapter 6, for queues at a server.
//!
//! The model follows the trainer:
//!
//! - A worker sends one bucket at a time, in order, and waits for its answer.
//! - A server does one thing at a time: it receives, adds, updates or sends.
//! - A server that is a thread of a worker takes that worker's pushes by a function call, even
//!   while it receives. Its computation delays the worker, because both share cores.
//! - A message between nodes slows the computation of its two ranks by the network's share.
//!   Computation slows the message by the slowdown of sums.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use distributed::gradients::{
    Consistency, ServerPlacement, Shard, ShardUpdate, assign_buckets, pause_after,
};

use crate::network::{Link, NetworkModel, Tokens};
use crate::profile::StepProfile;

/// Bytes of a push besides the gradient: kind, bucket, learning rate.
const PUSH_BYTES: f64 = 17.0;

/// Delay with which Linux wakes a thread.
const LATE_S: f64 = 50e-6;

/// Steps of each worker before the steady state, and measured steps.
const NUM_WARMUP_STEPS: usize = 4;
const NUM_STEPS: usize = 8;

/// Event in virtual time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Event {
    /// A worker reaches a point of its step, unless it was delayed further after planning.
    Milestone {
        worker: usize,
        index: usize,
        taken_s: f64,
    },
    /// A worker has the headers of all workers.
    Header { worker: usize },
    /// A worker has the parameters of a bucket.
    Answer { worker: usize },
    /// A server is ready for its next push.
    Serve { server: usize },
    /// A worker finishes its step.
    StepEnd { worker: usize },
}

/// Workers and servers of a simulation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerWorld<'a> {
    pub(crate) profile: &'a StepProfile,
    pub(crate) network: &'a NetworkModel,
    pub(crate) workers: usize,
    pub(crate) servers: usize,
    pub(crate) placement: ServerPlacement,
    pub(crate) consistency: Consistency,
    pub(crate) overlap: bool,
    /// Seconds of the exchange of headers.
    pub(crate) header_s: f64,
}

/// Mean step over workers and steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ServedStep {
    /// Seconds per step of the slowest worker, as a run's speed is measured.
    pub(crate) step_s: f64,
    /// Seconds in which a worker waits for answers, hidden or not.
    pub(crate) communication_s: f64,
    /// Seconds in which a worker only waits.
    pub(crate) waiting_s: f64,
}

/// Update without values.
#[derive(Debug)]
struct Nothing;

impl ShardUpdate for Nothing {
    fn update(&mut self, _bucket: usize, _learning_rate: f64, _gradient: &[f32]) {}

    fn state(&self, _bucket: usize) -> (&[f32], &[f32]) {
        (&[], &[])
    }

    fn restore(&mut self, _bucket: usize, _parameters: &[f32], _velocities: &[f32]) {}
}

#[derive(Clone, Debug, Default)]
struct Worker {
    /// Numbers of full, sent and answered buckets.
    full: usize,
    pushed: usize,
    answered: usize,
    /// Time of the unanswered push.
    waits_since: Option<f64>,
    may_push: bool,
    /// Time at which it had computed its step.
    computed_at: Option<f64>,
    began_at: f64,
    /// Seconds of delay by servers and messages, in total and before this step.
    taken_s: f64,
    taken_before_s: f64,
    waited_s: f64,
    idle_s: f64,
    num_steps: usize,
    /// Times at which the warm-up and the last step ended.
    ends: [f64; 2],
}

#[derive(Debug)]
struct Server {
    shard: Shard,
    pushes: VecDeque<(usize, usize)>,
    is_busy: bool,
}

struct Simulation<'a> {
    world: ServerWorld<'a>,
    /// Seconds after the start of a step: start of the backward pass, each full bucket, end of the
    /// backward pass.
    milestones: Vec<f64>,
    server_of: Vec<usize>,
    /// Mean seconds until an idle server notices a push.
    nap_s: f64,
    workers: Vec<Worker>,
    servers: Vec<Server>,
    /// Times at which the links of each rank are free, by direction and by `is_inside`.
    links: Vec<[[f64; 2]; 2]>,
    /// Token bucket of each rank's link to other nodes.
    tokens: Vec<Tokens>,
    num_headers: usize,
    num_done: usize,
    num_planned: u64,
    /// Events by the bits of their time, which order as times from 0 on, and by their number.
    events: BTreeMap<(u64, u64), Event>,
}

impl ServerWorld<'_> {
    /// Simulates the steps of all workers.
    pub(crate) fn step(&self) -> ServedStep {
        let mut simulation = Simulation::new(*self);
        (0..self.workers).for_each(|worker| simulation.begin_step(worker, 0.0));
        while simulation.num_done < self.workers {
            let Some(((time, _), event)) = simulation.events.pop_first() else {
                break;
            };
            simulation.happen(f64::from_bits(time), event);
        }
        let workers = &simulation.workers;
        let mean = |part: fn(&Worker) -> f64| {
            workers.iter().map(part).sum::<f64>() / (self.workers * NUM_STEPS) as f64
        };
        let slowest = workers
            .iter()
            .map(|worker| worker.ends[1] - worker.ends[0])
            .fold(0.0, f64::max);
        ServedStep {
            step_s: slowest / NUM_STEPS as f64,
            communication_s: mean(|worker| worker.waited_s),
            waiting_s: mean(|worker| worker.idle_s),
        }
    }

    fn rank_of_server(&self, server: usize) -> usize {
        match self.placement {
            ServerPlacement::Beside => server,
            ServerPlacement::Own => self.workers + server,
        }
    }
}

impl Worker {
    fn is_measured(&self) -> bool {
        (NUM_WARMUP_STEPS..NUM_WARMUP_STEPS + NUM_STEPS).contains(&self.num_steps)
    }
}

impl<'a> Simulation<'a> {
    fn new(world: ServerWorld<'a>) -> Self {
        let profile = world.profile;
        let sizes: Vec<usize> = profile
            .buckets
            .iter()
            .map(|bucket| bucket.bytes as usize)
            .collect();
        let server_of = assign_buckets(&sizes, world.servers);
        let start = profile.other_s + profile.forward_s;
        let mut milestones = vec![start];
        let mut latest = 0.0;
        for bucket in &profile.buckets {
            latest = f64::max(latest, bucket.ready_s).min(profile.backward_s);
            milestones.push(
                start
                    + if world.overlap {
                        latest
                    } else {
                        profile.backward_s
                    },
            );
        }
        milestones.push(start + profile.backward_s);
        // Half of the pause after the mean interval between messages. A worker with
        // its own server sends no message.
        let senders = world.workers - usize::from(world.placement == ServerPlacement::Beside);
        let num_requests = sizes.len().div_ceil(world.servers) * senders;
        let interval_s = (start + profile.backward_s) / num_requests.max(1) as f64;
        // The pause does not grow beyond a second.
        let nap_s =
            pause_after(Duration::from_secs_f64(interval_s.min(1.0))).as_secs_f64() / 2.0 + LATE_S;
        let servers = (0..world.servers).map(|server| {
            let buckets = (0..sizes.len()).filter(|&bucket| server_of[bucket] == server);
            let shard = Shard::new(Box::new(Nothing), world.consistency, world.workers, buckets);
            Server {
                shard,
                pushes: VecDeque::new(),
                is_busy: false,
            }
        });
        Self {
            servers: servers.collect(),
            milestones,
            server_of,
            nap_s,
            workers: vec![Worker::default(); world.workers],
            links: vec![[[0.0; 2]; 2]; world.workers + world.servers],
            tokens: vec![Tokens::full(world.network); world.workers + world.servers],
            num_headers: 0,
            num_done: 0,
            num_planned: 0,
            events: BTreeMap::new(),
            world,
        }
    }

    fn at(&mut self, time: f64, event: Event) {
        self.num_planned += 1;
        self.events
            .insert((time.to_bits(), self.num_planned), event);
    }

    fn begin_step(&mut self, worker: usize, now: f64) {
        let state = &mut self.workers[worker];
        state.full = 0;
        state.pushed = 0;
        state.answered = 0;
        state.computed_at = None;
        state.may_push = self.world.consistency != Consistency::Synchronous;
        let taken_s = state.taken_s;
        state.began_at = now;
        state.taken_before_s = taken_s;
        self.at(
            now + self.milestones[0],
            Event::Milestone {
                worker,
                index: 0,
                taken_s,
            },
        );
    }

    fn happen(&mut self, now: f64, event: Event) {
        match event {
            Event::Milestone {
                worker,
                index,
                taken_s,
            } => self.milestone(worker, index, taken_s, now),
            Event::Header { worker } => {
                self.workers[worker].may_push = true;
                self.push(worker, now);
            }
            Event::Answer { worker } => {
                let state = &mut self.workers[worker];
                if let Some(since) = state.waits_since.take()
                    && state.is_measured()
                {
                    state.waited_s += now - since;
                }
                state.answered += 1;
                self.push(worker, now);
                self.end_step_if_done(worker, now);
            }
            Event::Serve { server } => self.serve(server, now),
            Event::StepEnd { worker } => {
                let state = &mut self.workers[worker];
                state.num_steps += 1;
                match state.num_steps {
                    NUM_WARMUP_STEPS => state.ends[0] = now,
                    number if number == NUM_WARMUP_STEPS + NUM_STEPS => {
                        state.ends[1] = now;
                        self.num_done += 1;
                    }
                    _ => {}
                }
                // Finished workers continue, so that the last ones still share the servers.
                self.begin_step(worker, now);
            }
        }
    }

    fn milestone(&mut self, worker: usize, index: usize, taken_s: f64, now: f64) {
        let lost_s = self.workers[worker].taken_s - taken_s;
        if lost_s > 0.0 {
            let taken_s = self.workers[worker].taken_s;
            return self.at(
                now + lost_s,
                Event::Milestone {
                    worker,
                    index,
                    taken_s,
                },
            );
        }
        let last = self.milestones.len() - 1;
        if index == 0 && self.world.consistency == Consistency::Synchronous {
            self.num_headers += 1;
            if self.num_headers == self.world.workers {
                self.num_headers = 0;
                (0..self.world.workers).for_each(|worker| {
                    self.at(now + self.world.header_s, Event::Header { worker })
                });
            }
        } else if index == last {
            self.workers[worker].computed_at = Some(now);
            self.end_step_if_done(worker, now);
        } else if index > 0 {
            self.workers[worker].full += 1;
            self.push(worker, now);
        }
        if index < last {
            let until = self.milestones[index + 1] - self.milestones[index];
            self.at(
                now + until,
                Event::Milestone {
                    worker,
                    index: index + 1,
                    taken_s,
                },
            );
        }
    }

    fn end_step_if_done(&mut self, worker: usize, now: f64) {
        let state = &mut self.workers[worker];
        if let Some(computed_at) = state.computed_at
            && state.answered == self.server_of.len()
        {
            if state.is_measured() {
                state.idle_s += now - computed_at;
            }
            self.at(
                now + self.world.profile.optimizer_s,
                Event::StepEnd { worker },
            );
        }
    }

    /// Sends the next bucket if it is full and the bucket before was answered.
    fn push(&mut self, worker: usize, now: f64) {
        let state = &mut self.workers[worker];
        if !state.may_push || state.waits_since.is_some() || state.pushed == state.full {
            return;
        }
        let bucket = state.pushed;
        state.pushed += 1;
        state.waits_since = Some(now);
        let index = self.server_of[bucket];
        // A worker calls its own server directly.
        if self.world.rank_of_server(index) == worker {
            self.handle(index, worker, bucket, now);
            return;
        }
        let server = &mut self.servers[index];
        server.pushes.push_back((worker, bucket));
        if !std::mem::replace(&mut server.is_busy, true) {
            self.at(now + self.nap_s, Event::Serve { server: index });
        }
    }

    /// Receives and handles the next push.
    fn serve(&mut self, server: usize, now: f64) {
        let Some((worker, bucket)) = self.servers[server].pushes.pop_front() else {
            self.servers[server].is_busy = false;
            return;
        };
        let bytes = self.world.profile.buckets[bucket].bytes as f64;
        let received = self.transfer(
            worker,
            self.world.rank_of_server(server),
            bytes + PUSH_BYTES,
            now,
        );
        let time = self.handle(server, worker, bucket, received);
        self.at(time, Event::Serve { server });
    }

    /// Adds a received gradient, updates and sends all answers; returns the time after that.
    fn handle(&mut self, server: usize, worker: usize, bucket: usize, now: f64) -> f64 {
        let profile = self.world.profile;
        let own = self.world.rank_of_server(server);
        let bytes = profile.buckets[bucket].bytes as f64;
        let update_s = profile.optimizer_s * bytes / (profile.num_bytes() as f64).max(1.0);
        // Each pass over the values runs at the speed of memory.
        let pass_s = Link::MEMORY.beta * bytes;
        let answered = self.servers[server]
            .shard
            .push(worker, bucket, 0.0, Vec::new());
        let updates_s = match self.world.consistency {
            Consistency::Synchronous if answered.is_empty() => 0.0,
            Consistency::Synchronous => update_s + pass_s * (self.world.workers - 1) as f64,
            Consistency::Asynchronous { .. } => update_s,
        };
        let mut time = now + pass_s + updates_s;
        let computing_s = pass_s * (1 + answered.len()) as f64 + updates_s;
        for to in answered {
            time = self.transfer(own, to, bytes, time + pass_s);
            self.at(time, Event::Answer { worker: to });
        }
        if self.world.placement == ServerPlacement::Beside {
            self.workers[own].taken_s += computing_s;
        }
        time
    }

    /// Returns the time at which a rank has computed its step if it is not delayed further.
    fn computes_until(&self, rank: usize) -> f64 {
        let computed = self.milestones[self.milestones.len() - 1];
        let until =
            |worker: &Worker| worker.began_at + computed + worker.taken_s - worker.taken_before_s;
        self.workers.get(rank).map_or(0.0, |worker| {
            worker.computed_at.unwrap_or_else(|| until(worker))
        })
    }

    /// Returns the arrival of a message that is ready now.
    fn transfer(&mut self, from: usize, to: usize, bytes: f64, now: f64) -> f64 {
        if from == to {
            return now;
        }
        let is_inside = self.world.network.is_inside(from, to);
        let network = self.world.network;
        let outgoing = self.links[from][0][usize::from(is_inside)];
        let incoming = self.links[to][1][usize::from(is_inside)];
        let start = now.max(outgoing).max(incoming);
        let mut seconds = network.link(is_inside).seconds(bytes);
        if !is_inside {
            seconds = self.tokens[from].send(start, bytes, seconds);
            let until = f64::max(self.computes_until(from), self.computes_until(to));
            (seconds, _) = network.during_computation(until - start, seconds, network.sum_slowdown);
        }
        let end = start + seconds;
        self.links[from][0][usize::from(is_inside)] = end;
        self.links[to][1][usize::from(is_inside)] = end;
        if !is_inside {
            let lost_s = network.computing_share * (end - start);
            // Separate servers have no computation that messages delay.
            for rank in [from, to] {
                if let Some(worker) = self.workers.get_mut(rank) {
                    worker.taken_s += lost_s;
                }
            }
        }
        end
    }
}
