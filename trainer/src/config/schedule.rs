//! The section `[schedule]`: length of the run and course of the learning rate.

use super::error::{ConfigError, invalid};
use super::file;
use super::options::in_range;
use crate::config::choices::{DatasetKind, ScheduleKind};
use crate::config::cli::ScheduleArgs;
use serde::{Deserialize, Serialize};

/// Length of the run and course of the learning rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ScheduleSection {
    pub epochs: u64,
    pub schedule_epochs: Option<u64>,
    #[serde(flatten)]
    pub schedule: ScheduleChoice,
    pub warmup_epochs: f64,
    /// `None` without warmup.
    pub warmup_start_factor: Option<f64>,
}

/// A schedule with its options.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Half cosines from the rate to zero. The first has `restart_epochs`, and each further one
    /// `restart_factor` times as many as the one before.
    CosineRestarts {
        restart_epochs: u64,
        restart_factor: u64,
    },
    /// The share of the steps that is left, to this power.
    Polynomial { power: f64 },
    /// Multiplied by gamma after more than `plateau_patience` evaluations that are not better than
    /// the best one by `plateau_threshold`, a share of the figure.
    Plateau {
        gamma: f64,
        plateau_patience: u64,
        plateau_threshold: f64,
    },
}

impl ScheduleArgs {
    /// Applies the defaults and rejects contradictions. With `has_planned_sizes`, the sizes of
    /// images depend on the planned epochs.
    pub(super) fn decide(
        mut self,
        dataset: DatasetKind,
        has_planned_sizes: bool,
    ) -> Result<ScheduleSection, ConfigError> {
        let epochs = *self.epochs.get_or_insert(match dataset {
            DatasetKind::Cifar10 | DatasetKind::Cifar100 => 200,
            DatasetKind::ImageFolder | DatasetKind::Shards | DatasetKind::Parquet => 90,
            DatasetKind::Shapes | DatasetKind::Synthetic | DatasetKind::Custom => 5,
        });
        let schedule = *self.schedule.get_or_insert(ScheduleKind::Cosine);
        if schedule == ScheduleKind::Multistep {
            self.fill_milestones(epochs)?;
        }
        // Except for the length of the first cosine, the defaults of PyTorch.
        let gamma = *self.gamma.get_or_insert(0.1);
        if schedule == ScheduleKind::Plateau {
            let expected = "above 0 and below 1 with --schedule plateau";
            in_range("gamma", gamma, expected, |gamma| gamma < 1.0)?;
        }
        self.restart_epochs.get_or_insert(10);
        self.restart_factor.get_or_insert(1);
        self.power.get_or_insert(1.0);
        self.plateau_patience.get_or_insert(10);
        self.plateau_threshold.get_or_insert(1e-4);
        if !schedule.depends_on_epochs() && !has_planned_sizes {
            self.schedule_epochs = None;
        }
        let is_one_cycle = schedule == ScheduleKind::OneCycle;
        let planned = self.schedule_epochs.unwrap_or(epochs);
        let (default_warmup, default_start) = match is_one_cycle {
            // The published shape: the rate rises for 30 % of the run, from 1/25 of the peak.
            true => (0.3 * planned as f64, 0.04),
            false => (if planned >= 5 { 1.0 } else { 0.0 }, 0.1),
        };
        let least = if is_one_cycle { "above" } else { "from" };
        let warmup_epochs = in_range(
            "warmup-epochs",
            *self.warmup_epochs.get_or_insert(default_warmup),
            &format!("{least} 0, below the {planned} epochs of the schedule"),
            |warmup| warmup < planned as f64 && (warmup > 0.0 || (warmup == 0.0 && !is_one_cycle)),
        )?;
        let start_factor = self.warmup_start_factor.unwrap_or(default_start);
        self.warmup_start_factor = (warmup_epochs > 0.0).then_some(start_factor);
        file::section(&self)
    }

    fn fill_milestones(&mut self, epochs: u64) -> Result<(), ConfigError> {
        if epochs < 2 {
            let expected = "at least 2 with --schedule multistep, whose rate falls between epochs";
            return Err(invalid("--epochs", expected, epochs));
        }
        // He et al. 2015, section 4.2: milestones at 32k and 48k of 64k steps.
        let milestones = self.milestones.get_or_insert_with(|| {
            let mut milestones = vec![epochs / 2, epochs - epochs.div_ceil(4)];
            milestones.dedup();
            milestones
        });
        let ascend = milestones.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = milestones.iter().all(|epoch| (1..epochs).contains(epoch));
        if !ascend || !inside || milestones.is_empty() {
            let got: Vec<String> = milestones.iter().map(u64::to_string).collect();
            let expected = format!("ascending epochs from 1 and below the {epochs} of the run");
            return Err(invalid("--milestones", expected, got.join(",")));
        }
        Ok(())
    }
}

impl ScheduleSection {
    /// Returns the number of epochs of the whole schedule.
    pub fn planned_epochs(&self) -> u64 {
        self.schedule_epochs.unwrap_or(self.epochs)
    }
}

impl ScheduleChoice {
    /// Returns true if the rate of a step depends on the number of planned epochs.
    pub fn depends_on_epochs(&self) -> bool {
        self.kind().depends_on_epochs()
    }

    /// Returns the epochs after which the rate is multiplied by gamma.
    pub fn milestones(&self) -> &[u64] {
        match self {
            Self::Multistep { milestones, .. } => milestones,
            _ => &[],
        }
    }
}
