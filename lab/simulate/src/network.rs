//! What a message costs, between nodes and inside a node.
//!
//! In: a name such as `10gbe`, or latency and bandwidth. Out: seconds for a message of so many bytes.
//! Invariant: what [`NetworkModel`] shows as text reads as the same model, to nine digits.
//! Source: Hockney 1994, The communication challenge for MPP: a message of n bytes takes alpha + beta n.
//!
//! The presets: `ib-edr` is the nominal rate of four EDR lanes (InfiniBand Architecture Specification 1.3) with the latency that ping-pong
//! benchmarks of MPI find across one switch, 1 to 2 us. The rates of Ethernet are those of TCP: of the 1,538 bytes that a full frame
//! takes on the wire 1,460 are payload, so at most 1.19 GB/s and 119 MB/s, of which benchmarks of MPI reach 113 to 118 MB/s; latencies
//! of MPI over TCP are 15 to 35 us with tuned interrupts and above 50 us without. All are starting points: measure your own.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::SimulationError;

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Seconds a message, however short.
    pub alpha: f64,
    /// Seconds a byte.
    pub beta: f64,
}

/// The ranks of a node and the memory between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Node {
    /// Ranks a node, at least 1: ranks `0..ranks` run on the first node, and so on.
    pub ranks: usize,
    /// For messages between ranks of one node.
    pub link: Link,
    /// Whether ranks of one node reduce in memory that they share, as processes do under MPI, instead of by messages.
    pub shared: bool,
}

/// A network in which every rank has one link to the others and, inside its node, a second one.
///
/// Each link carries one message after the other in each direction; links do not slow each other down, so the switch is perfect, and
/// ranks of one node have a card each.
///
/// # Text
/// `ib-edr` (1.5 us, 100 Gbit/s), `10gbe` (25 us, 1.17 GB/s), `1gbe` (50 us, 113 MB/s), or `LATENCY,BANDWIDTH` such as `50us,113MB/s`:
/// the latency in `us` or `ms`, the bandwidth in `MB/s`, `GB/s` (10^6 and 10^9 bytes) or `Gbit/s` (10^9 bits), and after another comma,
/// where a limit lets bursts pass at once, their length in `KB` or `MB`: `50us,113MB/s,256KB`, and after one more, where messages
/// slow computing down, by how much: `50us,113MB/s,256KB,15%` or `1gbe,0KB,15%`, and after one more how many times as long sums take
/// beside computing: `1gbe,0KB,15%,1.3x`. With `@RANKS` after it,
/// so many ranks run on each node. `:shared` after that lets them reduce in [shared](Node::shared) memory, and `:LATENCY,BANDWIDTH` at
/// the end is the memory between them, 1 us and 5 GB/s without: `10gbe@8`, `ib-edr@4:2us,10GB/s`, `1gbe@8:shared:2us,10GB/s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NetworkModel {
    /// For messages between nodes.
    pub link: Link,
    /// The nodes; without, each rank has its own.
    pub node: Option<Node>,
    /// Bytes that pass between nodes at once after a pause, before the bandwidth counts, as through a bucket of tokens; 0 for none.
    pub burst_bytes: f64,
    /// What messages between nodes take from a rank's computing while they are under way, as a share of it from 0 to below 1: more than 0
    /// where the thread that sends them, and the kernel below it, have no core of their own.
    pub computing_share: f64,
    /// How many times as long a sum between nodes takes while the ranks compute, at least 1.
    pub sum_slowdown: f64,
}

/// A text that is no network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("network \"{text}\": expected {expected}, got \"{got}\"")]
pub struct NetworkError {
    /// The whole text.
    pub text: String,
    /// What should stand there.
    pub expected: &'static str,
    /// The part that does not fit.
    pub got: String,
}

const PRESETS: [(&str, Link); 3] = [
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
    /// Messages inside a node, where nothing else is known: a copy into memory and one out of it.
    pub const MEMORY: Self = Self {
        alpha: 1e-6,
        beta: 1.0 / 5e9,
    };

    /// A link of `alpha` seconds a message and `bandwidth` bytes a second.
    pub fn new(alpha: f64, bandwidth: f64) -> Self {
        Self {
            alpha,
            beta: bandwidth.recip(),
        }
    }

    /// How long a message of `bytes` keeps the link busy, in seconds.
    pub fn seconds(&self, bytes: f64) -> f64 {
        self.alpha + self.beta * bytes
    }
}

impl NetworkModel {
    /// A network of such links, with one rank a node.
    pub const fn new(link: Link) -> Self {
        Self {
            link,
            node: None,
            burst_bytes: 0.0,
            computing_share: 0.0,
            sum_slowdown: 1.0,
        }
    }

    /// This network with `ranks` ranks on each node.
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

    /// How long something of `seconds` between nodes takes that is slower by `slowdown` beside a computation with `left_s` to go, and what
    /// that loses; what is left when the computation has ended is as fast as alone.
    pub(crate) fn beside(&self, left_s: f64, seconds: f64, slowdown: f64) -> (f64, f64) {
        let beside_s = (seconds * slowdown).min(left_s.max(0.0) / (1.0 - self.computing_share));
        (
            beside_s + seconds - beside_s / slowdown,
            beside_s * self.computing_share,
        )
    }

    /// This network where the ranks of a node, if there are nodes, reduce in memory that they share.
    pub fn with_shared_memory(self) -> Self {
        Self {
            node: self.node.map(|node| Node {
                shared: true,
                ..node
            }),
            ..self
        }
    }

    /// Ranks on each node, at least 1.
    pub fn ranks_per_node(&self) -> usize {
        self.node.map_or(1, |node| node.ranks.max(1))
    }

    pub(crate) fn check(&self) -> Result<(), SimulationError> {
        let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
        let links = [Some(self.link), self.node.map(|node| node.link)];
        if !is_time(self.burst_bytes) {
            return Err(SimulationError::Burst {
                bytes: self.burst_bytes,
            });
        }
        if !(0.0..1.0).contains(&self.computing_share) {
            return Err(SimulationError::ComputingShare {
                share: self.computing_share,
            });
        }
        if !(self.sum_slowdown >= 1.0 && self.sum_slowdown.is_finite()) {
            return Err(SimulationError::SumSlowdown {
                times: self.sum_slowdown,
            });
        }
        match links
            .into_iter()
            .flatten()
            .find(|link| !(is_time(link.alpha) && is_time(link.beta)))
        {
            None => Ok(()),
            Some(link) => Err(SimulationError::Network { link }),
        }
    }

    /// Whether two ranks run on one node.
    pub(crate) fn is_inside(&self, rank: usize, other: usize) -> bool {
        rank / self.ranks_per_node() == other / self.ranks_per_node()
    }

    /// The link inside a node, or between nodes.
    pub(crate) fn link(&self, inside: bool) -> Link {
        self.node
            .filter(|_| inside)
            .map_or(self.link, |node| node.link)
    }
}

/// Nine digits hide that seconds a byte are rounded.
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

impl FromStr for NetworkModel {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let refuse = |(expected, got): Refusal| NetworkError {
            text: text.to_owned(),
            expected,
            got,
        };
        let (network, node) = text
            .split_once('@')
            .map_or((text, None), |(network, node)| (network, Some(node)));
        let is_preset = |text: &str| {
            PRESETS
                .iter()
                .any(|(name, _)| text.trim().eq_ignore_ascii_case(name))
        };
        let num_parts = if network.split(',').next().is_some_and(is_preset) {
            1
        } else {
            2
        };
        let (network, further) = match network.match_indices(',').nth(num_parts - 1) {
            None => (network, None),
            Some((comma, _)) => (&network[..comma], Some(&network[comma + 1..])),
        };
        let mut further = further
            .map(|text| text.splitn(3, ','))
            .into_iter()
            .flatten();
        let (burst, share, slowdown) = (further.next(), further.next(), further.next());
        let preset = PRESETS
            .iter()
            .find(|(name, _)| network.trim().eq_ignore_ascii_case(name));
        let link = match preset {
            Some((_, link)) => *link,
            None => link(network).map_err(refuse)?,
        };
        let burst = burst.map(|text| {
            let burst =
                quantity(text, &[("KB", 1e3), ("MB", 1e6)]).map(|(number, unit)| number * unit);
            burst
                .filter(|&bytes| bytes >= 0.0)
                .ok_or_else(|| ("the length of bursts such as 256KB", text.to_owned()))
        });
        let burst_bytes = burst.transpose().map_err(refuse)?.unwrap_or(0.0);
        let share = share.map(|text| {
            let share = quantity(text, &[("%", 100.0)]).map(|(number, whole)| number / whole);
            let expected =
                "the share of computing that messages take, from 0% to below 100%, such as 15%";
            share
                .filter(|share| (0.0..1.0).contains(share))
                .ok_or_else(|| (expected, text.to_owned()))
        });
        let computing_share = share.transpose().map_err(refuse)?.unwrap_or(0.0);
        let slowdown = slowdown.map(|text| {
            let times = quantity(text, &[("x", 1.0)]).map(|(number, _)| number);
            let expected =
                "how many times as long sums take beside computing, from 1x, such as 1.3x";
            times
                .filter(|times| *times >= 1.0)
                .ok_or_else(|| (expected, text.to_owned()))
        });
        let sum_slowdown = slowdown.transpose().map_err(refuse)?.unwrap_or(1.0);
        let node = node.map(self::node);
        Ok(Self {
            link,
            node: node.transpose().map_err(refuse)?,
            burst_bytes,
            computing_share,
            sum_slowdown,
        })
    }
}

/// What was expected, and what was there.
type Refusal = (&'static str, String);

/// Reads `LATENCY,BANDWIDTH`.
fn link(text: &str) -> Result<Link, Refusal> {
    let (latency, bandwidth) = text.split_once(',').ok_or_else(|| {
        (
            "ib-edr, 10gbe, 1gbe, or LATENCY,BANDWIDTH such as 50us,113MB/s, and @RANKS after it for nodes",
            text.to_owned(),
        )
    })?;
    // Quotients, so that 50us is the number 50e-6.
    let alpha = quantity(latency, &[("us", 1e6), ("ms", 1e3)])
        .map(|(number, per_second)| number / per_second);
    let rate = quantity(
        bandwidth,
        &[("MB/s", 1e6), ("GB/s", 1e9), ("Gbit/s", 1e9 / 8.0)],
    )
    .map(|(number, unit)| number * unit);
    let alpha = alpha.filter(|&alpha| alpha >= 0.0);
    let rate = rate.filter(|&rate| rate > 0.0);
    let alpha = alpha.ok_or_else(|| ("a latency such as 50us or 0.1ms", latency.to_owned()))?;
    let rate = rate.ok_or_else(|| {
        (
            "a bandwidth such as 113MB/s, 1.2GB/s or 100Gbit/s",
            bandwidth.to_owned(),
        )
    })?;
    Ok(Link::new(alpha, rate))
}

/// Reads `RANKS`, `RANKS:shared`, and either with `:LATENCY,BANDWIDTH`.
fn node(text: &str) -> Result<Node, Refusal> {
    let mut parts = text.split(':').peekable();
    let ranks = parts.next().unwrap_or_default();
    let number = ranks.trim().parse().ok().filter(|&ranks| ranks > 0);
    let ranks = number.ok_or_else(|| {
        (
            "a number of ranks a node, at least 1, after @",
            ranks.to_owned(),
        )
    })?;
    let shared = parts.next_if(|part| part.trim() == "shared").is_some();
    let link = parts.next().map_or(Ok(Link::MEMORY), link)?;
    let more = parts
        .next()
        .map(|more| Err(("nothing after the memory of a node", more.to_owned())));
    more.unwrap_or(Ok(Node {
        ranks,
        link,
        shared,
    }))
}

/// A finite number before one of the units, and what stands beside that unit.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<(f64, f64)> {
    let (number, unit) = units
        .iter()
        .find_map(|&(name, unit)| Some((text.trim().strip_suffix(name)?, unit)))?;
    let number = number.trim().parse::<f64>().ok()?;
    number.is_finite().then_some((number, unit))
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
    fn a_text_that_is_no_network_is_refused_with_the_part_that_does_not_fit() {
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
        for text in [
            "50us,113",
            "50us,0MB/s",
            "50us,-1MB/s",
            "50us,infGB/s",
            "50us,NaNGB/s",
            "50us,",
        ] {
            assert!(
                refused(text).contains("expected a bandwidth such as"),
                "{text}"
            );
        }
        for text in [
            "50us,113MB/s,",
            "50us,113MB/s,-1KB",
            "50us,113MB/s,256",
            "1gbe,15%",
        ] {
            assert!(
                refused(text).contains("expected the length of bursts"),
                "{text}"
            );
        }
        for text in [
            "50us,113MB/s,1KB,1KB",
            "1gbe,0KB,100%",
            "1gbe,0KB,-1%",
            "1gbe,0KB,15",
        ] {
            assert!(
                refused(text).contains("expected the share of computing"),
                "{text}"
            );
        }
        for text in [
            "1gbe,0KB,15%,15%",
            "1gbe,0KB,15%,0.9x",
            "1gbe,0KB,15%,1.3x,1x",
        ] {
            assert!(
                refused(text).contains("expected how many times as long"),
                "{text}"
            );
        }
        for text in ["-1us,1GB/s", "NaNus,1GB/s", "us,1GB/s", ",1GB/s"] {
            assert!(
                refused(text).contains("expected a latency such as"),
                "{text}"
            );
        }
        for text in ["1gbe@", "1gbe@0", "1gbe@-1", "1gbe@many:1us,1GB/s"] {
            assert!(
                refused(text).contains("expected a number of ranks a node"),
                "{text}"
            );
        }
        assert!(
            refused("1gbe@8:1us,1GB/s:shared")
                .contains("expected nothing after the memory of a node")
        );
        assert!(refused("1gbe@8:fast").ends_with("got \"fast\""));
    }
}
