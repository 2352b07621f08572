//! Where ranks that run apart meet to stop together.
//!
//! In: one rank's wish at a step of its own. Out: a step that no rank has passed, the same on all ranks.
//! Invariant: no rank waits for one that waits for it: a rank that others may wait for, under bounded staleness, goes on for a few
//! steps, each of which lets go whoever waited for it. That holds as long as its word is heard
//! before the answers that its servers give for the last of these steps: MPI promises no such order, and the watchdog ends what breaks it.

use anyhow::{Context, Result};
use distributed::{Communicator, communicator::WaitPolicy};

/// Tag of the messages in which ranks tell each other where they are.
const STOP_TAG: u16 = 101;

/// Most steps that a rank goes on after its word where others may wait for it. The first of them lets go whoever waits then; who waits
/// for it after the last began that step after the others, and had the time of all of them to hear the word.
const MOST_LEAD: u64 = 4;

/// One rank's part in the search for a step to stop after, where ranks do not meet in every step.
///
/// A rank that learns of a wish tells the others which step it is about to make, and waits for their words. One that goes into a
/// meeting of all ranks tells its step as well, for there it would listen no more.
#[derive(Debug)]
pub struct StopVote<'a> {
    communicator: &'a dyn Communicator,
    /// Steps that a rank goes on after its word before it waits for those of others; `None` if nobody waits for anybody.
    lead: Option<u64>,
    /// The step that each rank told, since the last meeting.
    told: Vec<Option<u64>>,
    /// Whether a rank told that it wishes to stop.
    is_wished: bool,
    /// The first step after the last meeting: words about earlier ones are void.
    since: u64,
    /// Whether the last step was one after which all met.
    has_met: bool,
}

impl<'a> StopVote<'a> {
    /// For ranks of which the fastest waits when it is more than `staleness` steps ahead, if it ever does; all begin with `step`.
    pub fn new(communicator: &'a dyn Communicator, staleness: Option<u64>, step: u64) -> Self {
        let lead = staleness.map(|bound| bound.saturating_add(1).min(MOST_LEAD));
        let told = vec![None; communicator.world_size()];
        Self {
            communicator,
            lead,
            told,
            is_wished: false,
            since: step,
            has_met: false,
        }
    }

    /// Whether all ranks meet after the `step` that this rank is about to make: because of `meets_anyway`, or to stop there. To be
    /// asked before every step.
    pub fn meets_after(&mut self, step: u64, wishes: bool, meets_anyway: bool) -> Result<bool> {
        if std::mem::take(&mut self.has_met) {
            self.told.fill(None);
            (self.is_wished, self.since) = (false, step);
        }
        while let Some(message) = self.communicator.try_receive_any(STOP_TAG)? {
            self.hear(message)?;
        }
        self.is_wished |= wishes;
        if self.is_wished || meets_anyway {
            self.tell(step)?;
        }
        self.has_met = meets_anyway || (self.is_wished && self.is_last(step)?);
        Ok(self.has_met)
    }

    /// Tells the others, unless they were told before.
    fn tell(&mut self, step: u64) -> Result<()> {
        let own = self.communicator.rank();
        if self.told[own].is_some() {
            return Ok(());
        }
        self.told[own] = Some(step);
        let mut bytes = step.to_le_bytes().to_vec();
        bytes.push(self.is_wished.into());
        for rank in (0..self.told.len()).filter(|&rank| rank != own) {
            self.communicator.send(rank, STOP_TAG, &bytes)?;
        }
        Ok(())
    }

    /// Whether this rank has come to the step that none has passed; waits until that is known, unless others may wait for it.
    fn is_last(&mut self, step: u64) -> Result<bool> {
        let lead = self.lead.unwrap_or(0);
        loop {
            let steps: Option<Vec<u64>> = self.told.iter().copied().collect();
            if let Some(steps) = steps {
                return Ok(step >= steps.into_iter().max().unwrap_or(step) + lead);
            }
            // One of the others may be in a step that waits for this rank's next ones.
            if step < self.told[self.communicator.rank()].unwrap_or(step) + lead {
                return Ok(false);
            }
            // A server of this rank may work on the same core for those that come here.
            self.communicator.set_wait_policy(WaitPolicy::Sleep);
            let message = self.communicator.receive_any(STOP_TAG);
            self.communicator.set_wait_policy(WaitPolicy::Spin);
            self.hear(message?)?;
        }
    }

    fn hear(&mut self, (rank, bytes): (usize, Vec<u8>)) -> Result<()> {
        let (step, is_wish) = bytes
            .split_last_chunk::<1>()
            .context("stop: expected 9 bytes, got none")?;
        let step: [u8; 8] = step
            .try_into()
            .context("stop: expected a step of 8 bytes")?;
        let step = u64::from_le_bytes(step);
        if step >= self.since {
            self.told[rank] = Some(step);
            self.is_wished |= is_wish[0] != 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distributed::run_ranks;

    /// Every rank makes steps from its own first one until it meets the others; all meet after `last` anyway.
    fn ends(
        firsts: [u64; 3],
        staleness: Option<u64>,
        last: u64,
        wishing: Option<usize>,
    ) -> Vec<u64> {
        run_ranks(3, |communicator| {
            let rank = communicator.rank();
            let mut vote = StopVote::new(&communicator, staleness, 0);
            let mut step = firsts[rank];
            while !vote
                .meets_after(step, wishing == Some(rank), step == last)
                .unwrap()
            {
                std::thread::yield_now();
                step += 1;
            }
            // The meeting.
            communicator.barrier().unwrap();
            step
        })
    }

    #[test]
    fn ranks_at_different_steps_find_one_that_none_has_passed() {
        for staleness in [None, Some(2)] {
            for wishing in 0..3 {
                let ends = ends([4, 6, 5], staleness, 1_000_000, Some(wishing));
                assert!(
                    ends.windows(2).all(|pair| pair[0] == pair[1]) && ends[0] >= 6,
                    "{staleness:?}: {ends:?}"
                );
            }
        }
    }

    #[test]
    fn a_meeting_that_comes_first_is_waited_for_by_none() {
        for staleness in [None, Some(2)] {
            for wishing in [Some(0), Some(1), None] {
                // Rank 1 is in the meeting before the others begin.
                assert_eq!(
                    ends([4, 9, 7], staleness, 9, wishing),
                    [9, 9, 9],
                    "{staleness:?}, {wishing:?}"
                );
            }
        }
    }

    #[test]
    fn what_was_told_before_a_meeting_is_void_after_it() {
        run_ranks(2, |communicator| {
            let mut vote = StopVote::new(&communicator, Some(0), 0);
            assert!(vote.meets_after(3, false, true).unwrap());
            communicator.barrier().unwrap();
            assert!(!vote.meets_after(4, false, false).unwrap());
            assert_eq!(vote.told, [None, None]);
            communicator.barrier().unwrap();
        });
    }

    #[test]
    fn however_far_ranks_may_run_apart_they_stop_a_few_steps_after_the_last_word() {
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
            step - vote.told.iter().flatten().max().unwrap()
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
