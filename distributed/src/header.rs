//! Agreement of all ranks on a step before the sum of its gradients.
//!
//! In: position, plan, sample count, finiteness and stop request of every rank. Out: one global
//! status, the same on all ranks.
//! Invariant: either every rank takes a step or none does. All ranks get the same stop or error.

use crate::{CollectiveError, Communicator, ROOT, replica::ParameterLayout};

/// Status of one rank after the loss of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepHeader {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Index of the optimizer update, from 0 over the whole run.
    pub step: u64,
    /// Digest of [`BucketPlan::hash`](crate::gradients::BucketPlan::hash).
    pub plan_hash: u64,
    /// True if this rank requests the run's end after this step.
    pub stop: bool,
    /// Number of samples of this rank.
    pub num_samples: u64,
    /// True if the loss has no NaN and no infinity.
    pub finite: bool,
}

impl StepHeader {
    /// Length of a header in bytes.
    pub const NUM_BYTES: usize = 34;

    /// Returns the header as little-endian bytes.
    pub fn to_bytes(&self) -> [u8; Self::NUM_BYTES] {
        let mut bytes = [0; Self::NUM_BYTES];
        for (slot, number) in [self.epoch, self.step, self.plan_hash, self.num_samples]
            .into_iter()
            .enumerate()
        {
            bytes[slot * 8..][..8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[32] = self.stop.into();
        bytes[33] = self.finite.into();
        bytes
    }

    /// Returns the header in `bytes`.
    pub fn from_bytes(bytes: &[u8; Self::NUM_BYTES]) -> Self {
        let number =
            |slot: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[slot * 8 + index]));
        Self {
            epoch: number(0),
            step: number(1),
            plan_hash: number(2),
            num_samples: number(3),
            stop: bytes[32] != 0,
            finite: bytes[33] != 0,
        }
    }
}

/// The result of the agreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalStepStatus {
    /// True if any rank requests the run's end after this step.
    pub stop: bool,
    /// Number of samples of the step over all ranks.
    pub num_samples: u64,
}

/// Compares the headers of all ranks.
///
/// # Errors
/// Returns an error if epoch, step or plan differ. Otherwise returns [`CollectiveError::NonFinite`]
/// if a rank has a NaN or an infinity. All ranks return the same error.
///
/// # Collective
/// Must be called by all ranks.
pub fn agree(
    communicator: &dyn Communicator,
    header: &StepHeader,
) -> Result<GlobalStepStatus, CollectiveError> {
    global_status(&parsed(&communicator.all_gather(&header.to_bytes())?)?)
}

/// Parses the headers. Rejects ranks at different steps or with different plans.
pub(crate) fn parsed(gathered: &[Vec<u8>]) -> Result<Vec<StepHeader>, CollectiveError> {
    let mut headers = Vec::with_capacity(gathered.len());
    for (rank, bytes) in gathered.iter().enumerate() {
        let len = StepHeader::NUM_BYTES;
        let header = bytes.as_slice().try_into().map(StepHeader::from_bytes);
        headers.push(
            header.map_err(|_| CollectiveError::lengths("step header", rank, len, bytes.len()))?,
        );
    }
    let root = headers[ROOT];
    let step = root.step;
    for (rank, header) in headers.iter().enumerate() {
        let pairs = [
            // Messages count from 1.
            (
                "epoch",
                root.epoch.saturating_add(1),
                header.epoch.saturating_add(1),
            ),
            (
                "step",
                root.step.saturating_add(1),
                header.step.saturating_add(1),
            ),
            ("bucket plan hash", root.plan_hash, header.plan_hash),
        ];
        for (what, expected, got) in pairs {
            if expected != got {
                return Err(CollectiveError::Failed(format!(
                    "step {}: ranks diverged: {what} is {got} on rank {rank}, expected {expected} as on rank {ROOT}",
                    step.saturating_add(1)
                )));
            }
        }
    }
    Ok(headers)
}

/// Returns the status that follows from the headers of all ranks.
pub(crate) fn global_status(headers: &[StepHeader]) -> Result<GlobalStepStatus, CollectiveError> {
    let ranks: Vec<usize> = (0..headers.len())
        .filter(|&rank| !headers[rank].finite)
        .collect();
    if !ranks.is_empty() {
        let step = headers[ROOT].step;
        return Err(CollectiveError::NonFinite {
            step,
            ranks,
            parameter: None,
            value: f32::NAN,
        });
    }
    Ok(GlobalStepStatus {
        stop: wants_stop(headers),
        num_samples: headers.iter().map(|header| header.num_samples).sum(),
    })
}

/// Returns true if any rank requests the run's end, even if the step fails.
pub(crate) fn wants_stop(headers: &[StepHeader]) -> bool {
    headers.iter().any(|header| header.stop)
}

/// The value of a rank that explains a sum which is not finite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Largest {
    /// Index in the layout, or [`Largest::LOSS`].
    pub(crate) parameter: u32,
    pub(crate) value: f32,
}

impl Largest {
    /// Stands for the loss in place of a parameter.
    const LOSS: u32 = u32::MAX;
}

/// Returns the error that names the ranks and the parameter of a non-finite gradient, or the ranks
/// of a non-finite loss.
///
/// # Collective
/// Must be called by all ranks.
pub(crate) fn diagnose(
    communicator: &dyn Communicator,
    step: u64,
    own: Largest,
    layout: &ParameterLayout,
) -> Result<CollectiveError, CollectiveError> {
    let mut bytes = own.parameter.to_le_bytes().to_vec();
    bytes.extend(own.value.to_le_bytes());
    let all: Vec<Largest> = communicator
        .all_gather(&bytes)?
        .iter()
        .map(|bytes| {
            let word = |start: usize| std::array::from_fn(|index| bytes[start + index]);
            Largest {
                parameter: u32::from_le_bytes(word(0)),
                value: f32::from_le_bytes(word(4)),
            }
        })
        .collect();
    let ranks_of = |is_cause: fn(&Largest) -> bool| -> Vec<usize> {
        (0..all.len())
            .filter(|&rank| is_cause(&all[rank]))
            .collect()
    };
    // A loss that is not finite causes such gradients.
    let causes: [fn(&Largest) -> bool; 3] = [
        |own| own.parameter == Largest::LOSS,
        |own| !own.value.is_finite(),
        // Finite values overflowed in the sum.
        |_| true,
    ];
    let mut ranks = causes.into_iter().map(ranks_of);
    let ranks = ranks.find(|ranks| !ranks.is_empty()).unwrap_or_default();
    let Largest { parameter, value } = all[ranks[0]];
    let entry = layout.entries().get(parameter as usize);
    Ok(CollectiveError::NonFinite {
        step,
        ranks,
        parameter: entry.map(|entry| entry.path.clone()),
        value,
    })
}

/// Returns the error that names the ranks of a non-finite loss, or the ranks and the parameter of a
/// non-finite gradient. `loss` and `gradients` are this rank's, flat in the order of `layout`.
///
/// # Errors
/// Returns an error if the job ends.
///
/// # Panics
/// Panics if `gradients` and the layout differ in length.
///
/// # Collective
/// Must be called by all ranks.
pub fn locate_non_finite(
    communicator: &dyn Communicator,
    step: u64,
    loss: f32,
    gradients: &[f32],
    layout: &ParameterLayout,
) -> Result<CollectiveError, CollectiveError> {
    assert_eq!(
        gradients.len(),
        layout.num_elements(),
        "gradients and layout differ in length"
    );
    let of_entries = layout.entries().iter().zip(0..);
    let largest = of_entries
        .map(|(entry, index)| (largest_magnitude_bits(&gradients[entry.range()]), index))
        .max();
    let own = match largest {
        Some((bits, parameter)) if loss.is_finite() => Largest {
            parameter,
            value: f32::from_bits(bits),
        },
        _ => Largest {
            parameter: Largest::LOSS,
            value: loss,
        },
    };
    diagnose(communicator, step, own, layout)
}

/// Returns the bits of the largest magnitude. Without the sign bit, the bits of floats have the
/// order of their magnitudes. NaN is above infinity.
pub(crate) fn largest_magnitude_bits(values: &[f32]) -> u32 {
    let bits = values.iter().map(|&value| magnitude_bits(value));
    bits.max().unwrap_or(0)
}

pub(crate) fn magnitude_bits(value: f32) -> u32 {
    value.to_bits() & (u32::MAX >> 1)
}

/// Returns true if no value is NaN or infinite. Checking all values is faster than stopping at the
/// first.
pub(crate) fn are_finite(values: &[f32]) -> bool {
    largest_magnitude_bits(values) < f32::INFINITY.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_ranks;

    #[test]
    fn one_value_that_is_not_finite_is_found_at_any_place() {
        for wrong in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in 0..40 {
                let mut values = vec![f32::MAX, -f32::MAX, 0.0, -0.0, f32::MIN_POSITIVE / 2.0];
                values.resize(40, -1.0);
                assert!(are_finite(&values));
                values[place] = wrong;
                assert!(!are_finite(&values), "{wrong} at {place}");
            }
        }
        assert!(are_finite(&[]));
    }

    fn header() -> StepHeader {
        StepHeader {
            epoch: 2,
            step: 40,
            plan_hash: u64::MAX - 1,
            stop: false,
            num_samples: 16,
            finite: true,
        }
    }

    /// Returns the agreement on three ranks, of which rank 1 has `other`.
    fn agree_with(other: StepHeader) -> Vec<Result<GlobalStepStatus, CollectiveError>> {
        run_ranks(3, |communicator| {
            let mine = if communicator.rank() == 1 {
                other
            } else {
                header()
            };
            agree(&communicator, &mine)
        })
    }

    #[test]
    fn a_header_survives_its_bytes() {
        let header = StepHeader {
            stop: true,
            finite: false,
            ..header()
        };
        assert_eq!(StepHeader::from_bytes(&header.to_bytes()), header);
    }

    #[test]
    fn samples_are_summed_and_one_rank_stops_all() {
        for agreed in agree_with(StepHeader {
            stop: true,
            num_samples: 3,
            ..header()
        }) {
            assert_eq!(
                agreed,
                Ok(GlobalStepStatus {
                    stop: true,
                    num_samples: 35
                })
            );
        }
        assert!(
            agree_with(header())
                .iter()
                .all(|agreed| !agreed.as_ref().unwrap().stop)
        );
    }

    #[test]
    fn a_rank_at_another_point_is_named_alike_on_all_ranks() {
        let cases = [
            (
                StepHeader {
                    epoch: 3,
                    ..header()
                },
                "epoch is 4 on rank 1, expected 3 as on rank 0",
            ),
            (
                StepHeader {
                    step: 41,
                    ..header()
                },
                "step is 42 on rank 1, expected 41 as on rank 0",
            ),
            (
                StepHeader {
                    plan_hash: 5,
                    ..header()
                },
                "bucket plan hash is 5 on rank 1, expected 18446744073709551614 as on rank 0",
            ),
        ];
        for (other, expected) in cases {
            for agreed in agree_with(other) {
                assert_eq!(
                    agreed.unwrap_err().to_string(),
                    format!("step 41: ranks diverged: {expected}")
                );
            }
        }
    }

    #[test]
    fn a_non_finite_loss_stops_all_ranks_naming_step_and_rank() {
        for agreed in agree_with(StepHeader {
            finite: false,
            ..header()
        }) {
            assert_eq!(
                agreed.unwrap_err().to_string(),
                "step 41: non-finite loss or gradient on rank 1 (loss is NaN there). Lower the learning rate, or check the data."
            );
        }
    }

    #[test]
    fn the_ranks_with_non_finite_gradients_are_named_or_all_where_only_their_sum_overflowed() {
        let layout = ParameterLayout::from_shapes([
            ("fc.weight".to_owned(), vec![2]),
            ("fc.bias".to_owned(), vec![3]),
        ]);
        for (value, expected) in [
            (
                f32::INFINITY,
                "on rank 1 (the largest gradient, in fc.bias, is inf there)",
            ),
            (3e38, "on ranks 0, 1"),
        ] {
            let errors = run_ranks(2, |communicator| {
                let own = if communicator.rank() == 1 {
                    value
                } else {
                    3e38
                };
                diagnose(
                    &communicator,
                    7,
                    Largest {
                        parameter: 1,
                        value: own,
                    },
                    &layout,
                )
                .unwrap()
            });
            assert_eq!(errors[0], errors[1]);
            assert!(errors[0].to_string().contains(expected), "{}", errors[0]);
        }
    }

    #[test]
    fn a_rank_whose_loss_is_not_finite_is_named_before_those_whose_gradients_follow() {
        let layout = ParameterLayout::from_shapes([
            ("fc.weight".to_owned(), vec![2]),
            ("fc.bias".to_owned(), vec![1]),
        ]);
        for (loss, expected) in [
            (
                1.0,
                "on rank 0 (the largest gradient, in fc.bias, is inf there)",
            ),
            (f32::NAN, "on rank 2 (loss is NaN there)"),
        ] {
            let errors = run_ranks(3, |communicator| {
                let (loss, gradient) = match communicator.rank() {
                    0 => (1.0, f32::INFINITY),
                    1 => (1.0, 3.0),
                    _ => (loss, 2.0),
                };
                let gradients = [-4.0, 0.5, gradient];
                let error = locate_non_finite(&communicator, 7, loss, &gradients, &layout);
                error.unwrap().to_string()
            });
            assert!(errors.iter().all(|error| *error == errors[0]));
            assert!(errors[0].contains(expected), "{}", errors[0]);
        }
    }
}
