//! Times at which ranks finish their operations.
//!
//! In: the operations of all ranks. Out: each rank's time after its last operation.
//! Invariant: times do not depend on the order in which ranks are processed, because a rank's clock
//! depends only on its operations and on the departures of its messages.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use distributed::CollectiveError;

use crate::SimulationError;
use crate::network::NetworkModel;
use crate::record::RecordedCall;

/// Seconds since the start of the simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Clock {
    now: f64,
    /// Times at which the outgoing links are free: between nodes, inside the node.
    outgoing: [f64; 2],
    /// Times at which the incoming links are free.
    incoming: [f64; 2],
}

impl Clock {
    /// Sends a message over a link and returns its departure.
    fn send(&mut self, inside: bool, seconds: f64) -> f64 {
        let free = &mut self.outgoing[usize::from(inside)];
        let departed = self.now.max(*free);
        *free = departed + seconds;
        self.now = *free;
        departed
    }

    /// Receives a message that departed at `departed`.
    fn receive(&mut self, inside: bool, seconds: f64, departed: f64) {
        let free = &mut self.incoming[usize::from(inside)];
        *free = departed.max(*free) + seconds;
        self.now = self.now.max(*free);
    }
}

/// Sender and tag; exchanges have no tag.
type Key = (u32, Option<u16>);

#[derive(Clone, Copy, Debug)]
struct Message {
    departed: f64,
    bytes: usize,
}

/// State of one rank.
#[derive(Debug, Default)]
struct Rank {
    clock: Clock,
    /// Completed operations.
    done: usize,
    /// True between sending and receiving of an exchange.
    sent: bool,
    mailbox: HashMap<Key, VecDeque<Message>>,
    waits_for: Option<Key>,
}

/// State of all ranks.
struct Schedule<'a> {
    network: &'a NetworkModel,
    magnification: f64,
    operations: &'a [Vec<RecordedCall>],
    ranks: Vec<Rank>,
    /// Ranks that wait in the meeting of all ranks, and of each node.
    in_collective: usize,
    in_meeting: Vec<usize>,
    /// Ranks that can continue.
    ready: Vec<usize>,
}

/// Returns the seconds after which each rank has finished its operations.
///
/// Each byte of an operation represents `magnification` bytes.
///
/// # Errors
/// When a message is missing or has another length than its receiver expects.
pub(crate) fn finish(
    network: &NetworkModel,
    magnification: f64,
    operations: &[Vec<RecordedCall>],
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
            let Some((of_node, seconds)) = self.advance(index)? else {
                continue;
            };
            let (comers, members) = match of_node {
                false => (&mut self.in_collective, 0..self.ranks.len()),
                true => {
                    let each = self.network.ranks_per_node();
                    let node = index / each;
                    let members = node * each..self.ranks.len().min((node + 1) * each);
                    (&mut self.in_meeting[node], members)
                }
            };
            *comers += 1;
            if *comers == members.len() {
                *comers = 0;
                self.release(members, seconds);
            }
        }
        let waits = |(rank, operations): (&Rank, &Vec<RecordedCall>)| rank.done < operations.len();
        match self.ranks.iter().zip(self.operations).position(waits) {
            None => Ok(()),
            Some(rank) => Err(SimulationError(format!(
                "simulation: deadlock: rank {rank} waits for a message or a collective"
            ))),
        }
    }

    /// Runs a rank until it must wait; returns the kind and seconds of a meeting.
    fn advance(&mut self, index: usize) -> Result<Option<(bool, f64)>, SimulationError> {
        let operations = self.operations;
        while let Some(&operation) = operations[index].get(self.ranks[index].done) {
            match operation {
                RecordedCall::Send { to, tag, bytes } => self.send(index, to, Some(tag), bytes),
                RecordedCall::Receive { from, tag, bytes } => {
                    if !self.receive(index, (from, Some(tag)), bytes)? {
                        return Ok(None);
                    }
                }
                RecordedCall::Exchange {
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
                        return Ok(None);
                    }
                    self.ranks[index].sent = false;
                }
                RecordedCall::Meeting { of_node, seconds } => return Ok(Some((of_node, seconds))),
            }
            self.ranks[index].done += 1;
        }
        Ok(None)
    }

    /// Returns whether a message stays inside a node, and its seconds.
    fn route(&self, from: usize, to: usize, bytes: usize) -> (bool, f64) {
        let inside = self.network.is_inside(from, to);
        let link = self.network.link(inside);
        (inside, link.seconds(bytes as f64 * self.magnification))
    }

    fn send(&mut self, index: usize, to: u32, tag: Option<u16>, bytes: usize) {
        let receiver = to as usize;
        let (inside, seconds) = self.route(index, receiver, bytes);
        let departed = self.ranks[index].clock.send(inside, seconds);
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

    /// Receives a message if it has been sent; otherwise notes that the rank waits for it.
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
            return Err(CollectiveError::lengths(collective, from, expected, message.bytes).into());
        }
        let (inside, seconds) = self.route(from, index, message.bytes);
        let clock = &mut self.ranks[index].clock;
        clock.receive(inside, seconds, message.departed);
        Ok(true)
    }

    /// Releases ranks that have met.
    fn release(&mut self, members: Range<usize>, seconds: f64) {
        let latest = self.ranks[members.clone()]
            .iter()
            .map(|rank| rank.clock.now)
            .fold(0.0, f64::max);
        for index in members {
            let clock = &mut self.ranks[index].clock;
            clock.now = clock.now.max(latest) + seconds;
            self.ranks[index].done += 1;
            self.ready.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::Link;

    const NETWORK: NetworkModel = NetworkModel::new(Link {
        alpha: 0.25,
        beta: 0.5,
    });
    const MESSAGE: f64 = 0.25 + 0.5 * 4.0;

    fn send(to: u32) -> RecordedCall {
        RecordedCall::Send {
            to,
            tag: 1,
            bytes: 4,
        }
    }

    fn receive(from: u32, bytes: usize) -> RecordedCall {
        RecordedCall::Receive {
            from,
            tag: 1,
            bytes,
        }
    }

    #[test]
    fn links_carry_one_message_after_the_other_and_a_late_sender_delays_the_receiver() {
        let operations = [
            vec![send(1), send(2), send(3)],
            vec![receive(0, 4), receive(2, 4), receive(3, 4)],
            vec![send(1), receive(0, 4)],
            vec![send(1), receive(0, 4)],
        ];
        let times = finish(&NETWORK, 1.0, &operations).unwrap();
        assert_eq!(
            times,
            [3.0, 3.0, 2.0, 3.0].map(|messages| messages * MESSAGE)
        );
    }

    #[test]
    fn messages_of_another_length_and_missing_messages_are_errors() {
        for (operations, expected) in [
            ([vec![send(1)], vec![receive(0, 5)]], "expected 5"),
            ([Vec::new(), vec![receive(0, 4)]], "deadlock: rank 1 waits"),
        ] {
            let error = finish(&NETWORK, 1.0, &operations).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
