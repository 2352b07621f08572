//! The learning rate of every step, decided once.
//!
//! In: [`TrainConfig`] and the steps of an epoch. Out: a pure function of the step.
//! Invariant: the rate depends only on the step, so a resumed run continues on the same course.
//! Source: warmup Goyal et al. 2017, 1706.02677, section 2.2; cosine Loshchilov and Hutter 2016,
//! 1608.03983, equation 5 without restarts; one-cycle Smith and Topin 2017, 1708.07120; multistep
//! He et al. 2015, 1512.03385, section 4.2.

use crate::config::{ScheduleChoice, TrainConfig};
use std::f64::consts::PI;

/// One-cycle ends at this share of its first rate.
const ONE_CYCLE_FINAL_FACTOR: f64 = 1e-4;

/// The learning rate as a function of the step.
///
/// # Differs from PyTorch
/// One-cycle changes the learning rate but not the momentum (`OneCycleLR(cycle_momentum=False)`),
/// and reaches its end one step after the last. Rates are set for every step, not for every epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct LearningRate {
    peak: f64,
    start_factor: f64,
    warmup_steps: u64,
    total_steps: u64,
    steps_per_epoch: u64,
    course: ScheduleChoice,
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
    pub fn at(&self, step: u64) -> f64 {
        // Keep the last rate of a course that ends at zero, so that longer training still updates.
        if self.course.depends_on_epochs() {
            self.planned(step.min(self.total_steps - 1))
        } else {
            self.planned(step)
        }
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
            ScheduleChoice::Constant => self.peak,
            ScheduleChoice::Multistep { milestones, gamma } => {
                let has_passed = |epoch: &&u64| step >= epoch.saturating_mul(self.steps_per_epoch);
                let num_passed = milestones.iter().filter(has_passed).count();
                self.peak * gamma.powi(num_passed as i32)
            }
            ScheduleChoice::Cosine => self.peak * half_cosine(progress),
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
    use crate::config::cli::TrainArgs;
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

    fn any_schedule() -> impl Strategy<Value = LearningRate> {
        let kind = prop_oneof![
            Just(ScheduleKind::Constant),
            Just(ScheduleKind::Multistep),
            Just(ScheduleKind::Cosine),
            Just(ScheduleKind::OneCycle),
        ];
        (kind, 4_u64..30, 0.01_f64..0.9, 1_u64..40).prop_map(|(kind, epochs, warmup, steps)| {
            planned(kind, epochs, warmup * epochs as f64, steps)
        })
    }

    proptest! {
        #[test]
        fn every_rate_is_above_zero_and_at_most_the_peak(schedule in any_schedule()) {
            for step in 0..schedule.total_steps() {
                let rate = schedule.at(step);
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
                    prop_assert!(schedule.at(step) > schedule.at(step - 1));
                }
            }
            for step in warmup + 1..schedule.total_steps() + 5 {
                prop_assert!(schedule.at(step) <= schedule.at(step - 1));
            }
            if schedule.course.kind() != ScheduleKind::Multistep {
                prop_assert_eq!(schedule.at(warmup), 0.4);
            }
        }

        #[test]
        fn warmup_starts_at_the_start_factor(schedule in any_schedule()) {
            if schedule.warmup_steps > 0 {
                prop_assert!((schedule.at(0) - 0.4 * schedule.start_factor).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn cosine_is_half_the_peak_in_the_middle_and_zero_one_step_after_the_last_whose_rate_stays() {
        let schedule = planned(ScheduleKind::Cosine, 10, 0.0, 10);
        assert_eq!(schedule.at(0), 0.4);
        assert!((schedule.at(50) - 0.2).abs() < 1e-12);
        assert_eq!(schedule.planned(100), 0.0);
        assert!(schedule.at(99) > 0.0);
        assert_eq!(
            (schedule.at(100), schedule.at(1000)),
            (schedule.at(99), schedule.at(99))
        );
    }

    #[test]
    fn multistep_multiplies_by_gamma_at_the_first_step_of_a_milestone() {
        let schedule = planned(ScheduleKind::Multistep, 8, 0.0, 10);
        let close = |step, expected: f64| {
            assert!((schedule.at(step) - expected).abs() < 1e-12, "step {step}")
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
            assert!((schedule.at(step) - expected).abs() < 1e-12, "step {step}")
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
        assert!((schedule.at(0) - 0.4 / 25.0).abs() < 1e-12);
        assert_eq!(schedule.at(30), 0.4);
        assert!((schedule.planned(100) - 0.4 / 25.0 * 1e-4).abs() < 1e-12);
    }

    #[test]
    fn the_linear_scaling_rule_multiplies_by_batch_over_reference() {
        let mut args = TrainArgs::default();
        args.batch.global_batch_size = Some(512);
        args.optimizer.scale_learning_rate = Some(true);
        let config = TrainConfig::resolve(&args, 4).expect("a valid batch");
        assert!((config.peak_learning_rate() - 0.4).abs() < 1e-12);
        assert_eq!(
            LearningRate::new(&config, 100).at(100),
            config.peak_learning_rate()
        );
    }
}
