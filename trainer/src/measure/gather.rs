//! Gathers the measurements of all ranks.
//!
//! In: sums, times and memory of one rank. Out: the sums of all ranks, on every rank; the
//! measurements of each rank, on root.
//! Invariant: images/s are global samples divided by the slowest rank's time. The size of a rank's
//! message does not depend on the number of steps.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use distributed::{Communicator, ROOT};
use records::{EpochRecord, RankSeconds, Seconds, SlowestRank};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::measure::energy::{self, EnergyMeter, MachineEnergy};
use crate::measure::metrics::{ScoreSums, StepSketch};
use crate::measure::timer::Timer;

/// Tag of messages to root.
const GATHER_TAG: u16 = 103;

/// Sums the scores and the `further` numbers over all ranks.
/// Collective: all ranks, with the same number of further sums.
pub fn total_scores_with(
    communicator: &dyn Communicator,
    own: &ScoreSums,
    further: &mut [f64],
) -> Result<ScoreSums> {
    // A rank without samples knows no metrics.
    let own_names: Vec<&String> = own.metrics.keys().collect();
    let mut names = BTreeSet::new();
    for of_rank in communicator.all_gather(&serde_json::to_vec(&own_names)?)? {
        names.extend(serde_json::from_slice::<Vec<String>>(&of_rank)?);
    }
    let metrics = names.iter();
    let metrics = metrics.map(|name| own.metrics.get(name).copied().unwrap_or(0.0));
    let mut sums = vec![own.loss_sum, own.weight];
    sums.extend(metrics);
    let num_own = sums.len();
    sums.extend_from_slice(further);
    let mut counts = [own.num_samples];
    communicator.all_reduce_sum_f64(&mut sums)?;
    communicator.all_reduce_sum_u64(&mut counts)?;
    further.copy_from_slice(&sums[num_own..]);
    Ok(ScoreSums {
        loss_sum: sums[0],
        num_samples: counts[0],
        weight: sums[1],
        metrics: names
            .into_iter()
            .zip(sums[2..num_own].iter().copied())
            .collect(),
    })
}

/// Sends every rank's bytes to root, which calls `take` for each in rank order.
/// Collective: all ranks.
pub fn to_root(
    communicator: &dyn Communicator,
    own: Vec<u8>,
    mut take: impl FnMut(usize, Vec<u8>) -> Result<()>,
) -> Result<()> {
    let lengths = communicator.all_gather(&(own.len() as u64).to_le_bytes())?;
    if communicator.rank() != ROOT {
        return Ok(communicator.send(ROOT, GATHER_TAG, &own)?);
    }
    take(ROOT, own)?;
    for (rank, length) in lengths.iter().enumerate().skip(1) {
        let length = length
            .as_slice()
            .try_into()
            .map(u64::from_le_bytes)
            .context("length of what a rank sends")?;
        let mut bytes = vec![0; usize::try_from(length)?];
        communicator.receive(rank, GATHER_TAG, &mut bytes)?;
        take(rank, bytes)?;
    }
    Ok(())
}

/// Returns root's bytes on all ranks. The bytes of other ranks are ignored.
/// Collective: all ranks.
pub fn from_root(communicator: &dyn Communicator, bytes: &[u8]) -> Result<Vec<u8>> {
    let own = if communicator.rank() == ROOT {
        bytes
    } else {
        &[]
    };
    Ok(communicator.all_gather(own)?.swap_remove(ROOT))
}

/// Calls `of_root` on root and returns its result on all ranks.
/// Collective: all ranks.
///
/// # Errors
/// If `of_root` returns an error, on all ranks; if the collective fails.
pub fn found_by_root<T: Serialize + DeserializeOwned>(
    communicator: &dyn Communicator,
    of_root: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let mut own = Vec::new();
    if communicator.rank() == ROOT {
        own = serde_json::to_vec(&of_root().map_err(|error| format!("{error:#}")))?;
    }
    let found: Result<T, String> = serde_json::from_slice(&from_root(communicator, &own)?)?;
    found.map_err(|text| anyhow!(text))
}

/// Returns this rank's value if root has accepted, which alone can refuse; other ranks have a value
/// without meaning.
/// Collective: all ranks.
///
/// # Errors
/// Root's error, on all ranks; if the collective fails.
pub fn accepted_by_root<T>(communicator: &dyn Communicator, own: Result<T>) -> Result<T> {
    let verdict = own
        .as_ref()
        .err()
        .map_or(String::new(), |error| format!("{error:#}"));
    let of_root = from_root(communicator, verdict.as_bytes())?;
    let accepted = own?;
    ensure!(
        of_root.is_empty(),
        "refused by root: {}",
        String::from_utf8_lossy(&of_root)
    );
    Ok(accepted)
}

/// Measurements of one rank over some steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    pub node: String,
    /// Time by phase, summed over all steps.
    pub seconds: Seconds,
    pub num_steps: u64,
    /// Total time of the steps.
    pub steps_total: Duration,
    /// Global samples of the steps.
    pub num_samples: u64,
    /// Energy of the machine during the steps; only on a rank that reads the counters.
    pub energy: Option<MachineEnergy>,
    /// Global samples and time of each measured step; not sent to root.
    #[serde(skip)]
    pub measured: Vec<(u64, Duration)>,
    /// Statistics of the measured steps.
    pub steps: StepSketch,
    /// Largest memory of the process so far.
    pub peak_memory_bytes: u64,
}

impl RankTimes {
    /// Adds node, statistics and memory to the times.
    ///
    /// Returns the times of all ranks in rank order on root, and only this rank's times elsewhere.
    /// Collective: all ranks.
    pub fn gather(mut self, communicator: &dyn Communicator) -> Result<Vec<Self>> {
        self.node.clone_from(&communicator.topology().node);
        self.steps = StepSketch::of(&self.measured);
        self.peak_memory_bytes = crate::measure::process_memory::peak_memory_bytes();
        let bytes = serde_json::to_vec(&self)?;
        let mut world = vec![self];
        to_root(communicator, bytes, |rank, bytes| {
            if rank != ROOT {
                let times = serde_json::from_slice(&bytes);
                world.push(times.with_context(|| format!("times of rank {rank}"))?);
            }
            Ok(())
        })?;
        Ok(world)
    }
}

/// Times of one rank in this session, per epoch and in total.
#[derive(Debug)]
pub struct SessionTimes {
    pub timer: Timer,
    pub energy: EnergyMeter,
    first_measured_step: u64,
    warmup: Vec<(u64, Duration)>,
    epoch: RankTimes,
    session: RankTimes,
}

impl SessionTimes {
    /// Returns the times of a session whose steps before `first_measured_step` are warm-up.
    pub fn starting_at(first_measured_step: u64, timer: Timer, energy: EnergyMeter) -> Self {
        Self {
            timer,
            energy,
            first_measured_step,
            warmup: Vec::new(),
            epoch: RankTimes::default(),
            session: RankTimes::default(),
        }
    }

    pub fn add_step(&mut self, step: u64, global_num_samples: u64, time: Duration) {
        self.energy.look();
        self.epoch.num_samples += global_num_samples;
        self.epoch.num_steps += 1;
        self.epoch.steps_total += time;
        let steps = if step < self.first_measured_step {
            &mut self.warmup
        } else {
            &mut self.epoch.measured
        };
        steps.push((global_num_samples, time));
    }

    /// Returns the times of the epoch. The next epoch starts from zero.
    ///
    /// If all steps of the epoch are warm-up, they count, so that a short trial has a speed.
    pub fn take_epoch(&mut self) -> RankTimes {
        let mut epoch = std::mem::take(&mut self.epoch);
        epoch.seconds = self.timer.take_epoch();
        epoch.energy = self.energy.take();
        self.session.seconds += epoch.seconds;
        self.session.num_steps += epoch.num_steps;
        self.session.steps_total += epoch.steps_total;
        self.session.measured.extend(&epoch.measured);
        let warmup = std::mem::take(&mut self.warmup);
        if epoch.measured.is_empty() {
            epoch.measured = warmup;
        }
        epoch
    }

    pub fn take_session(&mut self) -> RankTimes {
        self.take_epoch();
        std::mem::take(&mut self.session)
    }
}

/// Returns the rank whose measured steps took longest. Of equal ranks, returns the lowest.
pub fn slowest_rank(world: &[RankTimes]) -> usize {
    (0..world.len())
        .rev()
        .max_by_key(|&rank| world[rank].steps.total)
        .unwrap_or(0)
}

/// Returns global samples divided by the slowest rank's time; 0 if no step was measured.
fn images_per_second(world: &[RankTimes]) -> f64 {
    world[slowest_rank(world)]
        .steps
        .speed
        .map_or(0.0, |speed| speed.mean)
}

/// Returns the record of an epoch with the measurements of all ranks, given on root.
pub fn with_measurements(
    record: EpochRecord,
    world: &[RankTimes],
    num_nodes: usize,
) -> EpochRecord {
    let seconds = world[0].seconds;
    EpochRecord {
        images_per_second: images_per_second(world),
        seconds,
        num_steps: Some(world[0].num_steps),
        peak_memory_bytes: peak_memory_bytes(world),
        exposed_communication_share: seconds.communication
            / seconds.step_total().max(f64::MIN_POSITIVE),
        joules_per_image: joules_per_image(world, num_nodes),
        ..record
    }
}

/// Returns the joules of all machines per sample.
///
/// Returns `None` without samples, or if the energy of a machine is unknown. Also returns `None` if
/// one of the job's `num_nodes` has no rank that trains.
pub fn joules_per_image(world: &[RankTimes], num_nodes: usize) -> Option<f64> {
    if world.iter().filter(|rank| rank.energy.is_some()).count() < num_nodes {
        return None;
    }
    let joules = energy::total(world.iter().map(|rank| rank.energy.as_ref()))?;
    let num_samples = world[0].num_samples;
    (num_samples > 0).then(|| joules / num_samples as f64)
}

/// Returns the largest peak of any rank.
pub fn peak_memory_bytes(world: &[RankTimes]) -> u64 {
    world
        .iter()
        .map(|rank| rank.peak_memory_bytes)
        .max()
        .unwrap_or(0)
}

/// Returns the straggler: the rank with the most time outside communication.
///
/// Returns `None` in a world of one rank. Ranks leave a collective together, so their total step
/// times are equal.
pub fn straggler(world: &[RankTimes]) -> Option<SlowestRank> {
    if world.len() < 2 {
        return None;
    }
    let own_ms = |times: &RankTimes| {
        (times.seconds.step_total() - times.seconds.communication) * 1e3
            / times.num_steps.max(1) as f64
    };
    let rank = (0..world.len())
        .rev()
        .max_by(|&a, &b| own_ms(&world[a]).total_cmp(&own_ms(&world[b])))?;
    Some(SlowestRank {
        rank,
        node: world[rank].node.clone(),
        own_milliseconds_per_step: own_ms(&world[rank]),
        mean_milliseconds_per_step: world.iter().map(own_ms).sum::<f64>() / world.len() as f64,
    })
}

/// Returns the time of every rank by phase, in rank order.
pub fn rank_seconds(world: &[RankTimes]) -> Vec<RankSeconds> {
    let of_rank = |(rank, times): (usize, &RankTimes)| RankSeconds {
        rank,
        node: times.node.clone(),
        num_steps: times.num_steps,
        data: times.seconds.data,
        forward: times.seconds.forward,
        backward: times.seconds.backward,
        communication: times.seconds.communication,
        optimizer: times.seconds.optimizer,
        other: (times.steps_total.as_secs_f64() - times.seconds.step_total()).max(0.0),
    };
    world.iter().enumerate().map(of_rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(seconds: &[u64], communication: f64, total: f64) -> RankTimes {
        RankTimes {
            steps: StepSketch::of(
                &seconds
                    .iter()
                    .map(|&s| (100, Duration::from_secs(s)))
                    .collect::<Vec<_>>(),
            ),
            num_steps: seconds.len() as u64,
            seconds: Seconds {
                forward: total - communication,
                communication,
                ..Seconds::default()
            },
            ..RankTimes::default()
        }
    }

    #[test]
    fn joules_are_no_sum_where_a_node_has_no_rank_that_measures() {
        let energy = Some(MachineEnergy {
            machine: "a".to_owned(),
            joules: Some(6.0),
        });
        let world = [
            RankTimes {
                energy,
                num_samples: 3,
                ..RankTimes::default()
            },
            RankTimes::default(),
        ];
        assert_eq!(joules_per_image(&world, 1), Some(2.0));
        assert_eq!(joules_per_image(&world, 2), None);
    }

    #[test]
    fn root_learns_of_all_ranks_as_little_of_many_steps_as_of_few() {
        let worlds = distributed::run_ranks(3, |communicator| {
            let steps = |number: usize| {
                vec![(8, Duration::from_millis(7 + communicator.rank() as u64)); number]
            };
            let of = |number| RankTimes {
                num_steps: number as u64,
                measured: steps(number),
                ..RankTimes::default()
            };
            (
                of(3).gather(&communicator).unwrap(),
                of(100_000).gather(&communicator).unwrap(),
            )
        });
        for (rank, (few, many)) in worlds.iter().enumerate() {
            assert_eq!(
                (few.len(), many.len()),
                if rank == ROOT { (3, 3) } else { (1, 1) }
            );
            for (times, number) in few
                .iter()
                .map(|times| (times, 3))
                .chain(many.iter().map(|times| (times, 100_000)))
            {
                assert_eq!(
                    (times.num_steps, times.steps.speed.unwrap().num_steps),
                    (number, number)
                );
                assert!(serde_json::to_vec(times).unwrap().len() < 2000, "{times:?}");
            }
        }
        let (_, on_root) = &worlds[ROOT];
        let median = on_root[2].steps.speed.unwrap().step_milliseconds_median;
        assert_eq!((slowest_rank(on_root), median), (2, 9.0));
        assert_eq!(on_root[1].steps.total, worlds[1].1[0].steps.total);
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
        assert_eq!(straggler(&world[..1]), None);
        let straggler = straggler(&world).unwrap();
        assert_eq!(
            (straggler.rank, straggler.own_milliseconds_per_step),
            (1, 4000.0)
        );
        assert_eq!(straggler.mean_milliseconds_per_step, 2500.0);
    }

    #[test]
    fn what_no_phase_counted_of_a_ranks_steps_is_other() {
        let world = [
            RankTimes {
                steps_total: Duration::from_secs(6),
                ..rank(&[5], 4.0, 5.0)
            },
            rank(&[5], 1.0, 5.0),
        ];
        let seconds = rank_seconds(&world);
        assert_eq!(
            (
                seconds[0].forward,
                seconds[0].communication,
                seconds[0].other
            ),
            (1.0, 4.0, 1.0)
        );
        assert_eq!(
            (seconds[1].rank, seconds[1].num_steps, seconds[1].other),
            (1, 1, 0.0)
        );
    }
}
