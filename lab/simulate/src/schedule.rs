//! When every rank is done with its operations.
//!
//! In: the operations of all ranks. Out: every rank's time after its last one.
//! Invariant: the same times as those of threads that make these calls, whichever rank is looked at first: a rank's clock depends on
//! its own operations and on the departures of the messages that it names.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use distributed::CollectiveError;

use crate::SimulationError;
use crate::clock::{Clock, Route};
use crate::network::NetworkModel;
use crate::record::Operation;

/// The sender and the tag; exchanges have none.
type Key = (u32, Option<u16>);

#[derive(Clone, Copy, Debug)]
struct Message {
    departed: f64,
    bytes: usize,
}

/// One rank on its way through its operations.
#[derive(Debug, Default)]
struct Rank {
    clock: Clock,
    /// Operations it has finished.
    done: usize,
    /// Whether it has made the first half of an exchange.
    sent: bool,
    mailbox: HashMap<Key, VecDeque<Message>>,
    waits_for: Option<Key>,
}

/// Why a rank stopped.
enum Stop {
    Finished,
    Message,
    Collective(f64),
    Meeting(f64),
}

/// The world on its way.
struct Schedule<'a> {
    network: &'a NetworkModel,
    magnification: f64,
    operations: &'a [Vec<Operation>],
    ranks: Vec<Rank>,
    /// How many ranks have come to the collective, and to the meeting of each node.
    in_collective: usize,
    in_meeting: Vec<usize>,
    /// Ranks that can go on.
    ready: Vec<usize>,
}

/// The time of each rank after its operations, all begun at 0, where each byte stands for `magnification` bytes.
///
/// # Units
/// Seconds.
///
/// # Errors
/// When a message has another length than its receiver expects, or never comes.
pub(crate) fn finish(
    network: &NetworkModel,
    magnification: f64,
    operations: &[Vec<Operation>],
) -> Result<Vec<f64>, SimulationError> {
    let ranks = operations.iter().map(|_| Rank::default()).collect();
    let ready = (0..operations.len()).collect();
    let in_meeting = vec![0; operations.len().div_ceil(network.ranks_per_node())];
    let mut schedule = Schedule {
        network,
        magnification,
        operations,
        ranks,
        in_collective: 0,
        in_meeting,
        ready,
    };
    schedule.run()?;
    Ok(schedule.ranks.iter().map(|rank| rank.clock.now).collect())
}

impl Schedule<'_> {
    fn run(&mut self) -> Result<(), SimulationError> {
        while let Some(index) = self.ready.pop() {
            let (comers, members, seconds) = match self.advance(index)? {
                Stop::Finished | Stop::Message => continue,
                Stop::Collective(seconds) => {
                    (&mut self.in_collective, 0..self.ranks.len(), seconds)
                }
                Stop::Meeting(seconds) => {
                    let each = self.network.ranks_per_node();
                    let node = index / each;
                    let members = node * each..self.ranks.len().min((node + 1) * each);
                    (&mut self.in_meeting[node], members, seconds)
                }
            };
            *comers += 1;
            if *comers == members.len() {
                *comers = 0;
                self.go_on(members, seconds);
            }
        }
        let waits = |(rank, operations): (&Rank, &Vec<Operation>)| rank.done < operations.len();
        match self.ranks.iter().zip(self.operations).position(waits) {
            None => Ok(()),
            Some(rank) => Err(SimulationError::Deadlock { rank }),
        }
    }

    /// Lets a rank go on until it must wait.
    fn advance(&mut self, index: usize) -> Result<Stop, SimulationError> {
        let operations = self.operations;
        while let Some(&operation) = operations[index].get(self.ranks[index].done) {
            match operation {
                Operation::Send { to, tag, bytes } => self.send(index, to, Some(tag), bytes),
                Operation::Receive { from, tag, bytes } => {
                    if !self.receive(index, (from, Some(tag)), bytes)? {
                        return Ok(Stop::Message);
                    }
                }
                Operation::Exchange {
                    to,
                    outgoing,
                    from,
                    incoming,
                } => {
                    if !self.ranks[index].sent {
                        self.send(index, to, None, outgoing);
                        self.ranks[index].sent = true;
                    }
                    if !self.receive(index, (from, None), incoming)? {
                        return Ok(Stop::Message);
                    }
                    self.ranks[index].sent = false;
                }
                Operation::Collective { seconds } => return Ok(Stop::Collective(seconds)),
                Operation::Meeting { seconds } => return Ok(Stop::Meeting(seconds)),
            }
            self.ranks[index].done += 1;
        }
        Ok(Stop::Finished)
    }

    fn route(&self, from: usize, to: usize, bytes: usize) -> Route {
        Route::new(self.network, from, to, bytes as f64 * self.magnification)
    }

    fn send(&mut self, index: usize, to: u32, tag: Option<u16>, bytes: usize) {
        let receiver = to as usize;
        let route = self.route(index, receiver, bytes);
        let departed = self.ranks[index].clock.send(route);
        let key = (
            u32::try_from(index).expect("a simulated world is smaller than 2^32"),
            tag,
        );
        let receiver = &mut self.ranks[receiver];
        receiver
            .mailbox
            .entry(key)
            .or_default()
            .push_back(Message { departed, bytes });
        if receiver.waits_for == Some(key) {
            receiver.waits_for = None;
            self.ready.push(to as usize);
        }
    }

    /// Takes a message if it is there, else leaves a note that the rank waits for it.
    fn receive(
        &mut self,
        index: usize,
        key: Key,
        expected: usize,
    ) -> Result<bool, SimulationError> {
        let rank = &mut self.ranks[index];
        let Some(message) = rank.mailbox.get_mut(&key).and_then(VecDeque::pop_front) else {
            rank.waits_for = Some(key);
            return Ok(false);
        };
        let from = key.0 as usize;
        if message.bytes != expected {
            let collective = if key.1.is_some() {
                "receive"
            } else {
                "exchange"
            };
            return Err(CollectiveError::LengthMismatch {
                collective,
                rank: from,
                expected,
                got: message.bytes,
            }
            .into());
        }
        let route = self.route(from, index, message.bytes);
        self.ranks[index].clock.receive(route, message.departed);
        Ok(true)
    }

    /// Lets ranks that have met go on.
    fn go_on(&mut self, members: Range<usize>, seconds: f64) {
        let latest = self.ranks[members.clone()]
            .iter()
            .map(|rank| rank.clock.now)
            .fold(0.0, f64::max);
        for index in members {
            self.ranks[index].clock.collective(latest, seconds);
            self.ranks[index].done += 1;
            self.ready.push(index);
        }
    }
}
