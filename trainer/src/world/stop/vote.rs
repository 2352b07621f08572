//! Finds a step at which ranks that run independently stop together.
//!
//! In: the request of one rank at its own step. Out: a step that no rank has passed, the same on
//! all ranks.
//! Invariant: no two ranks wait for each other. Under bounded staleness, others may wait for a
//! rank, so it continues for a few steps after its message, each of which releases a waiting rank.
//! This holds if the message arrives before the servers answer the last of these steps. MPI does
//! not guarantee that order; the watchdog ends a job in which it fails.

use anyhow::{Context, Result};
use distributed::Communicator;
use distributed::communicator::WaitPolicy;

/// Tag of messages with a rank's step.
const STOP_TAG: u16 = 101;

/// Limit of the steps after a rank's message if others may wait for it. The first of them releases
/// ranks that wait already. A rank that waits after the last one has had the time of all of them to
/// receive the message.
const MOST_LEAD: u64 = 4;

/// One rank's part in the search for the step to stop after, if ranks do not synchronise in every
/// step.
///
/// A rank that learns of a request sends its next step to the others, and waits for theirs. A rank
/// also sends its step before a planned synchronisation, during which it receives no messages.
#[derive(Debug)]
pub struct StopVote<'a> {
    communicator: &'a dyn Communicator,
    /// Number of steps after a rank's message before it waits for those of others; `None` if no
    /// rank waits for another.
    lead: Option<u64>,
    /// The step that each rank has sent since the last synchronisation.
    steps: Vec<Option<u64>>,
    /// True if a rank has requested a stop.
    is_requested: bool,
    /// The first step after the last synchronisation: messages about earlier ones are ignored.
    since: u64,
    /// True if all ranks synchronised after the last step.
    has_met: bool,
}

impl<'a> StopVote<'a> {
    /// Returns the vote of ranks that all begin with `step`. A rank waits when it is more than
    /// `staleness` steps ahead, if that is limited.
    pub fn new(communicator: &'a dyn Communicator, staleness: Option<u64>, step: u64) -> Self {
        let lead = staleness.map(|bound| bound.saturating_add(1).min(MOST_LEAD));
        Self {
            communicator,
            lead,
            steps: vec![None; communicator.world_size()],
            is_requested: false,
            since: step,
            has_met: false,
        }
    }

    /// Returns true if all ranks synchronise after this rank's next `step`: because it
    /// `meets_anyway`, or to stop there. Must be called before every step.
    pub fn meets_after(&mut self, step: u64, stop: bool, meets_anyway: bool) -> Result<bool> {
        if std::mem::take(&mut self.has_met) {
            self.steps.fill(None);
            self.is_requested = false;
            self.since = step;
        }
        while let Some(message) = self.communicator.try_receive_any(STOP_TAG)? {
            self.note(message)?;
        }
        self.is_requested |= stop;
        if self.is_requested || meets_anyway {
            self.send(step)?;
        }
        self.has_met = meets_anyway || (self.is_requested && self.is_last(step)?);
        Ok(self.has_met)
    }

    /// Sends this rank's step to the others, once between two synchronisations.
    fn send(&mut self, step: u64) -> Result<()> {
        let own = self.communicator.rank();
        if self.steps[own].is_some() {
            return Ok(());
        }
        self.steps[own] = Some(step);
        let mut bytes = step.to_le_bytes().to_vec();
        bytes.push(self.is_requested.into());
        for rank in 0..self.steps.len() {
            if rank != own {
                self.communicator.send(rank, STOP_TAG, &bytes)?;
            }
        }
        Ok(())
    }

    /// Returns true if `step` is the one that no rank has passed. Waits until that is known, unless
    /// others may wait for this rank.
    fn is_last(&mut self, step: u64) -> Result<bool> {
        let lead = self.lead.unwrap_or(0);
        loop {
            let steps: Option<Vec<u64>> = self.steps.iter().copied().collect();
            if let Some(steps) = steps {
                return Ok(step >= steps.into_iter().max().unwrap_or(step) + lead);
            }
            // Another rank may be in a step that waits for this rank's next ones.
            if step < self.steps[self.communicator.rank()].unwrap_or(step) + lead {
                return Ok(false);
            }
            // A server of this rank may use the same core for the others.
            self.communicator.set_wait_policy(WaitPolicy::Sleep);
            let message = self.communicator.receive_any(STOP_TAG);
            self.communicator.set_wait_policy(WaitPolicy::Spin);
            self.note(message?)?;
        }
    }

    fn note(&mut self, (rank, bytes): (usize, Vec<u8>)) -> Result<()> {
        let (step, is_request) = bytes
            .split_last_chunk::<1>()
            .context("stop: expected 9 bytes, got none")?;
        let step: [u8; 8] = step
            .try_into()
            .context("stop: expected a step of 8 bytes")?;
        let step = u64::from_le_bytes(step);
        if step >= self.since {
            self.steps[rank] = Some(step);
            self.is_requested |= is_request[0] != 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distributed::run_ranks;

    /// Runs steps of every rank from its own first one until it synchronises; all synchronise after
    /// `last` anyway. Returns their last steps.
    fn ends(
        firsts: [u64; 3],
        staleness: Option<u64>,
        last: u64,
        stopping: Option<usize>,
    ) -> Vec<u64> {
        run_ranks(3, |communicator| {
            let rank = communicator.rank();
            let mut vote = StopVote::new(&communicator, staleness, 0);
            let mut step = firsts[rank];
            while !vote
                .meets_after(step, stopping == Some(rank), step == last)
                .unwrap()
            {
                std::thread::yield_now();
                step += 1;
            }
            communicator.barrier().unwrap();
            step
        })
    }

    #[test]
    fn ranks_at_different_steps_find_one_that_none_has_passed() {
        for staleness in [None, Some(2)] {
            for stopping in 0..3 {
                let ends = ends([4, 6, 5], staleness, 1_000_000, Some(stopping));
                assert!(
                    ends.windows(2).all(|pair| pair[0] == pair[1]) && ends[0] >= 6,
                    "{staleness:?}: {ends:?}"
                );
            }
        }
    }

    #[test]
    fn no_rank_waits_for_a_stop_after_a_synchronisation_that_comes_first() {
        for staleness in [None, Some(2)] {
            for stopping in [Some(0), Some(1), None] {
                // Rank 1 waits in the synchronisation before the others begin.
                assert_eq!(
                    ends([4, 9, 7], staleness, 9, stopping),
                    [9, 9, 9],
                    "{staleness:?}, {stopping:?}"
                );
            }
        }
    }

    #[test]
    fn messages_before_a_synchronisation_are_ignored_after_it() {
        run_ranks(2, |communicator| {
            let mut vote = StopVote::new(&communicator, Some(0), 0);
            assert!(vote.meets_after(3, false, true).unwrap());
            communicator.barrier().unwrap();
            assert!(!vote.meets_after(4, false, false).unwrap());
            assert_eq!(vote.steps, [None, None]);
            communicator.barrier().unwrap();
        });
    }

    #[test]
    fn ranks_of_unlimited_staleness_stop_a_few_steps_after_the_last_message() {
        let leads = run_ranks(3, |communicator| {
            let mut vote = StopVote::new(&communicator, Some(u64::MAX), 0);
            let mut step = 0;
            while !vote
                .meets_after(step, communicator.rank() == 1, step == 1_000_000)
                .unwrap()
            {
                std::thread::yield_now();
                step += 1;
            }
            communicator.barrier().unwrap();
            step - vote.steps.iter().flatten().max().unwrap()
        });
        assert_eq!(leads, [MOST_LEAD; 3]);
    }

    #[test]
    fn one_rank_stops_at_once() {
        let ends = run_ranks(1, |communicator| {
            StopVote::new(&communicator, None, 3)
                .meets_after(3, true, false)
                .unwrap()
        });
        assert_eq!(ends, [true]);
    }
}
