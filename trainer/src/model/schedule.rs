//! The learning rate of every step, decided once.
//!
//! In: [`TrainConfig`] and the steps of an epoch. Out: a pure function of the step and, for
//! plateau, of the number of reductions, which a checkpoint has.
//! Invariant: a resumed run continues on the same course.
//! Source: warmup Goyal et al. 2017, 1706.02677, section 2.2; cosine Loshchilov and Hutter 2016,
//! 1608.03983, equation 5 with and without restarts; one-cycle Smith and Topin 2017, 1708.07120;
//! multistep He et al. 2015, 1512.03385, section 4.2; plateau and polynomial as PyTorch's
//! `ReduceLROnPlateau` and `PolynomialLR`.

use crate::config::{ScheduleChoice, TrainConfig};
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// One-cycle ends at this share of its first rate.
const ONE_CYCLE_FINAL_FACTOR: f64 = 1e-4;

/// The learning rate as a function of the step.
///
/// # Differs from PyTorch
/// One-cycle changes the learning rate but not the momentum (`OneCycleLR(cycle_momentum=False)`),
/// and reaches its end one step after the last. Plateau has no cooldown and no smallest rate. Rates
/// are set for every step, not for every epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct LearningRate {
    peak: f64,
    start_factor: f64,
    warmup_steps: u64,
    total_steps: u64,
    steps_per_epoch: u64,
    course: ScheduleChoice,
}

/// Position of a plateau schedule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plateau {
    /// Best figure that exceeded the one before by the threshold.
    pub best: Option<f64>,
    /// Evaluations since the best one or the last reduction.
    pub num_without_better: u64,
    /// Number of times that the rate was multiplied by gamma.
    pub num_reductions: u16,
}

impl LearningRate {
    /// Plans the learning rates of the run.
    ///
    /// # Panics
    /// If `steps_per_epoch` is zero.
    pub fn new(config: &TrainConfig, steps_per_epoch: u64) -> Self {
        assert!(
            steps_per_epoch > 0,
            "steps_per_epoch: expected at least 1, got 0"
        );
        let schedule = &config.schedule;
        let total_steps = schedule.planned_epochs().saturating_mul(steps_per_epoch);
        let warmup_steps = (schedule.warmup_epochs * steps_per_epoch as f64).round() as u64;
        Self {
            peak: config.peak_learning_rate(),
            start_factor: schedule.warmup_start_factor.unwrap_or(1.0),
            warmup_steps: warmup_steps.min(total_steps - 1),
            total_steps,
            steps_per_epoch,
            course: schedule.schedule.clone(),
        }
    }

    /// Returns the rate of `step`, counted from 0 over the whole run. Steps after the planned ones
    /// have the rate of the last planned step.
    ///
    /// Warmup starts at `warmup_start_factor` of the peak and rises linearly with the step. Goyal
    /// et al. start at 1/k for a batch k times the reference, which is `--warmup-start-factor` 1/k.
    /// The first step after warmup has the peak rate.
    pub fn at(&self, step: u64, plateau: &Plateau) -> f64 {
        match self.course {
            // Keep the last rate of a course that ends at zero, so that longer training still
            // updates.
            _ if self.course.depends_on_epochs() => self.planned(step.min(self.total_steps - 1)),
            ScheduleChoice::Plateau { gamma, .. } => {
                self.planned(step) * gamma.powi(i32::from(plateau.num_reductions))
            }
            _ => self.planned(step),
        }
    }

    /// Notes the figure of an evaluation. Returns true if it reduces the rate of a plateau
    /// schedule.
    pub fn note(&self, plateau: &mut Plateau, figure: f64, lower_is_better: bool) -> bool {
        let ScheduleChoice::Plateau {
            plateau_patience,
            plateau_threshold,
            ..
        } = self.course
        else {
            return false;
        };
        let is_better = |best: f64| match lower_is_better {
            true => figure < best * (1.0 - plateau_threshold),
            false => figure > best * (1.0 + plateau_threshold),
        };
        if figure.is_finite() && plateau.best.is_none_or(is_better) {
            plateau.best = Some(figure);
            plateau.num_without_better = 0;
        } else {
            plateau.num_without_better += 1;
        }
        let reduces = plateau.num_without_better > plateau_patience;
        if reduces {
            plateau.num_without_better = 0;
            plateau.num_reductions = plateau.num_reductions.saturating_add(1);
        }
        reduces
    }

    /// Returns the rate of the course, which ends one step after its last planned step.
    fn planned(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            let progress = step as f64 / self.warmup_steps as f64;
            let rise = match self.course {
                ScheduleChoice::OneCycle => 1.0 - half_cosine(progress),
                _ => progress,
            };
            return self.peak * (self.start_factor + (1.0 - self.start_factor) * rise);
        }
        let progress =
            (step - self.warmup_steps) as f64 / (self.total_steps - self.warmup_steps) as f64;
        match &self.course {
            ScheduleChoice::Constant | ScheduleChoice::Plateau { .. } => self.peak,
            ScheduleChoice::Multistep { milestones, gamma } => {
                let has_passed = |epoch: &&u64| step >= epoch.saturating_mul(self.steps_per_epoch);
                let num_passed = milestones.iter().filter(has_passed).count();
                self.peak * gamma.powi(num_passed as i32)
            }
            ScheduleChoice::Cosine => self.peak * half_cosine(progress),
            ScheduleChoice::CosineRestarts {
                restart_epochs,
                restart_factor,
            } => {
                let mut length = restart_epochs.saturating_mul(self.steps_per_epoch);
                let mut place = step - self.warmup_steps;
                if *restart_factor == 1 {
                    place %= length;
                }
                while place >= length {
                    place -= length;
                    length = length.saturating_mul(*restart_factor);
                }
                self.peak * half_cosine(place as f64 / length as f64)
            }
            ScheduleChoice::Polynomial { power } => self.peak * libm::pow(1.0 - progress, *power),
            ScheduleChoice::OneCycle => {
                let last = self.peak * self.start_factor * ONE_CYCLE_FINAL_FACTOR;
                last + (self.peak - last) * half_cosine(progress)
            }
        }
    }

    /// Returns the number of steps of the whole schedule.
    pub fn total_steps(&self) -> u64 {
        self.total_steps
    }
}

/// Returns half a cosine, from 1 at 0 down to 0 at 1.
fn half_cosine(progress: f64) -> f64 {
    0.5 * (1.0 + libm::cos(PI * progress))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ScheduleKind;
    use crate::config::cli::{ScheduleArgs, TrainArgs};
    use proptest::prelude::*;

    fn planned(
        kind: ScheduleKind,
        epochs: u64,
        warmup_epochs: f64,
        steps_per_epoch: u64,
    ) -> LearningRate {
        let mut args = TrainArgs::default();
        args.optimizer.learning_rate = Some(0.4);
        args.schedule.schedule = Some(kind);
        args.schedule.epochs = Some(epochs);
        args.schedule.warmup_epochs = Some(warmup_epochs);
        LearningRate::new(
            &TrainConfig::resolve(&args, 1).expect("a valid schedule"),
            steps_per_epoch,
        )
    }

    /// Returns the rate of a schedule without a plateau.
    fn rate(schedule: &LearningRate, step: u64) -> f64 {
        schedule.at(step, &Plateau::default())
    }

    fn any_schedule() -> impl Strategy<Value = LearningRate> {
        let kind = prop_oneof![
            Just(ScheduleKind::Constant),
            Just(ScheduleKind::Multistep),
            Just(ScheduleKind::Cosine),
            Just(ScheduleKind::OneCycle),
            Just(ScheduleKind::Polynomial),
            Just(ScheduleKind::CosineRestarts),
            Just(ScheduleKind::Plateau),
        ];
        (kind, 4_u64..30, 0.01_f64..0.9, 1_u64..40).prop_map(|(kind, epochs, warmup, steps)| {
            planned(kind, epochs, warmup * epochs as f64, steps)
        })
    }

    proptest! {
        #[test]
        fn every_rate_is_above_zero_and_at_most_the_peak(schedule in any_schedule()) {
            for step in 0..schedule.total_steps() {
                let rate = rate(&schedule, step);
                prop_assert!(rate > 0.0 && rate <= 0.4 * (1.0 + 1e-12), "step {step}: {rate}");
            }
        }

        #[test]
        fn rates_rise_to_the_peak_in_warmup_and_never_rise_after_it(schedule in any_schedule()) {
            let warmup = schedule.warmup_steps;
            for step in 1..=warmup {
                // If a milestone lies inside the warmup, the first step after warmup is below the
                // peak.
                if step < warmup || schedule.course.kind() != ScheduleKind::Multistep {
                    prop_assert!(rate(&schedule, step) > rate(&schedule, step - 1));
                }
            }
            let restarts = schedule.course.kind() == ScheduleKind::CosineRestarts;
            for step in warmup + 1..if restarts { 0 } else { schedule.total_steps() + 5 } {
                prop_assert!(rate(&schedule, step) <= rate(&schedule, step - 1));
            }
            if schedule.course.kind() != ScheduleKind::Multistep {
                prop_assert_eq!(rate(&schedule, warmup), 0.4);
            }
        }

        #[test]
        fn warmup_starts_at_the_start_factor(schedule in any_schedule()) {
            if schedule.warmup_steps > 0 {
                prop_assert!((rate(&schedule, 0) - 0.4 * schedule.start_factor).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn cosine_is_half_the_peak_in_the_middle_and_zero_one_step_after_the_last_whose_rate_stays() {
        let schedule = planned(ScheduleKind::Cosine, 10, 0.0, 10);
        assert_eq!(rate(&schedule, 0), 0.4);
        assert!((rate(&schedule, 50) - 0.2).abs() < 1e-12);
        assert_eq!(schedule.planned(100), 0.0);
        assert!(rate(&schedule, 99) > 0.0);
        assert_eq!(
            (rate(&schedule, 100), rate(&schedule, 1000)),
            (rate(&schedule, 99), rate(&schedule, 99))
        );
    }

    #[test]
    fn multistep_multiplies_by_gamma_at_the_first_step_of_a_milestone() {
        let schedule = planned(ScheduleKind::Multistep, 8, 0.0, 10);
        let close = |step, expected: f64| {
            assert!(
                (rate(&schedule, step) - expected).abs() < 1e-12,
                "step {step}"
            )
        };
        close(39, 0.4);
        close(40, 0.04);
        close(59, 0.04);
        close(60, 0.004);
    }

    #[test]
    fn warmup_of_one_epoch_rises_linearly_by_the_step() {
        let schedule = planned(ScheduleKind::Constant, 5, 1.0, 10);
        let close = |step, expected: f64| {
            assert!(
                (rate(&schedule, step) - expected).abs() < 1e-12,
                "step {step}"
            )
        };
        close(0, 0.04);
        close(5, 0.22);
        close(10, 0.4);
        close(49, 0.4);
    }

    #[test]
    fn one_cycle_has_the_rates_of_pytorch_at_start_peak_and_end() {
        // torch.optim.lr_scheduler.OneCycleLR starts at max_lr / 25 and ends at 1e-4 of this start.
        let schedule = planned(ScheduleKind::OneCycle, 10, 3.0, 10);
        assert!((rate(&schedule, 0) - 0.4 / 25.0).abs() < 1e-12);
        assert_eq!(rate(&schedule, 30), 0.4);
        assert!((schedule.planned(100) - 0.4 / 25.0 * 1e-4).abs() < 1e-12);
    }

    /// Returns the schedule of these flags with 4 steps of warmup and one step an epoch.
    fn of_flags(epochs: u64, set: impl FnOnce(&mut ScheduleArgs)) -> LearningRate {
        let mut args = TrainArgs::default();
        args.optimizer.learning_rate = Some(0.4);
        args.schedule.epochs = Some(epochs);
        args.schedule.warmup_epochs = Some(4.0);
        set(&mut args.schedule);
        LearningRate::new(&TrainConfig::resolve(&args, 1).expect("valid flags"), 1)
    }

    fn expect_rates(schedule: &LearningRate, expected: [f64; 20]) {
        for (step, expected) in (0..).zip(expected) {
            let got = rate(schedule, step);
            assert!((got - expected).abs() < 1e-15, "step {step}: {got}");
        }
    }

    // trainer/tests/golden/schedules.py printed the expected rates of PyTorch.

    #[test]
    fn polynomial_has_the_rates_of_pytorch() {
        let of_power = |power| {
            of_flags(20, |args| {
                args.schedule = Some(ScheduleKind::Polynomial);
                args.power = Some(power);
            })
        };
        #[rustfmt::skip]
        expect_rates(&of_power(1.0), [
            0.04, 0.13, 0.22, 0.31, 0.4, 0.375, 0.35, 0.325, 0.3, 0.275, 0.25, 0.225, 0.2, 0.175, 0.15, 0.125, 0.1,
            0.075, 0.05, 0.025,
        ]);
        #[rustfmt::skip]
        expect_rates(&of_power(2.5), [
            0.04, 0.13, 0.22, 0.31, 0.4, 0.34039892691276125, 0.2864706436748799, 0.23802272091930246,
            0.19485571585149875, 0.15676234360664199, 0.12352647110032734, 0.09492187500000003, 0.07071067811865477,
            0.05064133368834569, 0.03444594950788844, 0.021836601342771385, 0.012500000000000002,
            0.006089241120359336, 0.0022097086912079614, 0.0003906250000000001,
        ]);
    }

    #[test]
    fn cosines_with_restarts_have_the_rates_of_pytorch() {
        let of_factor = |factor| {
            of_flags(20, |args| {
                args.schedule = Some(ScheduleKind::CosineRestarts);
                args.restart_epochs = Some(4);
                args.restart_factor = Some(factor);
            })
        };
        let cosine = [0.4, 0.3414213562373095, 0.2, 0.05857864376269051];
        let warmup = [0.04, 0.13, 0.22, 0.31];
        let same = [warmup, cosine, cosine, cosine, cosine].concat();
        expect_rates(&of_factor(1), same.try_into().unwrap());
        #[rustfmt::skip]
        expect_rates(&of_factor(2), [
            0.04, 0.13, 0.22, 0.31, 0.4, 0.3414213562373095, 0.2, 0.05857864376269051, 0.4, 0.38477590650225735,
            0.3414213562373095, 0.276536686473018, 0.2, 0.12346331352698206, 0.05857864376269051,
            0.015224093497742654, 0.4, 0.3961570560806461, 0.38477590650225735, 0.36629392246050907,
        ]);
    }

    #[test]
    fn plateau_has_the_rates_of_pytorch_after_each_evaluation() {
        let losses = [
            2.0,
            1.99,
            1.5,
            1.6,
            1.49,
            f64::NAN,
            1.2,
            1.2,
            1.19,
            1.3,
            1.18,
            1.0,
            0.99,
        ];
        let of_losses = [
            0.4, 0.4, 0.4, 0.4, 0.2, 0.2, 0.2, 0.2, 0.1, 0.1, 0.05, 0.05, 0.05,
        ];
        let accuracies = [0.1, 0.3, 0.31, 0.29, 0.5, 0.5, 0.52, 0.51, 0.5, 0.7];
        let of_accuracies = [0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.2, 0.2];
        let schedule = of_flags(5, |args| {
            args.schedule = Some(ScheduleKind::Plateau);
            args.gamma = Some(0.5);
            args.plateau_patience = Some(1);
            args.plateau_threshold = Some(0.02);
        });
        for (figures, expected, lower_is_better) in [
            (&losses[..], &of_losses[..], true),
            (&accuracies, &of_accuracies, false),
        ] {
            let mut plateau = Plateau::default();
            for (figure, expected) in figures.iter().zip(expected) {
                let before = schedule.at(9, &plateau);
                let reduces = schedule.note(&mut plateau, *figure, lower_is_better);
                let rate = schedule.at(9, &plateau);
                assert!((rate - expected).abs() < 1e-15, "{figure}: {rate}");
                assert_eq!(reduces, rate < before);
            }
        }
    }

    #[test]
    fn the_linear_scaling_rule_multiplies_by_batch_over_reference() {
        let mut args = TrainArgs::default();
        args.batch.global_batch_size = Some(512);
        args.optimizer.scale_learning_rate = Some(true);
        let config = TrainConfig::resolve(&args, 4).expect("a valid batch");
        assert!((config.peak_learning_rate() - 0.4).abs() < 1e-12);
        assert_eq!(
            rate(&LearningRate::new(&config, 100), 100),
            config.peak_learning_rate()
        );
    }
}
