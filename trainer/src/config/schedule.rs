//! The section `[schedule]`: length of the run and course of the learning rate.

use super::checks::{above_0, at_least, in_range, invalid};
use super::error::ConfigError;
use crate::config::choices::{DatasetKind, ScheduleKind};
use crate::config::cli::ScheduleArgs;
use serde::Serialize;

/// Length of the run and course of the learning rate.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ScheduleSection {
    pub epochs: u64,
    pub schedule_epochs: Option<u64>,
    #[serde(flatten)]
    pub schedule: ScheduleChoice,
    pub warmup_epochs: f64,
    /// Absent without warmup.
    pub warmup_start_factor: Option<f64>,
}

/// A schedule with the options that it takes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(
    tag = "schedule",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum ScheduleChoice {
    /// The same rate after warmup.
    Constant,
    /// Multiplied by gamma at each milestone.
    Multistep { milestones: Vec<u64>, gamma: f64 },
    /// Half a cosine from the rate to zero.
    Cosine,
    /// A cosine rise, then a cosine fall to almost zero.
    OneCycle,
}

impl ScheduleArgs {
    /// Applies the defaults and refuses contradictions. With `has_planned_sizes` the sizes of
    /// images depend on the planned epochs.
    pub(super) fn decide(
        self,
        dataset: DatasetKind,
        has_planned_sizes: bool,
    ) -> Result<ScheduleSection, ConfigError> {
        let default = match dataset {
            DatasetKind::Cifar10 | DatasetKind::Cifar100 => 200,
            DatasetKind::ImageFolder | DatasetKind::Shards | DatasetKind::Parquet => 90,
            DatasetKind::Shapes | DatasetKind::Synthetic | DatasetKind::Custom => 5,
        };
        let epochs = at_least("--epochs", self.epochs.unwrap_or(default), 1)?;
        let schedule = match self.schedule.unwrap_or(ScheduleKind::Cosine) {
            ScheduleKind::Constant => ScheduleChoice::Constant,
            ScheduleKind::Multistep => self.multistep(epochs)?,
            ScheduleKind::Cosine => ScheduleChoice::Cosine,
            ScheduleKind::OneCycle => ScheduleChoice::OneCycle,
        };
        if let Some(planned) = self.schedule_epochs {
            at_least("--schedule-epochs", planned, 1)?;
        }
        let schedule_epochs = self
            .schedule_epochs
            .filter(|_| schedule.depends_on_epochs() || has_planned_sizes);
        let planned = schedule_epochs.unwrap_or(epochs);
        let is_one_cycle = schedule == ScheduleChoice::OneCycle;
        let (default_warmup, default_start) = match is_one_cycle {
            // The published shape: 30 % of the run rising, from 1/25 of the peak.
            true => (0.3 * planned as f64, 0.04),
            false => (if planned >= 5 { 1.0 } else { 0.0 }, 0.1),
        };
        let least = if is_one_cycle { "above" } else { "at least" };
        let warmup_epochs = in_range(
            "--warmup-epochs",
            self.warmup_epochs.unwrap_or(default_warmup),
            &format!("{least} 0 and less than the {planned} epochs of the schedule"),
            |warmup| warmup < planned as f64 && (warmup > 0.0 || (warmup == 0.0 && !is_one_cycle)),
        )?;
        let start_factor = in_range(
            "--warmup-start-factor",
            self.warmup_start_factor.unwrap_or(default_start),
            "0 to 1",
            |factor| (0.0..=1.0).contains(&factor),
        )?;
        Ok(ScheduleSection {
            epochs,
            schedule_epochs,
            schedule,
            warmup_epochs,
            warmup_start_factor: (warmup_epochs > 0.0).then_some(start_factor),
        })
    }

    fn multistep(&self, epochs: u64) -> Result<ScheduleChoice, ConfigError> {
        if epochs < 2 {
            return Err(invalid(
                "--epochs",
                "at least 2 with --schedule multistep, whose rate falls between epochs",
                epochs,
            ));
        }
        // He et al. 2015, section 4.2: at 32k and 48k of 64k steps.
        let milestones = self.milestones.clone().unwrap_or_else(|| {
            let mut milestones = vec![epochs / 2, epochs - epochs.div_ceil(4)];
            milestones.dedup();
            milestones
        });
        let ascend = milestones.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = milestones.iter().all(|epoch| (1..epochs).contains(epoch));
        if !ascend || !inside || milestones.is_empty() {
            let got: Vec<String> = milestones.iter().map(u64::to_string).collect();
            return Err(invalid(
                "--milestones",
                format!("ascending epochs from 1 and below the {epochs} of the run"),
                got.join(","),
            ));
        }
        Ok(ScheduleChoice::Multistep {
            milestones,
            gamma: above_0("--gamma", self.gamma.unwrap_or(0.1))?,
        })
    }
}

impl ScheduleSection {
    /// Returns the epochs of the whole schedule.
    pub fn planned_epochs(&self) -> u64 {
        self.schedule_epochs.unwrap_or(self.epochs)
    }
}

impl ScheduleChoice {
    /// Returns true if the rate of a step depends on the number of planned epochs.
    pub fn depends_on_epochs(&self) -> bool {
        matches!(self, Self::Cosine | Self::OneCycle)
    }

    /// Returns the epochs after which the rate is multiplied by gamma.
    pub fn milestones(&self) -> &[u64] {
        match self {
            Self::Multistep { milestones, .. } => milestones,
            _ => &[],
        }
    }

    /// Returns the choice without its options.
    pub fn kind(&self) -> ScheduleKind {
        match self {
            Self::Constant => ScheduleKind::Constant,
            Self::Multistep { .. } => ScheduleKind::Multistep,
            Self::Cosine => ScheduleKind::Cosine,
            Self::OneCycle => ScheduleKind::OneCycle,
        }
    }
}
