//! Messages between workers and servers.
//!
//! In, out: bytes, little-endian. Invariant: the first byte of a message is its kind.

use crate::replica::{bytes_to_floats, floats_to_bytes};

/// Tag of workers' messages.
pub(super) const TO_SERVER: u16 = 1;

/// Tag of servers' messages.
pub(super) const TO_WORKER: u16 = 2;

/// A request of a worker.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Request {
    /// Update a bucket and send its parameters. An empty gradient means no samples.
    Push {
        bucket: usize,
        learning_rate: f64,
        gradient: Vec<f32>,
    },
    /// Send a bucket's parameters and optimizer state.
    Fetch { bucket: usize },
    /// Replace a bucket's parameters and optimizer state.
    Restore {
        bucket: usize,
        parameters: Vec<f32>,
        velocities: Vec<f32>,
    },
    /// Send the staleness histogram.
    Histogram,
    /// Note that this worker sends no more requests.
    Leave,
}

impl Request {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let head = |kind: u8, bucket: usize| {
            let mut bytes = vec![kind];
            bytes.extend((bucket as u64).to_le_bytes());
            bytes
        };
        match self {
            Self::Push {
                bucket,
                learning_rate,
                gradient,
            } => {
                let mut bytes = head(0, *bucket);
                bytes.extend(learning_rate.to_le_bytes());
                bytes.extend(floats_to_bytes(gradient));
                bytes
            }
            Self::Fetch { bucket } => head(1, *bucket),
            Self::Restore {
                bucket,
                parameters,
                velocities,
            } => {
                let mut bytes = head(2, *bucket);
                bytes.extend(floats_to_bytes(parameters));
                bytes.extend(floats_to_bytes(velocities));
                bytes
            }
            Self::Histogram => head(3, 0),
            Self::Leave => head(4, 0),
        }
    }

    /// # Panics
    /// Panics if `bytes` are not the result of [`to_bytes`](Self::to_bytes). All ranks run the same
    /// program.
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let (head, rest) = bytes.split_at(9);
        let bucket = u64::from_le_bytes(std::array::from_fn(|index| head[index + 1])) as usize;
        match head[0] {
            0 => {
                let (rate, gradient) = rest.split_at(8);
                let learning_rate = f64::from_le_bytes(std::array::from_fn(|index| rate[index]));
                Self::Push {
                    bucket,
                    learning_rate,
                    gradient: bytes_to_floats(gradient),
                }
            }
            1 => Self::Fetch { bucket },
            2 => {
                let (parameters, velocities) = rest.split_at(rest.len() / 2);
                let parameters = bytes_to_floats(parameters);
                let velocities = bytes_to_floats(velocities);
                Self::Restore {
                    bucket,
                    parameters,
                    velocities,
                }
            }
            3 => Self::Histogram,
            4 => Self::Leave,
            kind => panic!("parameter server: expected a request of kind 0 to 4, got {kind}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_survives_its_bytes() {
        let requests = [
            Request::Push {
                bucket: 3,
                learning_rate: 0.1,
                gradient: vec![1.5, -2.0, f32::MIN_POSITIVE],
            },
            Request::Push {
                bucket: 0,
                learning_rate: 0.0,
                gradient: Vec::new(),
            },
            Request::Fetch { bucket: 70_000 },
            Request::Restore {
                bucket: 1,
                parameters: vec![1.0, 2.0],
                velocities: vec![3.0, 4.0],
            },
            Request::Histogram,
            Request::Leave,
        ];
        for request in requests {
            assert_eq!(Request::from_bytes(&request.to_bytes()), request);
        }
    }
}
