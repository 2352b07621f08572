//! Times of one size: a message and its answer, or a collective of all ranks.
//!
//! In: a communicator, a size, a time limit. Out: [`SizeTimes`], on the deciding rank.
//! Invariant: one rank decides the number of repetitions and sends it, so that all make the same
//! calls.
//! Source: Snell, Mikler & Gustafson 1996, NetPIPE (half of a round trip); Hoefler & Belli 2015,
//! rules 9 and 10 (the slowest of the ranks).

use crate::pairs::RankPair;
use crate::repetitions::{Next, Spread, next};
use distributed::{CollectiveError, Communicator, ROOT};
use records::{SizeTimes, StoppedBy};
use std::time::{Duration, Instant};

/// Tags of timed messages, and of orders with a number of messages.
const TIMED_TAG: u16 = 101;
const ORDER_TAG: u16 = 102;

/// Value of the bytes.
const CONTENT: u8 = 1;

/// Returns the point of `sorted` nanoseconds, ascending, each for `parts` messages.
fn point_of(bytes: usize, sorted: &[u64], parts: f64, stopped_by: StoppedBy) -> SizeTimes {
    let spread = Spread::of(sorted).expect("every point has its repetitions");
    let seconds = |nanos: f64| nanos / parts / 1e9;
    SizeTimes {
        bytes: bytes as u64,
        seconds_median: seconds(spread.median),
        seconds_p10: seconds(spread.p10),
        seconds_p90: seconds(spread.p90),
        relative_half_width: spread.relative_reach,
        repetitions: sorted.len() as u64,
        stopped_by,
        simulated_seconds: None,
    }
}

/// Times messages of `bytes` between the ranks of a pair as half of a round trip; the first rank
/// gets the point.
///
/// The first round trip opens the connection and touches memory; it does not count.
///
/// # Collective
/// Must be called by both ranks of the pair, and by no other.
pub(super) fn ping_pong(
    communicator: &dyn Communicator,
    pair: RankPair,
    bytes: usize,
    budget: Duration,
) -> Result<Option<SizeTimes>, CollectiveError> {
    let mut buffer = vec![CONTENT; bytes];
    if communicator.rank() == pair.second {
        answer(communicator, pair.first, &mut buffer)?;
        return Ok(None);
    }
    let other = pair.second;
    let order = |number: usize| {
        let mut heard = (number as u64).to_le_bytes();
        communicator.send(other, ORDER_TAG, &heard)?;
        // The echo keeps the order out of the first round trip.
        communicator.receive(other, ORDER_TAG, &mut heard)
    };
    let mut round_trip = || {
        let start = Instant::now();
        communicator.send(other, TIMED_TAG, &buffer)?;
        communicator.receive(other, TIMED_TAG, &mut buffer)?;
        Ok(nanos_since(start))
    };
    order(1)?;
    round_trip()?;
    let start = Instant::now();
    let mut times = Vec::new();
    loop {
        times.sort_unstable();
        match next(&times, start.elapsed(), budget) {
            Next::Repeat(number) => {
                order(number)?;
                for _ in 0..number {
                    times.push(round_trip()?);
                }
            }
            Next::Stop(why) => {
                order(0)?;
                return Ok(Some(point_of(bytes, &times, 2.0, why)));
            }
        }
    }
}

/// Sends back the messages of `first`, until it orders none.
fn answer(
    communicator: &dyn Communicator,
    first: usize,
    buffer: &mut [u8],
) -> Result<(), CollectiveError> {
    loop {
        let mut order = [0; 8];
        communicator.receive(first, ORDER_TAG, &mut order)?;
        communicator.send(first, ORDER_TAG, &order)?;
        let number = u64::from_le_bytes(order);
        if number == 0 {
            return Ok(());
        }
        for _ in 0..number {
            communicator.receive(first, TIMED_TAG, buffer)?;
            communicator.send(first, TIMED_TAG, buffer)?;
        }
    }
}

/// Times `once`, a collective of `bytes`: a repetition takes as long as on the slowest rank. Root
/// gets the point. The first repetition does not count. Collective: all ranks.
pub(super) fn repeat_together(
    communicator: &dyn Communicator,
    bytes: usize,
    budget: Duration,
    mut once: impl FnMut() -> Result<u64, CollectiveError>,
) -> Result<Option<SizeTimes>, CollectiveError> {
    once()?;
    let start = Instant::now();
    let mut times = Vec::new();
    loop {
        times.sort_unstable();
        let (mut order, mut point) = ([0; 8], None);
        if communicator.rank() == ROOT {
            match next(&times, start.elapsed(), budget) {
                Next::Repeat(number) => order = (number as u64).to_le_bytes(),
                Next::Stop(why) => point = Some(point_of(bytes, &times, 1.0, why)),
            }
        }
        communicator.broadcast(ROOT, &mut order)?;
        let number = u64::from_le_bytes(order);
        if number == 0 {
            return Ok(point);
        }
        let mut more = (0..number)
            .map(|_| once())
            .collect::<Result<Vec<u64>, CollectiveError>>()?;
        communicator.all_reduce_max_u64(&mut more)?;
        times.extend(more);
    }
}

/// Returns the nanoseconds of `run` after a barrier. Ranks leave the barrier at slightly different
/// times, which is included. Collective: all ranks.
pub(super) fn timed(
    communicator: &dyn Communicator,
    run: impl FnOnce() -> Result<(), CollectiveError>,
) -> Result<u64, CollectiveError> {
    communicator.barrier()?;
    let start = Instant::now();
    run()?;
    Ok(nanos_since(start))
}

fn nanos_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_takes_half_of_its_round_trip() {
        let times = [1_000, 2_000, 2_000, 2_000, 2_000, 2_000, 2_000, 3_000];
        let point = point_of(4, &times, 2.0, StoppedBy::Time);
        assert_eq!(
            (point.bytes, point.repetitions, point.seconds_median),
            (4, 8, 1e-6)
        );
        // The interval of eight values is from the first to the last.
        assert_eq!(point.relative_half_width, Some(0.5));
    }
}
