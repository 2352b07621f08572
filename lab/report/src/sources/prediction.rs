//! Predictions of speeds, as `trainer predict-scaling` writes them.
//!
//! In: JSON. Out: [`Predictions`]. Invariant: every prediction names its cell, if it is known.

use super::{StudyFolder, name, network_name, read_with_schema};
use anyhow::Result;
use records::{PREDICTION_SCHEMA, PredictionFile, PredictionRecord, StudyCell};
use std::collections::BTreeMap;
use std::path::Path;

/// A file of predictions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Predictions {
    /// Name in the report.
    pub(crate) label: String,
    /// Number, from 1, of the study that contains the file.
    pub(crate) study: Option<usize>,
    /// Contents of the file; of several for one cell, the file with the median speed.
    pub(crate) file: PredictionFile,
    /// Predictions that were made for one repetition each.
    pub(crate) rounds: Vec<Round>,
}

/// A prediction for one repetition of a cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Round {
    /// Time of the prediction in UTC, RFC 3339.
    pub(crate) created: String,
    pub(crate) prediction: PredictionRecord,
}

impl Predictions {
    /// # Errors
    /// When the file cannot be read or is no prediction.
    pub(super) fn read(path: &Path, remarks: &mut Vec<String>) -> Result<Self> {
        let file = read_with_schema(path, PREDICTION_SCHEMA, remarks)?;
        Ok(Self::new(name(path), file))
    }

    fn new(label: String, mut file: PredictionFile) -> Self {
        let network = &mut file.network;
        let source = network.source.strip_prefix("measured ").map(Path::new);
        // All studies call the file of a measured network the same.
        if let Some(path) = source.filter(|path| path.ends_with("network.json"))
            && network.name == "network"
        {
            network.name = network_name(path);
        }
        for index in 0..file.predictions.len() {
            file.predictions[index].cell = file.cell(index).map(str::to_owned);
        }
        Self {
            label,
            file,
            ..Self::default()
        }
    }

    /// Joins the files for single repetitions of a cell.
    pub(super) fn merged(files: Vec<Self>) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        let mut by_cell: BTreeMap<String, Vec<(PredictionRecord, Self)>> = BTreeMap::new();
        for file in files {
            match &file.file.predictions[..] {
                [one] if one.repetition.is_some() && one.cell.is_some() => {
                    let cell = one.cell.clone().unwrap_or_default();
                    by_cell.entry(cell).or_default().push((one.clone(), file));
                }
                _ => merged.push(file),
            }
        }
        for (label, mut files) in by_cell {
            let round = |(prediction, file): &(PredictionRecord, Self)| Round {
                created: file.file.created.clone(),
                prediction: prediction.clone(),
            };
            let rounds = files.iter().map(round).collect();
            let speed = |one: &PredictionRecord| one.images_per_second.unwrap_or(0.0);
            files.sort_by(|(a, _), (b, _)| speed(a).total_cmp(&speed(b)));
            let (_, middle) = files.swap_remove(files.len() / 2);
            merged.push(Self {
                label,
                rounds,
                ..middle
            });
        }
        merged
    }

    /// Places the file in a study; its network is called as the cells call it.
    pub(super) fn in_study(mut self, study: &StudyFolder, number: usize) -> Self {
        self.study = Some(number);
        let is_predicted = |cell: &&StudyCell| {
            self.file
                .predictions
                .iter()
                .any(|one| one.cell.as_ref() == Some(&cell.id))
        };
        let cells = study.plan.cells.iter().filter(is_predicted);
        let mut networks: Vec<String> = cells.map(|cell| cell.setting("network")).collect();
        networks.dedup();
        if let [network] = &networks[..]
            && !network.is_empty()
        {
            self.file.network.name.clone_from(network);
        }
        self
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
        let predictions =
            Predictions::new("p.json".to_owned(), serde_json::from_value(value).unwrap());
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
        let study = StudyFolder {
            plan,
            ..StudyFolder::default()
        };
        let predictions = predictions.in_study(&study, 1);
        assert_eq!(
            (predictions.file.network.name.as_str(), predictions.study),
            ("1gbit", Some(1))
        );
    }
}
