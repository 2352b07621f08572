//! Defaults and checks of the flags of a run's length and of the course of its learning rate.

use super::checks::{Filled, at_least, in_range, invalid, no_effect};
use super::error::ConfigError;
use crate::config::choices::{DatasetKind, ScheduleKind};
use crate::config::cli::ScheduleArgs;

impl ScheduleArgs {
    /// Fills the gaps for a data set, whose images may have sizes that depend on the planned epochs, and refuses what contradicts itself.
    pub(super) fn fill(
        &mut self,
        dataset: DatasetKind,
        has_planned_sizes: bool,
    ) -> Result<(), ConfigError> {
        let epochs = *self.epochs.get_or_insert(match dataset {
            DatasetKind::Cifar10 | DatasetKind::Cifar100 => 200,
            DatasetKind::ImageFolder | DatasetKind::Shards | DatasetKind::Parquet => 90,
            DatasetKind::Shapes | DatasetKind::Synthetic | DatasetKind::Own => 5,
        });
        at_least("--epochs", epochs, 1)?;
        let kind = *self.schedule.get_or_insert(ScheduleKind::Cosine);
        if let Some(planned) = self.schedule_epochs {
            at_least("--schedule-epochs", planned, 1)?;
            let remedy = match kind {
                ScheduleKind::Multistep => "leave it out; --milestones says when the rate falls",
                _ => "leave it out",
            };
            if !self.depends_on_epochs() && !has_planned_sizes {
                return Err(no_effect(
                    "--schedule-epochs",
                    format!("with --schedule {kind}"),
                    remedy,
                ));
            }
        }
        self.fill_warmup(kind)?;
        self.fill_milestones(kind, epochs)
    }

    fn fill_warmup(&mut self, kind: ScheduleKind) -> Result<(), ConfigError> {
        let planned = self.planned_epochs();
        let is_one_cycle = kind == ScheduleKind::OneCycle;
        let (default_warmup, default_start) = match is_one_cycle {
            // The published shape: 30 % of the run rising, from 1/25 of the peak.
            true => (0.3 * planned as f64, 0.04),
            false => (if planned >= 5 { 1.0 } else { 0.0 }, 0.1),
        };
        let warmup_epochs = *self.warmup_epochs.get_or_insert(default_warmup);
        in_range(
            "--warmup-epochs",
            warmup_epochs,
            format!(
                "{} 0 and less than the {planned} epochs of the schedule",
                if is_one_cycle { "above" } else { "at least" }
            ),
            |warmup| warmup < planned as f64 && (warmup > 0.0 || (warmup == 0.0 && !is_one_cycle)),
        )?;
        if warmup_epochs > 0.0 {
            let factor = *self.warmup_start_factor.get_or_insert(default_start);
            in_range("--warmup-start-factor", factor, "0 to 1", |factor| {
                (0.0..=1.0).contains(&factor)
            })?;
        } else if self.warmup_start_factor.is_some() {
            return Err(no_effect(
                "--warmup-start-factor",
                "without warmup",
                "leave it out or add --warmup-epochs 1",
            ));
        }
        Ok(())
    }

    fn fill_milestones(&mut self, kind: ScheduleKind, epochs: u64) -> Result<(), ConfigError> {
        if kind != ScheduleKind::Multistep {
            let given = [
                ("--milestones", self.milestones.is_some()),
                ("--gamma", self.gamma.is_some()),
            ];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                None => Ok(()),
                Some((option, _)) => {
                    let because = format!("with --schedule {kind}");
                    Err(no_effect(
                        option,
                        because,
                        "add --schedule multistep or leave it out",
                    ))
                }
            };
        }
        // He et al. 2015, section 4.2: at 32k and 48k of 64k steps.
        if epochs < 2 {
            return Err(invalid(
                "--epochs",
                "at least 2 with --schedule multistep, whose rate falls between epochs",
                epochs,
            ));
        }
        let milestones = self.milestones.get_or_insert_with(|| {
            let mut milestones = vec![epochs / 2, epochs - epochs.div_ceil(4)];
            milestones.dedup();
            milestones
        });
        let ascend = milestones.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = milestones.iter().all(|epoch| (1..epochs).contains(epoch));
        if !ascend || !inside || milestones.is_empty() {
            return Err(invalid(
                "--milestones",
                format!("ascending epochs from 1 and below the {epochs} of the run"),
                milestones
                    .iter()
                    .map(u64::to_string)
                    .collect::<Vec<_>>()
                    .join(","),
            ));
        }
        in_range(
            "--gamma",
            *self.gamma.get_or_insert(0.1),
            "above 0",
            |gamma| gamma > 0.0,
        )?;
        Ok(())
    }

    /// Epochs over which the rate runs its course.
    pub fn planned_epochs(&self) -> u64 {
        self.schedule_epochs.unwrap_or(self.epochs.filled())
    }

    /// Whether the rate of a step depends on how many epochs are planned.
    pub fn depends_on_epochs(&self) -> bool {
        matches!(
            self.schedule.filled(),
            ScheduleKind::Cosine | ScheduleKind::OneCycle
        )
    }
}
