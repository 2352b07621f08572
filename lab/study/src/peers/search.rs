//! The search for the setting with which each framework competes.
//!
//! In: cells of other frameworks. Out: the best setting of each; the runs of the search are
//! attempts like all others.
//! Invariant: one choice after the other; its options are measured next to each other in time, and
//! the best is kept for the next choice. Choices that matter on one rank are made there, once for
//! all numbers of ranks.

use records::ComparisonRow;

use super::setting::{Choice, of_communication, of_one_rank};
use super::{Framework, Setting};
use crate::cell::{Cell, folder_name};
use crate::file::{Kind, PeerSettings};
use crate::session::StudyRunner;
use cluster::failure::Outcome;

impl StudyRunner<'_> {
    /// Decides the setting of each of the cells that has no result yet.
    pub(crate) fn search_settings(&mut self, cells: &mut [Cell]) -> Outcome {
        let mut order: Vec<usize> = (0..cells.len()).collect();
        order.sort_by_key(|index| cells[*index].ranks);
        for index in order {
            let cell = cells[index].clone();
            let Some(framework) = cell.peer() else {
                continue;
            };
            let is_single = |other: &&Cell| {
                other.framework == Some(framework.on_one_rank())
                    && other.kind == Kind::Bench
                    && other.ranks == 1
                    && is_same_job(other, &cell)
            };
            let single = cells.iter().find(is_single);
            let single = single.map(|other| other.chosen.clone());
            if cell.kind == Kind::Train {
                cells[index].chosen = single.unwrap_or_default();
            } else if self.records.newest(&cell.id).is_none()
                && self.runs.file.peers.settings == PeerSettings::Best
                && self.runs.gap(&cell).is_none()
            {
                let single = single.filter(|_| cell.ranks > 1);
                cells[index].chosen = self.best_setting(&cell, framework, single)?;
            }
        }
        Ok(())
    }

    /// Returns the best setting, beginning with that of one rank, if it is known.
    fn best_setting(
        &mut self,
        cell: &Cell,
        framework: Framework,
        single: Option<Setting>,
    ) -> Outcome<Setting> {
        let of_one_rank = of_one_rank(framework, cell.threads);
        let mut choices = match cell.ranks {
            1 => Vec::new(),
            _ => of_communication(framework),
        };
        let all = [of_one_rank.clone(), choices.clone()].concat();
        let mut setting = match single {
            Some(single) => single.among(&all),
            None => {
                choices = all;
                Setting::default()
            }
        };
        let ours = self.try_out(&ours_on(cell))?;
        for choice in &choices {
            let mut rows = Vec::new();
            for option in choice.options {
                rows.push(self.try_out(&with_option(cell, &setting, choice, option))?);
            }
            if let Some(best) = best_of(&rows, &ours) {
                setting = Setting(best.setting.clone());
            }
        }
        Ok(setting)
    }
}

/// Returns the fastest row that does the same work, the first of equals.
fn best_of<'r>(rows: &'r [ComparisonRow], ours: &ComparisonRow) -> Option<&'r ComparisonRow> {
    let mut best: Option<(&ComparisonRow, f64)> = None;
    for row in rows
        .iter()
        .filter(|row| row.agrees_with(ours) == Some(true))
    {
        if let Some(speed) = row.speed()
            && best.is_none_or(|(_, fastest)| speed > fastest)
        {
            best = Some((row, speed));
        }
    }
    best.map(|(row, _)| row)
}

/// Returns a cell of the search.
fn with_option(cell: &Cell, setting: &Setting, choice: &Choice, option: &str) -> Cell {
    let chosen = setting.with(choice, option);
    let others = chosen.0.iter().filter(|(name, _)| *name != choice.name);
    let others: String = others
        .map(|(name, option)| format!("-{name}{option}"))
        .collect();
    let id = format!("{}-try-{}{option}{others}", cell.id, choice.name);
    Cell {
        id: folder_name(id, 255),
        chosen,
        tried: choice.name.to_owned(),
        repetitions: 1,
        ..cell.clone()
    }
}

/// Returns Lockstep's cell on the same job: the losses that others must have.
fn ours_on(cell: &Cell) -> Cell {
    let mut ours = cell.as_ours();
    ours.id = folder_name(format!("{}-try-losses", ours.id), 255);
    ours.tried = "losses".to_owned();
    ours.repetitions = 1;
    ours
}

fn is_same_job(one: &Cell, other: &Cell) -> bool {
    let keys = ["model", "dtype", "batch_size_per_rank", "threads"];
    let is_bench_for_training = one.kind != other.kind;
    keys.iter()
        .filter(|key| !is_bench_for_training || ["model", "dtype"].contains(key))
        .all(|key| one.setting(key) == other.setting(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::study;
    use records::AttemptRecord;

    #[test]
    fn the_fastest_option_of_the_same_work_is_kept_and_a_failed_one_is_not() {
        let text = "[[matrix]]\nframework = \"pytorch\"\nbatch_size_per_rank = 8\n";
        let (_, cells) = study(text).unwrap();
        let choice = of_one_rank(Framework::PyTorch, 1)[1];
        let row = |option: &str, speed: Option<f64>, last: f64| {
            let cell = with_option(&cells[0], &Setting::default(), &choice, option);
            let round = |speed: f64| AttemptRecord {
                result: serde_json::json!({
                    "images_per_second": speed,
                    "losses": [3.0, 3.0, 2.5, 2.0, 2.0, last],
                }),
                ..AttemptRecord::default()
            };
            ComparisonRow {
                rounds: speed.into_iter().map(round).collect(),
                ..ComparisonRow::of(&cell.record(), &[])
            }
        };
        let ours = row("eager", Some(1.0), 2.0);
        let eager = row("eager", Some(50.0), 2.0);
        let failed = row("compile", None, 2.0);
        let is_compiled = |compile: ComparisonRow| {
            let rows = [eager.clone(), failed.clone(), compile];
            !best_of(&rows, &ours).unwrap().setting.is_empty()
        };
        assert!(is_compiled(row("compile", Some(60.0), 2.0)));
        assert!(
            !is_compiled(row("compile", Some(60.0), 9.0)),
            "other losses"
        );
        assert!(!is_compiled(row("compile", Some(50.0), 2.0)), "no faster");
        let id = with_option(&cells[0], &Setting::default(), &choice, "compile").id;
        assert_eq!(id, format!("{}-try-modecompile", cells[0].id));
        assert!(ours_on(&cells[0]).arguments.join(" ").starts_with("bench "));
    }
}
