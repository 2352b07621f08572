//! State that the threads of a world share: the current collective, pending messages, and ranks
//! that have left.
//!
//! In: deposits and messages. Out: results, messages, or the reason for the world's end.
//! Invariant: results and messages from before a rank left are still delivered. An abort also ends
//! all duplicates of a world.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use super::lock;
use crate::{CollectiveError, ROOT};

/// State that all ranks of a world share.
#[derive(Debug)]
pub(super) struct World {
    state: Mutex<State>,
    changed: Condvar,
    /// This world and its duplicates.
    family: Arc<Mutex<Vec<Weak<World>>>>,
}

/// The current collective, the last finished collective, and messages.
///
/// The deposits of one finished collective suffice. The next collective needs a deposit of every
/// rank, and a rank deposits only after it has received the last deposits.
#[derive(Debug)]
struct State {
    deposits: Vec<Option<Deposit>>,
    /// Number of the finished collective, and its deposits in rank order.
    finished: Option<(u64, Deposits)>,
    /// Pending messages, by receiver.
    mailboxes: Vec<VecDeque<Mail>>,
    /// Error that ends collectives: the first rank that left or aborted.
    ended: Option<CollectiveError>,
    aborted: Option<CollectiveError>,
    /// Ranks that have left.
    left: Vec<bool>,
}

/// The deposits of all ranks in rank order, or the error of the collective.
pub(super) type Deposits = Result<Arc<[Deposit]>, CollectiveError>;

/// The contribution of one rank to a collective.
#[derive(Clone, Debug)]
pub(super) struct Deposit {
    pub(super) collective: &'static str,
    /// Root of a broadcast.
    pub(super) root: Option<usize>,
    /// Number of elements, if it must be equal on all ranks.
    pub(super) len: Option<usize>,
    pub(super) bytes: Vec<u8>,
    /// World for the duplicates.
    pub(super) world: Option<Arc<World>>,
}

impl Deposit {
    pub(super) fn new(collective: &'static str, bytes: &[u8]) -> Self {
        Self {
            collective,
            root: None,
            len: None,
            bytes: bytes.to_vec(),
            world: None,
        }
    }

    fn signature(&self) -> String {
        match self.root {
            Some(root) => format!("{} from root {root}", self.collective),
            None => self.collective.to_owned(),
        }
    }
}

/// A pending message.
#[derive(Debug)]
pub(super) struct Mail {
    pub(super) from: usize,
    /// `None` for an exchange.
    pub(super) tag: Option<u16>,
    pub(super) bytes: Vec<u8>,
}

impl World {
    pub(super) fn new(world_size: usize) -> Arc<Self> {
        Self::in_family(world_size, Arc::default())
    }

    /// Returns a world of the first ranks, which an abort also ends. The caller must not hold a
    /// locked state, because an abort locks the family before the states.
    pub(super) fn relative(&self, world_size: usize) -> Arc<Self> {
        Self::in_family(world_size, Arc::clone(&self.family))
    }

    fn in_family(world_size: usize, family: Arc<Mutex<Vec<Weak<Self>>>>) -> Arc<Self> {
        let state = State {
            deposits: vec![None; world_size],
            finished: None,
            mailboxes: (0..world_size).map(|_| VecDeque::new()).collect(),
            ended: None,
            aborted: None,
            left: vec![false; world_size],
        };
        let world = Arc::new(Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            family,
        });
        let mut family = lock(&world.family);
        family.retain(|world| world.strong_count() > 0);
        family.push(Arc::downgrade(&world));
        drop(family);
        world
    }

    /// Ends this world and its duplicates together. Otherwise, a rank that gets the error and
    /// leaves might be reported as the cause elsewhere.
    pub(super) fn abort(&self, rank: usize, reason: &str) {
        let error = CollectiveError::Aborted {
            rank,
            reason: reason.to_owned(),
        };
        // The family stays locked, so that another abort cannot lock the worlds in another order.
        let family = lock(&self.family);
        let worlds: Vec<Arc<Self>> = family.iter().filter_map(Weak::upgrade).collect();
        let mut states: Vec<_> = worlds.iter().map(|world| lock(&world.state)).collect();
        for state in &mut states {
            let ended = state.ended.get_or_insert_with(|| error.clone()).clone();
            state.aborted.get_or_insert(ended);
        }
        worlds.iter().for_each(|world| world.changed.notify_all());
    }

    /// Ends the collectives of this world, because `rank` will take part in none any more.
    pub(super) fn leave(&self, rank: usize) {
        let mut state = lock(&self.state);
        state.left[rank] = true;
        state.ended.get_or_insert_with(|| has_left(rank));
        self.changed.notify_all();
    }

    /// Waits for the deposit of every rank. Returns all deposits in rank order.
    pub(super) fn combine(&self, rank: usize, round: u64, deposit: Deposit) -> Deposits {
        let mut state = lock(&self.state);
        if let Some(ended) = &state.ended {
            return Err(ended.clone());
        }
        state.deposits[rank] = Some(deposit);
        if state.deposits.iter().all(Option::is_some) {
            let deposits: Vec<Deposit> =
                state.deposits.iter_mut().filter_map(Option::take).collect();
            let equal = expect_equal(&deposits);
            state.finished = Some((round, equal.map(|()| deposits.into())));
            self.changed.notify_all();
        }
        loop {
            // A finished collective has priority over the world's end, because a rank may leave
            // right after its last collective.
            if let Some((finished, deposits)) = &state.finished
                && *finished == round
            {
                return deposits.clone();
            }
            if let Some(ended) = &state.ended {
                return Err(ended.clone());
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds a message to the mailbox of rank `to`.
    pub(super) fn send(&self, to: usize, message: Mail) -> Result<(), CollectiveError> {
        let mut state = lock(&self.state);
        match &state.aborted {
            Some(aborted) => return Err(aborted.clone()),
            None if state.left[to] => return Err(has_left(to)),
            None => state.mailboxes[to].push_back(message),
        }
        self.changed.notify_all();
        Ok(())
    }

    /// Removes the oldest message for `rank` with this tag, from rank `from` or from any rank.
    /// Waits for the message if necessary.
    pub(super) fn receive(
        &self,
        rank: usize,
        from: Option<usize>,
        tag: Option<u16>,
    ) -> Result<Mail, CollectiveError> {
        let mut state = lock(&self.state);
        loop {
            if let Some(message) = state.take(rank, from, tag)? {
                return Ok(message);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Removes the oldest message for `rank` with this tag, if there is one.
    pub(super) fn try_receive(
        &self,
        rank: usize,
        tag: Option<u16>,
    ) -> Result<Option<Mail>, CollectiveError> {
        lock(&self.state).take(rank, None, tag)
    }
}

impl State {
    /// Removes a message. A message from before the world's end has priority over the end.
    fn take(
        &mut self,
        rank: usize,
        from: Option<usize>,
        tag: Option<u16>,
    ) -> Result<Option<Mail>, CollectiveError> {
        let wanted =
            |message: &Mail| message.tag == tag && from.is_none_or(|from| message.from == from);
        if let Some(index) = self.mailboxes[rank].iter().position(wanted) {
            return Ok(self.mailboxes[rank].remove(index));
        }
        if let Some(aborted) = &self.aborted {
            return Err(aborted.clone());
        }
        let gone = |&peer: &usize| peer == rank || self.left[peer];
        match from {
            Some(from) if gone(&from) => Err(has_left(from)),
            None if (0..self.left.len()).all(|peer| gone(&peer)) => {
                Err(self.ended.clone().unwrap_or_else(|| has_left(rank)))
            }
            _ => Ok(None),
        }
    }
}

/// Rejects deposits to different collectives, or of different lengths.
fn expect_equal(deposits: &[Deposit]) -> Result<(), CollectiveError> {
    let root = &deposits[ROOT];
    for (rank, deposit) in deposits.iter().enumerate() {
        if (deposit.collective, deposit.root) != (root.collective, root.root) {
            return Err(CollectiveError::Failed(format!(
                "rank {rank} called {} while rank {ROOT} called {}. Every rank must make the same collectives in the same order.",
                deposit.signature(),
                root.signature()
            )));
        }
        if let (Some(expected), Some(got)) = (root.len, deposit.len)
            && got != expected
        {
            return Err(CollectiveError::lengths(
                deposit.collective,
                rank,
                expected,
                got,
            ));
        }
    }
    Ok(())
}

fn has_left(rank: usize) -> CollectiveError {
    CollectiveError::Aborted {
        rank,
        reason: "the rank has left".to_owned(),
    }
}
