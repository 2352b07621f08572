//! Bursts that a rate limit lets pass at once.
//!
//! In: how long a link was idle, the bytes that it is to send. Out: the seconds that a burst saves.
//! Invariant: no more bytes pass at once than the bucket of tokens holds, and none twice.
//! Source: RFC 2697 (token buckets); Linux `tc-tbf(8)`.

use crate::network::NetworkModel;

/// The tokens of one link.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tokens {
    limit_bytes: f64,
    s_per_byte: f64,
    bytes: f64,
    /// Until when they are counted.
    counted_until: f64,
}

impl Tokens {
    /// Those of a link that was idle for long.
    pub(crate) fn full(network: &NetworkModel) -> Self {
        let limit_bytes = network.burst_bytes;
        Self {
            limit_bytes,
            s_per_byte: network.link.beta,
            bytes: limit_bytes,
            counted_until: 0.0,
        }
    }

    /// Takes the tokens of `bytes` that leave from `start` on, and would take `seconds`; how long they take.
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
