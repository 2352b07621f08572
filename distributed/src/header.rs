//! What all ranks must agree on before they add up a step's gradients.
//!
//! In: every rank's position, plan, sample count, finiteness and wish to stop. Out: one verdict, the same on all ranks.
//! Invariant: no rank leaves a step alone: a stop or an error is everybody's.

use crate::{CollectiveError, Communicator, ParameterLayout, ROOT};

/// Length of a header in bytes.
const NUM_BYTES: usize = 42;

/// One rank's account of the step it has computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepHeader {
    /// Pass over the train split, from 0.
    pub epoch: u64,
    /// Optimizer update, from 0 over the whole run.
    pub step: u64,
    /// [`BucketPlan::hash`](crate::BucketPlan::hash).
    pub plan_hash: u64,
    /// Whether this rank wants the run to end after this step.
    pub stop: bool,
    /// Samples in this rank's gradient.
    pub num_samples: u64,
    /// Whether loss and gradient are free of NaN and infinity.
    pub finite: bool,
    /// Largest magnitude in the gradient.
    pub largest: f32,
    /// Index in the layout of the parameter that has it.
    pub largest_parameter: u32,
}

impl StepHeader {
    /// The header as bytes, little endian.
    pub fn to_bytes(&self) -> [u8; NUM_BYTES] {
        let mut bytes = [0; NUM_BYTES];
        for (slot, number) in [self.epoch, self.step, self.plan_hash, self.num_samples].into_iter().enumerate() {
            bytes[slot * 8..][..8].copy_from_slice(&number.to_le_bytes());
        }
        bytes[32..36].copy_from_slice(&self.largest.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.largest_parameter.to_le_bytes());
        bytes[40] = self.stop.into();
        bytes[41] = self.finite.into();
        bytes
    }

    /// The header in `bytes`.
    pub fn from_bytes(bytes: &[u8; NUM_BYTES]) -> Self {
        let long = |slot: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[slot * 8 + index]));
        let short = |start: usize| std::array::from_fn(|index| bytes[start + index]);
        Self {
            epoch: long(0),
            step: long(1),
            plan_hash: long(2),
            num_samples: long(3),
            largest: f32::from_le_bytes(short(32)),
            largest_parameter: u32::from_le_bytes(short(36)),
            stop: bytes[40] != 0,
            finite: bytes[41] != 0,
        }
    }
}

/// What the ranks agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepAgreement {
    /// Whether any rank wants the run to end after this step.
    pub stop: bool,
    /// Samples of the step over all ranks.
    pub num_samples: u64,
}

/// Compares the headers of all ranks; to be called before the gradients are reduced.
///
/// # Errors
/// [`CollectiveError::RanksDiverged`] when epoch, step or plan differ, else [`CollectiveError::NonFinite`] when a rank met a NaN or
/// an infinity. All ranks return the same error.
///
/// # Collective
/// Must be called by all ranks.
pub fn agree(
    communicator: &dyn Communicator,
    header: &StepHeader,
    layout: &ParameterLayout,
) -> Result<StepAgreement, CollectiveError> {
    let gathered = communicator.all_gather(&header.to_bytes())?;
    let mut headers = Vec::with_capacity(gathered.len());
    for (rank, bytes) in gathered.iter().enumerate() {
        let bytes: &[u8; NUM_BYTES] = bytes.as_slice().try_into().map_err(|_| CollectiveError::LengthMismatch {
            collective: "step header",
            rank,
            expected: NUM_BYTES,
            got: bytes.len(),
        })?;
        headers.push(StepHeader::from_bytes(bytes));
    }
    verdict(&headers, layout)
}

/// The same verdict wherever it is drawn from the same headers.
fn verdict(headers: &[StepHeader], layout: &ParameterLayout) -> Result<StepAgreement, CollectiveError> {
    let root = &headers[ROOT];
    let step = root.step;
    for (rank, header) in headers.iter().enumerate() {
        let diverged = |what, expected: u64, got: u64| CollectiveError::RanksDiverged {
            step,
            rank,
            what,
            expected: expected.to_string(),
            got: got.to_string(),
        };
        if header.epoch != root.epoch {
            return Err(diverged("epoch", root.epoch, header.epoch));
        }
        if header.step != root.step {
            return Err(diverged("step", root.step, header.step));
        }
        if header.plan_hash != root.plan_hash {
            return Err(diverged("bucket plan hash", root.plan_hash, header.plan_hash));
        }
    }
    let ranks: Vec<usize> = (0..headers.len()).filter(|&rank| !headers[rank].finite).collect();
    if let Some(&first) = ranks.first() {
        let entry = layout.entries().get(headers[first].largest_parameter as usize);
        let parameter = entry.map_or_else(|| "no parameter".to_owned(), |entry| entry.path.clone());
        return Err(CollectiveError::NonFinite { step, ranks, parameter, value: headers[first].largest });
    }
    Ok(StepAgreement {
        stop: headers.iter().any(|header| header.stop),
        num_samples: headers.iter().map(|header| header.num_samples).sum(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_ranks;

    fn header() -> StepHeader {
        StepHeader {
            epoch: 2,
            step: 40,
            plan_hash: u64::MAX - 1,
            stop: false,
            num_samples: 16,
            finite: true,
            largest: 0.25,
            largest_parameter: 1,
        }
    }

    fn layout() -> ParameterLayout {
        ParameterLayout::from_shapes([("fc.weight".to_owned(), vec![2, 3]), ("fc.bias".to_owned(), vec![3])])
    }

    /// The agreement on three ranks where rank 1 has `other`.
    fn agree_with(other: StepHeader) -> Vec<Result<StepAgreement, CollectiveError>> {
        run_ranks(3, |communicator| {
            let mine = if communicator.rank() == 1 { other } else { header() };
            agree(&communicator, &mine, &layout())
        })
    }

    #[test]
    fn a_header_survives_its_bytes() {
        let header = StepHeader { stop: true, finite: false, largest: f32::INFINITY, ..header() };
        assert_eq!(StepHeader::from_bytes(&header.to_bytes()), header);
    }

    #[test]
    fn samples_are_summed_and_one_rank_stops_all() {
        for agreed in agree_with(StepHeader { stop: true, num_samples: 3, ..header() }) {
            assert_eq!(agreed, Ok(StepAgreement { stop: true, num_samples: 35 }));
        }
        assert!(agree_with(header()).iter().all(|agreed| !agreed.as_ref().unwrap().stop));
    }

    #[test]
    fn a_rank_at_another_point_is_named_alike_on_all_ranks() {
        let cases = [
            (StepHeader { epoch: 3, ..header() }, "epoch is 3 on rank 1, expected 2 as on rank 0"),
            (StepHeader { step: 41, ..header() }, "step is 41 on rank 1, expected 40 as on rank 0"),
            (
                StepHeader { plan_hash: 5, ..header() },
                "bucket plan hash is 5 on rank 1, expected 18446744073709551614 as on rank 0",
            ),
        ];
        for (other, expected) in cases {
            for agreed in agree_with(other) {
                assert_eq!(agreed.unwrap_err().to_string(), format!("step 40: ranks diverged: {expected}"));
            }
        }
    }

    #[test]
    fn a_non_finite_gradient_stops_all_ranks_naming_step_rank_and_parameter() {
        let other = StepHeader { finite: false, largest: f32::INFINITY, ..header() };
        for agreed in agree_with(other) {
            let expected = CollectiveError::NonFinite {
                step: 40,
                ranks: vec![1],
                parameter: "fc.bias".to_owned(),
                value: f32::INFINITY,
            };
            assert_eq!(agreed, Err(expected));
        }
    }
}
