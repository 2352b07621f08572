//! Predictions of speeds: what `trainer predict-scaling` writes.
//!
//! In: JSON. Out: [`Predictions`]. Invariant: every prediction names the cell that it stands for, if it is known.

use super::{StudyFolder, check_schema, name, network_name, parsed};
use anyhow::Result;
use records::{PREDICTION_SCHEMA, PredictionFile, PredictionRecord, StudyCell};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A file of predictions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Predictions {
    /// What it is called in the report.
    pub(crate) label: String,
    /// Number, from 1, of the study it lies in; none for a file on its own.
    pub(crate) study: Option<usize>,
    /// As it was written; of several for one cell the middle one by its speed.
    pub(crate) file: PredictionFile,
    /// Of those made for one repetition each: when, and what.
    pub(crate) rounds: Vec<Round>,
}

/// A prediction for one repetition of a cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Round {
    /// In UTC, RFC 3339.
    pub(crate) created: String,
    /// What was written then.
    pub(crate) prediction: PredictionRecord,
}

impl Predictions {
    /// Reads a prediction.
    ///
    /// # Errors
    /// When it is not a prediction.
    pub(crate) fn from_value(path: &Path, value: Value, remarks: &mut Vec<String>) -> Result<Self> {
        check_schema(path, &value, PREDICTION_SCHEMA, remarks)?;
        let mut file: PredictionFile = parsed(path, value)?;
        if let Some(measured) = file.network.source.strip_prefix("measured ").map(Path::new) {
            // Studies call all of these files alike.
            if measured
                .file_stem()
                .is_some_and(|stem| *stem == *file.network.name && stem == "network")
            {
                file.network.name = network_name(measured);
            }
        }
        for index in 0..file.predictions.len() {
            file.predictions[index].cell = file.cell(index).map(str::to_owned);
        }
        Ok(Self {
            label: name(path),
            study: None,
            file,
            rounds: Vec::new(),
        })
    }

    /// Files for single repetitions become one a cell; others stay as they are.
    pub(super) fn merged(files: Vec<Self>) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        let mut by_cell: BTreeMap<String, Vec<Self>> = BTreeMap::new();
        for file in files {
            match file.file.predictions.as_slice() {
                [
                    PredictionRecord {
                        cell: Some(cell),
                        repetition: Some(_),
                        ..
                    },
                ] => {
                    by_cell.entry(cell.clone()).or_default().push(file);
                }
                _ => merged.push(file),
            }
        }
        for (cell, mut files) in by_cell {
            let round = |file: &Self| {
                Some(Round {
                    created: file.file.created.clone(),
                    prediction: file.file.predictions.first()?.clone(),
                })
            };
            let rounds = files.iter().filter_map(round).collect();
            let speed = |file: &Self| file.file.predictions[0].images_per_second.unwrap_or(0.0);
            files.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
            let middle = files.swap_remove(files.len() / 2);
            merged.push(Self {
                label: cell,
                rounds,
                ..middle
            });
        }
        merged
    }

    /// Makes it one of a study: its network is that of the cells for which it stands.
    pub(super) fn stand_in(&mut self, study: &StudyFolder, number: usize) {
        self.study = Some(number);
        let names = |cell: &&StudyCell| {
            self.file
                .predictions
                .iter()
                .any(|one| one.cell.as_ref() == Some(&cell.id))
        };
        let mut networks: Vec<String> = study
            .plan
            .cells
            .iter()
            .filter(names)
            .map(|cell| cell.setting("network"))
            .collect();
        networks.dedup();
        if let [network] = &mut networks[..]
            && !network.is_empty()
        {
            self.file.network.name = std::mem::take(network);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::Study;

    #[test]
    fn predictions_of_single_repetitions_become_one_a_cell() {
        let file = |speed: f64, repetition: Option<u64>| {
            let prediction = PredictionRecord {
                images_per_second: Some(speed),
                cell: Some("a".to_owned()),
                repetition,
                ..PredictionRecord::default()
            };
            let file = PredictionFile {
                created: speed.to_string(),
                predictions: vec![prediction],
                ..PredictionFile::default()
            };
            Predictions {
                file,
                ..Predictions::default()
            }
        };
        let merged = Predictions::merged(vec![
            file(9.0, Some(1)),
            file(50.0, None),
            file(7.0, Some(2)),
            file(8.0, Some(3)),
        ]);
        assert_eq!(merged.len(), 2);
        assert_eq!(
            (merged[1].label.as_str(), merged[1].file.created.as_str()),
            ("a", "8")
        );
        let created: Vec<&str> = merged[1]
            .rounds
            .iter()
            .map(|round| round.created.as_str())
            .collect();
        assert_eq!(created, ["9", "7", "8"]);
    }

    #[test]
    fn a_network_that_was_measured_is_called_by_its_study_and_not_by_its_file() {
        let value = serde_json::json!({
            "schema": PREDICTION_SCHEMA, "predictions": [{ "ranks": 2, "cell": "a" }],
            "network": { "name": "network", "source": "measured s/runs/netbench-1gbit/r1a1/network.json" },
        });
        let mut predictions =
            Predictions::from_value(Path::new("p.json"), value, &mut Vec::new()).unwrap();
        assert_eq!(predictions.file.network.name, "netbench-1gbit");
        let cell = |id: &str, network: &str| {
            let settings = serde_json::json!({ "network": network })
                .as_object()
                .unwrap()
                .clone();
            StudyCell {
                id: id.to_owned(),
                settings,
                ..StudyCell::default()
            }
        };
        let plan = Study {
            cells: vec![cell("a", "1gbit"), cell("b", "200mbit")],
            ..Study::default()
        };
        predictions.stand_in(
            &StudyFolder {
                plan,
                ..StudyFolder::default()
            },
            1,
        );
        assert_eq!(
            (predictions.file.network.name.as_str(), predictions.study),
            ("1gbit", Some(1))
        );
    }
}
