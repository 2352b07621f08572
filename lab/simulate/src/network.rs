//! Cost of messages between nodes and inside a node.
//!
//! In: a name such as `10gbe`, or latency and bandwidth. Out: seconds per message.
//! Invariant: the text of a [`NetworkModel`] reads as the same model, to nine digits.
//! Source: Hockney 1994, The communication challenge for MPP: n bytes take alpha + beta n.
//!
//! Sources of the presets, which do not replace a measurement:
//!
//! - `ib-edr`: nominal rate of four EDR lanes (InfiniBand Architecture Specification 1.3).
//!   Ping-pong benchmarks of MPI across one switch have a latency of 1 to 2 us.
//! - `10gbe` and `1gbe`: rates of TCP. A full frame has 1,460 bytes of payload and takes 1,538
//!   bytes on the wire, which allows 1.19 GB/s and 119 MB/s; benchmarks of MPI reach 113 to
//!   118 MB/s.
//!   Latencies of MPI over TCP are 15 to 35 us with tuned interrupts, and above 50 us without.

use std::fmt;
use std::ops::{Bound, RangeBounds};
use std::str::FromStr;

use thiserror::Error;

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds per message.
    pub alpha: f64,
    /// Seconds per byte.
    pub beta: f64,
}

/// Ranks of a node and the memory between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// Ranks per node, at least 1; ranks `0..ranks` run on the first node.
    pub ranks: usize,
    /// Link between ranks of one node.
    pub link: Link,
    /// True if ranks of one node reduce in shared memory instead of by messages.
    pub shared: bool,
}

/// A network in which every rank has a link to other nodes and a second one inside its node.
///
/// A link carries one message at a time in each direction. Links do not slow each other down, as if
/// the switch were perfect and each rank had its own network card.
///
/// # Text
/// `LINK[,BURST[,SHARE[,SLOWDOWN]]][@RANKS[:shared][:LATENCY,BANDWIDTH]]`, for example
/// `1gbe,0KB,15%,1.3x` or `ib-edr@4:2us,10GB/s`:
///
/// - `LINK`: `ib-edr` (1.5 us, 100 Gbit/s), `10gbe` (25 us, 1.17 GB/s), `1gbe` (50 us, 113 MB/s) or
///   `LATENCY,BANDWIDTH` such as `50us,113MB/s`, in `us` or `ms` and `MB/s`, `GB/s` or `Gbit/s`.
/// - `BURST`: bytes that a rate limit passes at once, in `KB` or `MB`.
/// - `SHARE`: share of computation that is lost while messages are sent, in `%`.
/// - `SLOWDOWN`: factor on the time of sums during computation, in `x`.
/// - `@RANKS`: ranks per node. With `:shared` they reduce in [shared](Node::shared) memory. The last
///   part is the link inside a node; without it 1 us and 5 GB/s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkModel {
    /// Link between nodes.
    pub link: Link,
    /// Nodes; `None` puts each rank on its own node.
    pub node: Option<Node>,
    /// Bytes that pass between nodes at once after a pause (token bucket); 0 for none.
    pub burst_bytes: f64,
    /// Share of a rank's computation that is lost while its messages between nodes are sent, from 0
    /// to below 1. It is above 0 if the sending thread shares a core with the computation.
    pub computing_share: f64,
    /// Factor on the time of a sum between nodes while the ranks compute, at least 1.
    pub sum_slowdown: f64,
}

/// A text that does not describe a network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("network \"{text}\": expected {expected}, got \"{got}\"")]
pub struct NetworkError {
    /// Whole text.
    pub text: String,
    /// Expected part.
    pub expected: &'static str,
    /// Part that does not fit.
    pub got: String,
}

pub(crate) const PRESETS: [(&str, Link); 3] = [
    (
        "ib-edr",
        Link {
            alpha: 1.5e-6,
            beta: 1.0 / 12.5e9,
        },
    ),
    (
        "10gbe",
        Link {
            alpha: 25e-6,
            beta: 1.0 / 1.17e9,
        },
    ),
    (
        "1gbe",
        Link {
            alpha: 50e-6,
            beta: 1.0 / 113e6,
        },
    ),
];

impl Link {
    /// Default link inside a node: one copy into memory and one out of it.
    pub const MEMORY: Self = Self {
        alpha: 1e-6,
        beta: 1.0 / 5e9,
    };

    /// Returns a link of `alpha` seconds per message and `bandwidth` bytes per second.
    pub fn new(alpha: f64, bandwidth: f64) -> Self {
        Self {
            alpha,
            beta: bandwidth.recip(),
        }
    }

    /// Returns the seconds that a message occupies the link.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.alpha + self.beta * bytes
    }
}

impl NetworkModel {
    /// Returns a network with one rank per node.
    pub const fn new(link: Link) -> Self {
        Self {
            link,
            node: None,
            burst_bytes: 0.0,
            computing_share: 0.0,
            sum_slowdown: 1.0,
        }
    }

    /// Returns this network with `ranks` ranks on each node.
    pub fn with_nodes(self, ranks: usize, link: Link) -> Self {
        Self {
            node: Some(Node {
                ranks,
                link,
                shared: false,
            }),
            ..self
        }
    }

    /// Returns the seconds of a transfer between nodes during a computation, and the seconds that
    /// the computation loses.
    ///
    /// The computation needs `left_s` more. Until it ends, the transfer of `seconds` is slower by
    /// `slowdown`.
    pub(crate) fn during_computation(
        &self,
        left_s: f64,
        seconds: f64,
        slowdown: f64,
    ) -> (f64, f64) {
        let slowed_s = (seconds * slowdown).min(left_s.max(0.0) / (1.0 - self.computing_share));
        (
            slowed_s + seconds - slowed_s / slowdown,
            slowed_s * self.computing_share,
        )
    }

    /// Returns this network with shared memory inside nodes, if there are nodes.
    pub fn with_shared_memory(self) -> Self {
        Self {
            node: self.node.map(|node| Node {
                shared: true,
                ..node
            }),
            ..self
        }
    }

    /// Returns the ranks per node, at least 1.
    pub fn ranks_per_node(&self) -> usize {
        self.node.map_or(1, |node| node.ranks.max(1))
    }

    /// Returns true if two ranks run on one node.
    pub(crate) fn is_inside(&self, rank: usize, other: usize) -> bool {
        rank / self.ranks_per_node() == other / self.ranks_per_node()
    }

    /// Returns the link inside a node or between nodes.
    pub(crate) fn link(&self, inside: bool) -> Link {
        self.node
            .filter(|_| inside)
            .map_or(self.link, |node| node.link)
    }
}

/// Rounds to nine digits, which hides the rounding of seconds per byte.
fn rounded(value: f64) -> f64 {
    format!("{value:.8e}").parse().unwrap_or(value)
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}us,{}MB/s",
            rounded(self.alpha * 1e6),
            rounded(1e-6 / self.beta)
        )
    }
}

impl fmt::Display for NetworkModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PRESETS.iter().find(|(_, link)| *link == self.link) {
            Some((name, _)) => f.write_str(name)?,
            None => self.link.fmt(f)?,
        }
        let is_slower = self.sum_slowdown > 1.0;
        if self.burst_bytes > 0.0 || self.computing_share > 0.0 || is_slower {
            write!(f, ",{}KB", rounded(self.burst_bytes / 1e3))?;
        }
        if self.computing_share > 0.0 || is_slower {
            write!(f, ",{}%", rounded(self.computing_share * 100.0))?;
        }
        if is_slower {
            write!(f, ",{}x", rounded(self.sum_slowdown))?;
        }
        let Some(node) = self.node else { return Ok(()) };
        write!(
            f,
            "@{}{}",
            node.ranks,
            if node.shared { ":shared" } else { "" }
        )?;
        if node.link == Link::MEMORY {
            Ok(())
        } else {
            write!(f, ":{}", node.link)
        }
    }
}

/// Expected text and the text found.
type Refusal = (&'static str, String);

/// A unit and the function from a number in it to the base unit. Quotients make 50us exactly 50e-6.
type Unit = (&'static str, fn(f64) -> f64);

const LATENCIES: [Unit; 2] = [("us", |us| us / 1e6), ("ms", |ms| ms / 1e3)];
const BANDWIDTHS: [Unit; 3] = [
    ("MB/s", |rate| rate * 1e6),
    ("GB/s", |rate| rate * 1e9),
    ("Gbit/s", |rate| rate * (1e9 / 8.0)),
];
const SIZES: [Unit; 2] = [("KB", |size| size * 1e3), ("MB", |size| size * 1e6)];
const SHARES: [Unit; 1] = [("%", |percent| percent / 100.0)];
const FACTORS: [Unit; 1] = [("x", |factor| factor)];

impl FromStr for NetworkModel {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        network(text).map_err(|(expected, got)| NetworkError {
            text: text.to_owned(),
            expected,
            got,
        })
    }
}

fn network(text: &str) -> Result<NetworkModel, Refusal> {
    let (text, node_text) = match text.split_once('@') {
        Some((text, node)) => (text, Some(node)),
        None => (text, None),
    };
    let first = text.split(',').next().unwrap_or_default();
    let num_link_parts = if preset(first).is_some() { 1 } else { 2 };
    let (link_text, options) = match text.match_indices(',').nth(num_link_parts - 1) {
        Some((comma, _)) => (&text[..comma], text[comma + 1..].splitn(3, ',').collect()),
        None => (text, Vec::new()),
    };
    let option = |index: usize, absent: f64, read: &dyn Fn(&str) -> Result<f64, Refusal>| {
        options.get(index).map_or(Ok(absent), |text| read(text))
    };
    Ok(NetworkModel {
        link: match preset(link_text) {
            Some(link) => link,
            None => link(link_text)?,
        },
        burst_bytes: option(0, 0.0, &|text| {
            quantity(text, &SIZES, 0.0.., "a burst such as 256KB")
        })?,
        computing_share: option(1, 0.0, &|text| {
            let expected = "the share of computation lost to messages, from 0% to below 100%";
            quantity(text, &SHARES, 0.0..1.0, expected)
        })?,
        sum_slowdown: option(2, 1.0, &|text| {
            let expected = "the slowdown of sums during computation, at least 1x, such as 1.3x";
            quantity(text, &FACTORS, 1.0.., expected)
        })?,
        node: node_text.map(node).transpose()?,
    })
}

pub(crate) fn preset(name: &str) -> Option<Link> {
    let is_it = |(known, _): &&(&str, Link)| name.trim().eq_ignore_ascii_case(known);
    PRESETS.iter().find(is_it).map(|(_, link)| *link)
}

/// Reads `LATENCY,BANDWIDTH`.
fn link(text: &str) -> Result<Link, Refusal> {
    let Some((latency, bandwidth)) = text.split_once(',') else {
        let expected = "ib-edr, 10gbe, 1gbe, or LATENCY,BANDWIDTH such as 50us,113MB/s, and @RANKS after it for nodes";
        return Err((expected, text.to_owned()));
    };
    let alpha = quantity(
        latency,
        &LATENCIES,
        0.0..,
        "a latency such as 50us or 0.1ms",
    )?;
    let positive = (Bound::Excluded(0.0), Bound::Unbounded);
    let expected = "a bandwidth such as 113MB/s, 1.2GB/s or 100Gbit/s";
    Ok(Link::new(
        alpha,
        quantity(bandwidth, &BANDWIDTHS, positive, expected)?,
    ))
}

/// Reads `RANKS`, `RANKS:shared`, and either with `:LATENCY,BANDWIDTH`.
fn node(text: &str) -> Result<Node, Refusal> {
    let mut parts = text.split(':').peekable();
    let ranks = parts.next().unwrap_or_default();
    let number = ranks.trim().parse().ok().filter(|ranks| *ranks > 0);
    let expected = "a number of ranks per node, at least 1, after @";
    let node = Node {
        ranks: number.ok_or_else(|| (expected, ranks.to_owned()))?,
        shared: parts.next_if(|part| part.trim() == "shared").is_some(),
        link: parts.next().map_or(Ok(Link::MEMORY), link)?,
    };
    match parts.next() {
        Some(more) => Err(("nothing after the memory of a node", more.to_owned())),
        None => Ok(node),
    }
}

/// Reads a finite number with a unit, in the base unit.
fn quantity(
    text: &str,
    units: &[Unit],
    range: impl RangeBounds<f64>,
    expected: &'static str,
) -> Result<f64, Refusal> {
    let number = units.iter().find_map(|(unit, to_base)| {
        let number = text.trim().strip_suffix(unit)?.trim();
        number.parse().ok().map(to_base)
    });
    number
        .filter(|number: &f64| number.is_finite() && range.contains(number))
        .ok_or_else(|| (expected, text.to_owned()))
}

/// Cost of the communication library's collectives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    link: Link,
    ranks: f64,
    /// Rounds until a message of each rank has reached all ranks.
    rounds: f64,
}

impl Library {
    pub(crate) fn new(network: &NetworkModel, ranks: usize) -> Self {
        let link = network.link(ranks <= network.ranks_per_node());
        Self {
            link,
            ranks: ranks as f64,
            rounds: f64::from(ranks.max(1).next_power_of_two().ilog2()),
        }
    }

    /// Returns the share of a buffer that each rank receives from others.
    fn foreign(&self) -> f64 {
        (self.ranks - 1.0) / self.ranks
    }

    /// Returns the seconds of an all-reduce by recursive doubling, or by halving and doubling.
    pub(crate) fn reduce(&self, bytes: f64) -> f64 {
        let short = self.rounds * self.link.seconds(bytes);
        let long = 2.0 * (self.rounds * self.link.alpha + self.foreign() * self.link.beta * bytes);
        short.min(long)
    }

    /// Returns the seconds of a broadcast by a binomial tree, or by a scatter and a gather.
    pub(crate) fn broadcast(&self, bytes: f64) -> f64 {
        let short = self.rounds * self.link.seconds(bytes);
        let messages = self.rounds + self.ranks - 1.0;
        short.min(messages * self.link.alpha + 2.0 * self.foreign() * self.link.beta * bytes)
    }

    /// Returns the seconds of an all-gather of `bytes` in total by recursive doubling.
    pub(crate) fn gather(&self, bytes: f64) -> f64 {
        self.rounds * self.link.alpha + self.foreign() * self.link.beta * bytes
    }

    pub(crate) fn barrier(&self) -> f64 {
        self.gather(0.0)
    }
}

/// Token bucket of a link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tokens {
    limit_bytes: f64,
    s_per_byte: f64,
    bytes: f64,
    /// Time of `bytes`.
    counted_until: f64,
}

impl Tokens {
    /// Returns a full bucket.
    pub(crate) fn full(network: &NetworkModel) -> Self {
        let limit_bytes = network.burst_bytes;
        Self {
            limit_bytes,
            s_per_byte: network.link.beta,
            bytes: limit_bytes,
            counted_until: 0.0,
        }
    }

    /// Returns the seconds of a transfer that starts at `start` and takes `seconds` without bursts.
    pub(crate) fn send(&mut self, start: f64, bytes: f64, seconds: f64) -> f64 {
        if self.limit_bytes == 0.0 || self.s_per_byte == 0.0 {
            return seconds;
        }
        let idle_s = (start - self.counted_until).max(0.0);
        let available = self.limit_bytes.min(self.bytes + idle_s / self.s_per_byte);
        let passed = available.min(bytes).min(seconds / self.s_per_byte);
        let taken_s = seconds - passed * self.s_per_byte;
        self.bytes = available - passed;
        self.counted_until = start + taken_s;
        taken_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> NetworkModel {
        text.parse().unwrap()
    }

    #[test]
    fn presets_and_numbers_are_read_and_shown() {
        for text in [
            "1gbe@2:shared",
            "1gbe@2:shared:2us,10000MB/s",
            "ib-edr",
            "10gbe",
            "1gbe",
            "1gbe@8",
            "50us,125MB/s",
            "1gbe,256KB",
            "60us,113MB/s,256KB",
            "7us,25MB/s,262.144KB@2:shared",
            "7us,25MB/s,65.536KB,12.5%@2:shared",
            "1gbe,0KB,15%",
            "1gbe,0KB,15%,1.3x",
            "10gbe,64KB",
            "0.3us,12100MB/s",
            "10gbe@2:2us,10000MB/s",
        ] {
            assert_eq!(parse(text).to_string(), text);
            assert_eq!(parse(&parse(text).to_string()), parse(text));
        }
        assert_eq!(parse(" IB-EDR "), parse("1.5 us, 100 Gbit/s"));
        assert_eq!(parse("50us,113MB/s").to_string(), "1gbe");
        assert_eq!(parse("0.05ms,1.17GB/s").to_string(), "50us,1170MB/s");
        let network = parse("10gbe@8");
        assert_eq!(
            network.node,
            Some(Node {
                ranks: 8,
                link: Link::MEMORY,
                shared: false
            })
        );
        assert!(network.is_inside(0, 7) && !network.is_inside(7, 8));
    }

    #[test]
    fn other_texts_are_rejected_with_the_part_that_does_not_fit() {
        let refused = |text: &str| text.parse::<NetworkModel>().unwrap_err().to_string();
        assert_eq!(
            refused("token-ring"),
            "network \"token-ring\": expected ib-edr, 10gbe, 1gbe, or LATENCY,BANDWIDTH such as 50us,113MB/s, \
             and @RANKS after it for nodes, got \"token-ring\""
        );
        assert_eq!(
            refused("50,113MB/s"),
            "network \"50,113MB/s\": expected a latency such as 50us or 0.1ms, got \"50\""
        );
        let cases: [(&str, &[&str]); 6] = [
            (
                "a bandwidth such as",
                &[
                    "50us,113",
                    "50us,0MB/s",
                    "50us,-1MB/s",
                    "50us,infGB/s",
                    "50us,NaNGB/s",
                    "50us,",
                ],
            ),
            (
                "a burst such as",
                &[
                    "50us,113MB/s,",
                    "50us,113MB/s,-1KB",
                    "50us,113MB/s,256",
                    "1gbe,15%",
                ],
            ),
            (
                "the share of computation",
                &[
                    "50us,113MB/s,1KB,1KB",
                    "1gbe,0KB,100%",
                    "1gbe,0KB,-1%",
                    "1gbe,0KB,15",
                ],
            ),
            (
                "the slowdown of sums",
                &[
                    "1gbe,0KB,15%,15%",
                    "1gbe,0KB,15%,0.9x",
                    "1gbe,0KB,15%,1.3x,1x",
                ],
            ),
            (
                "a latency such as",
                &["-1us,1GB/s", "NaNus,1GB/s", "us,1GB/s", ",1GB/s"],
            ),
            (
                "a number of ranks per node",
                &["1gbe@", "1gbe@0", "1gbe@-1", "1gbe@many:1us,1GB/s"],
            ),
        ];
        for (expected, texts) in cases {
            for text in texts {
                let error = refused(text);
                assert!(
                    error.contains(&format!("expected {expected}")),
                    "{text}: {error}"
                );
            }
        }
        assert!(
            refused("1gbe@8:1us,1GB/s:shared")
                .contains("expected nothing after the memory of a node")
        );
        assert!(refused("1gbe@8:fast").ends_with("got \"fast\""));
    }

    #[test]
    fn a_burst_passes_at_once_and_the_next_one_after_a_pause() {
        let network: NetworkModel = "0us,1MB/s,100KB".parse().unwrap();
        let mut tokens = Tokens::full(&network);
        let near = |got: f64, expected: f64| {
            assert!(
                (got - expected).abs() < 1e-9,
                "expected {expected}, got {got}"
            )
        };
        near(tokens.send(0.0, 250e3, 0.25), 0.15);
        near(tokens.send(0.15, 100e3, 0.1), 0.1);
        // 50 ms of pause are 50 KB.
        near(tokens.send(0.3, 100e3, 0.1), 0.05);
        near(tokens.send(10.0, 40e3, 0.04), 0.0);
        let mut none = Tokens::full(&"0us,1MB/s".parse().unwrap());
        near(none.send(0.0, 250e3, 0.25), 0.25);
    }
}
