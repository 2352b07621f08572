//! The state of a reducer with compression: unchanged by a skipped step, and restorable.

use std::sync::Arc;

use super::noise;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;
use distributed::communicator::ThreadCommunicator;
use distributed::gradients::{
    CompressedReduction, GradientReducer, MicroStepConfig, ReducerConfig, ReductionState,
    StepHeader,
};
use distributed::{CollectiveError, Communicator, run_ranks};

const KINDS: [&str; 4] = ["bf16", "f16", "powersgd:2", "topk:10"];

/// One rank with a layer of 2,000 weights in one bucket and 50 biases in another.
struct Rank {
    layer: Linear,
    communicator: Arc<dyn Communicator>,
    reducer: GradientReducer,
}

impl Rank {
    fn new(communicator: ThreadCommunicator, kind: &str, warmup_steps: u64, overlap: bool) -> Self {
        let layer = LinearConfig::new(40, 50).init(&Device::flex().autodiff());
        Self::of(
            layer,
            Arc::new(communicator),
            kind,
            warmup_steps,
            ReducerConfig {
                bucket_cap_bytes: Some(1000),
                overlap,
                ..ReducerConfig::default()
            },
        )
    }

    fn of(
        layer: Linear,
        communicator: Arc<dyn Communicator>,
        kind: &str,
        warmup: u64,
        how: ReducerConfig,
    ) -> Self {
        let kind = kind.parse().unwrap();
        let reducer = GradientReducer::with_reduction(
            &layer,
            Arc::clone(&communicator),
            &how,
            |plans, own| {
                Ok(Box::new(CompressedReduction::new(
                    kind, warmup, plans, own,
                )?))
            },
        );
        Self {
            layer,
            communicator,
            reducer: reducer.unwrap(),
        }
    }

    /// Starts the same ranks again.
    fn again(self, kind: &str, warmup_steps: u64, bucket_cap_bytes: usize) -> Self {
        Self::of(
            self.layer,
            self.communicator,
            kind,
            warmup_steps,
            ReducerConfig {
                bucket_cap_bytes: Some(bucket_cap_bytes),
                overlap: false,
                ..ReducerConfig::default()
            },
        )
    }

    /// Returns the bits of a step's sums; `broken` has a bias on rank 1 that is not finite.
    fn step(&mut self, step: u64, broken: bool) -> Result<Vec<u32>, CollectiveError> {
        let plan_hash = self.reducer.plan().hash();
        self.reducer.post_header(StepHeader {
            epoch: 0,
            step,
            plan_hash,
            stop: false,
            num_samples: 1,
            finite: true,
        });
        self.reducer.begin_micro_step(MicroStepConfig {
            is_last: true,
            ..MicroStepConfig::default()
        });
        let collector = self.reducer.collector();
        let rank = self.communicator.rank();
        for (index, entry) in self.reducer.layout().entries().iter().enumerate().rev() {
            let mut gradient = noise(1000 * index + 10 * rank + step as usize, entry.len);
            if broken && rank == 1 && entry.path.ends_with("bias") {
                gradient[7] = f32::NAN;
            }
            collector.take(entry.id, &gradient);
        }
        self.reducer.finish()?;
        Ok(self
            .reducer
            .synced()
            .to_flat()
            .iter()
            .map(|value| value.to_bits())
            .collect())
    }

    fn state(&self) -> ReductionState {
        self.reducer.reduction_state().unwrap()
    }
}

#[test]
fn a_step_that_is_left_out_leaves_no_trace_in_its_finite_buckets_nor_in_the_broken_one() {
    for kind in KINDS {
        for overlap in [false, true] {
            let course = |is_tried: bool| {
                run_ranks(2, |communicator| {
                    let mut rank = Rank::new(communicator, kind, 0, overlap);
                    let mut bits = vec![rank.step(0, false).unwrap()];
                    let before = rank.state();
                    assert!(
                        before.residual.iter().any(|value| *value != 0.0),
                        "{kind}: nothing was kept back"
                    );
                    if is_tried {
                        let error = rank.step(1, true).unwrap_err();
                        assert!(
                            matches!(error, CollectiveError::NonFinite { .. }),
                            "{error}"
                        );
                        assert_eq!(rank.state(), before, "{kind}");
                    }
                    bits.extend((2..5).map(|step| rank.step(step, false).unwrap()));
                    bits
                })
            };
            assert_eq!(course(true), course(false), "{kind}, overlap {overlap}");
        }
    }
}

#[test]
fn ranks_with_a_restored_state_continue_with_the_same_bits() {
    for kind in KINDS {
        for (warmup_steps, num_steps) in [(0, 2), (3, 2), (2, 4)] {
            let same = run_ranks(2, |communicator| {
                let mut rank = Rank::new(communicator, kind, warmup_steps, false);
                (0..num_steps).for_each(|step| drop(rank.step(step, false).unwrap()));
                let state = rank.state();
                let rest = |rank: &mut Rank| {
                    (num_steps..7)
                        .map(|step| rank.step(step, false).unwrap())
                        .collect()
                };
                let expected: Vec<Vec<u32>> = rest(&mut rank);
                let mut next = rank.again(kind, warmup_steps, 1000);
                next.reducer.restore(num_steps, &state);
                let got: Vec<Vec<u32>> = rest(&mut next);
                got == expected
            });
            assert_eq!(
                same,
                [true, true],
                "{kind}, {warmup_steps} steps of warm-up, after {num_steps}"
            );
        }
    }
}

#[test]
fn a_saved_state_fits_other_buckets() {
    for kind in KINDS {
        run_ranks(2, |communicator| {
            let mut rank = Rank::new(communicator, kind, 0, false);
            (0..3).for_each(|step| drop(rank.step(step, false).unwrap()));
            let state = rank.state();
            let one_bucket = rank.again(kind, 0, 1 << 20);
            one_bucket.reducer.restore(3, &state);
            let got = one_bucket.state();
            assert_eq!(
                (got.residual, got.factors),
                (state.residual, state.factors),
                "{kind}"
            );
            assert_eq!(
                got.num_drawn,
                [state.num_drawn.iter().copied().max().unwrap()],
                "{kind}"
            );
        });
    }
}

#[test]
fn a_reduction_without_compression_has_no_state() {
    run_ranks(2, |communicator| {
        let mut rank = Rank::new(communicator, "none", 0, false);
        let sums = rank.step(0, false).unwrap();
        assert_eq!(rank.reducer.reduction_state(), None);
        rank.reducer.restore(1, &ReductionState::default());
        assert_eq!(rank.step(0, false).unwrap(), sums);
    });
}
