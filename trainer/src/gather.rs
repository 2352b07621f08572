//! What each rank measured, brought together.
//!
//! In: one rank's sums, times and memory. Out: the same of all ranks, on every rank.
//! Invariant: images/s are global samples over the slowest rank's time.

use std::time::Duration;

use anyhow::{Context, Result};
use distributed::Communicator;
use serde::{Deserialize, Serialize};

use crate::clock::PhaseClock;
use crate::metrics::{RankSeconds, ScoreSums, Seconds, SlowestRank};

/// The scores of all ranks together, on all ranks.
///
/// # Errors
/// When a collective fails.
///
/// # Collective
/// Must be called by all ranks.
pub fn total_scores(communicator: &dyn Communicator, own: ScoreSums) -> Result<ScoreSums> {
    let mut loss = [own.loss_sum];
    let mut counts = [own.num_samples, own.top1_correct, own.top5_correct];
    communicator.all_reduce_sum_f64(&mut loss)?;
    communicator.all_reduce_sum_u64(&mut counts)?;
    let [num_samples, top1_correct, top5_correct] = counts;
    Ok(ScoreSums { loss_sum: loss[0], num_samples, top1_correct, top5_correct })
}

/// What one rank measured over some steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// Its machine.
    pub node: String,
    /// Its time by phase, over all its steps.
    pub seconds: Seconds,
    /// How many steps that is.
    pub num_steps: u64,
    /// The time of those steps with everything in it.
    pub steps_total: Duration,
    /// Global samples and time of each measured step.
    pub steps: Vec<(u64, Duration)>,
    /// Largest memory of its process so far.
    pub peak_memory_bytes: u64,
}

impl RankTimes {
    /// All ranks' times, in rank order; node and memory are filled in here.
    ///
    /// # Errors
    /// When a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn gather(mut self, communicator: &dyn Communicator) -> Result<Vec<Self>> {
        self.node = communicator.topology().node.clone();
        self.peak_memory_bytes = crate::clock::peak_memory_bytes();
        communicator
            .all_gather(&serde_json::to_vec(&self)?)?
            .iter()
            .enumerate()
            .map(|(rank, bytes)| serde_json::from_slice(bytes).with_context(|| format!("times of rank {rank}")))
            .collect()
    }

    fn total(&self) -> Duration {
        self.steps.iter().map(|(_, time)| *time).sum()
    }
}

/// One rank's times in this session, by epoch and altogether.
#[derive(Clone, Debug)]
pub struct SessionTimes {
    /// The clock the phases are counted on.
    pub clock: PhaseClock,
    first_measured_step: u64,
    warmup: Vec<(u64, Duration)>,
    epoch: RankTimes,
    session: RankTimes,
}

impl SessionTimes {
    /// Times of a session whose steps before `first_measured_step` are warm-up, counted on `clock`.
    pub fn starting_at(first_measured_step: u64, clock: PhaseClock) -> Self {
        let (warmup, epoch, session) = Default::default();
        Self { clock, first_measured_step, warmup, epoch, session }
    }

    /// Counts a step.
    pub fn add_step(&mut self, step: u64, global_num_samples: u64, time: Duration) {
        self.epoch.num_steps += 1;
        self.epoch.steps_total += time;
        let steps = if step < self.first_measured_step { &mut self.warmup } else { &mut self.epoch.steps };
        steps.push((global_num_samples, time));
    }

    /// The epoch's times; the next epoch starts from zero. An epoch of nothing but warm-up gives its warm-up steps,
    /// so that a short trial has a speed at all.
    pub fn take_epoch(&mut self) -> RankTimes {
        let mut epoch = std::mem::take(&mut self.epoch);
        epoch.seconds = self.clock.take_epoch();
        self.session.seconds += epoch.seconds;
        self.session.num_steps += epoch.num_steps;
        self.session.steps_total += epoch.steps_total;
        self.session.steps.extend(&epoch.steps);
        let warmup = std::mem::take(&mut self.warmup);
        if epoch.steps.is_empty() {
            epoch.steps = warmup;
        }
        epoch
    }

    /// The whole session's times.
    pub fn take_session(&mut self) -> RankTimes {
        self.take_epoch();
        std::mem::take(&mut self.session)
    }
}

/// The rank whose measured steps took longest, the lowest of equals.
pub fn slowest_rank(world: &[RankTimes]) -> usize {
    (0..world.len()).rev().max_by_key(|&rank| world[rank].total()).unwrap_or(0)
}

/// Global samples over the slowest rank's time; 0 where no step was measured.
pub fn images_per_second(world: &[RankTimes]) -> f64 {
    let slowest = &world[slowest_rank(world)];
    let seconds = slowest.total().as_secs_f64();
    let images: u64 = slowest.steps.iter().map(|(images, _)| images).sum();
    if seconds > 0.0 { images as f64 / seconds } else { 0.0 }
}

/// The largest peak of any rank.
pub fn peak_memory_bytes(world: &[RankTimes]) -> u64 {
    world.iter().map(|rank| rank.peak_memory_bytes).max().unwrap_or(0)
}

/// The rank the others waited for: most own time, communication excluded. `None` for a world of one.
///
/// Ranks leave a collective together, so whole step times do not tell who was late; own time does.
pub fn straggler(world: &[RankTimes]) -> Option<SlowestRank> {
    if world.len() < 2 {
        return None;
    }
    let own_ms = |times: &RankTimes| {
        (times.seconds.step_total() - times.seconds.communication) * 1e3 / times.num_steps.max(1) as f64
    };
    let rank = (0..world.len()).rev().max_by(|&a, &b| own_ms(&world[a]).total_cmp(&own_ms(&world[b])))?;
    Some(SlowestRank {
        rank,
        node: world[rank].node.clone(),
        own_milliseconds_per_step: own_ms(&world[rank]),
        mean_milliseconds_per_step: world.iter().map(own_ms).sum::<f64>() / world.len() as f64,
    })
}

/// Where every rank's time went, in rank order.
pub fn rank_seconds(world: &[RankTimes]) -> Vec<RankSeconds> {
    let of_rank = |(rank, times): (usize, &RankTimes)| {
        let Seconds { data, forward, backward, communication, optimizer, .. } = times.seconds;
        let other = (times.steps_total.as_secs_f64() - times.seconds.step_total()).max(0.0);
        let (node, num_steps) = (times.node.clone(), times.num_steps);
        RankSeconds { rank, node, num_steps, data, forward, backward, communication, optimizer, other }
    };
    world.iter().enumerate().map(of_rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(seconds: &[u64], communication: f64, total: f64) -> RankTimes {
        RankTimes {
            steps: seconds.iter().map(|&s| (100, Duration::from_secs(s))).collect(),
            num_steps: seconds.len() as u64,
            seconds: Seconds { forward: total - communication, communication, ..Seconds::default() },
            ..RankTimes::default()
        }
    }

    #[test]
    fn speed_is_all_samples_over_the_slowest_ranks_time() {
        let world = [rank(&[1, 1], 0.0, 2.0), rank(&[2, 3], 0.0, 5.0)];
        assert_eq!(slowest_rank(&world), 1);
        assert_eq!(images_per_second(&world), 40.0);
    }

    #[test]
    fn the_straggler_is_who_computed_longest_not_who_waited() {
        let world = [rank(&[5], 4.0, 5.0), rank(&[5], 1.0, 5.0)];
        let straggler = straggler(&world).unwrap();
        assert_eq!((straggler.rank, straggler.own_milliseconds_per_step), (1, 4000.0));
        assert_eq!(straggler.mean_milliseconds_per_step, 2500.0);
    }

    #[test]
    fn what_no_phase_counted_of_a_ranks_steps_is_other() {
        let world = [RankTimes { steps_total: Duration::from_secs(6), ..rank(&[5], 4.0, 5.0) }, rank(&[5], 1.0, 5.0)];
        let seconds = rank_seconds(&world);
        assert_eq!((seconds[0].forward, seconds[0].communication, seconds[0].other), (1.0, 4.0, 1.0));
        assert_eq!((seconds[1].rank, seconds[1].num_steps, seconds[1].other), (1, 1, 0.0));
    }

    #[test]
    fn a_world_of_one_has_no_straggler() {
        assert!(straggler(&world_of_one()).is_none());
    }

    fn world_of_one() -> Vec<RankTimes> {
        vec![rank(&[1], 0.0, 1.0)]
    }
}
