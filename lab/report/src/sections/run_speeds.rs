//! Speeds of runs outside studies, in the form of a study's measurements.
//!
//! In: runs. Out: [`Measurement`]s.
//! Invariant: runs of the same work on other numbers of ranks form a line, whose scaling follows
//! from their batch sizes.

use crate::sources::Run;
use records::{AttemptRecord, Measurement};
use serde_json::json;
use std::collections::BTreeMap;

/// Sections of `run.toml` about the work of a rank.
const WORK: [&str; 5] = ["model", "train-split", "batch", "optimizer", "compute"];

/// Options that do not distinguish lines.
const EXCLUDED: [&str; 3] = ["learning-rate", "timeout", "trace"];

/// Returns the measurements of the runs outside studies that have a speed.
pub(super) fn measurements(runs: &[Run]) -> Vec<Measurement> {
    let measured = |run: &Run| {
        let result = json!({
            "images_per_second": run.images_per_second()?,
            "peak_memory_bytes": run.peak_memory_bytes(),
        });
        Some(Measurement {
            id: run.label.clone(),
            attempts: vec![AttemptRecord {
                repetition: 1,
                result,
                ..AttemptRecord::default()
            }],
            ..Measurement::of_settings(settings(run, run.ranks()?))
        })
    };
    let single = runs.iter().filter(|run| run.group.is_none());
    let measurements: Vec<Measurement> = single.filter_map(measured).collect();
    let scaled = |one: &Measurement| {
        let with = |scaling: &str| Measurement {
            scaling: scaling.to_owned(),
            ..one.clone()
        };
        let has_partner = |one: &Measurement| {
            let mut others = measurements.iter().filter(|other| other.ranks != one.ranks);
            others.any(|other| other.is_same_work(one))
        };
        let scaled = ["strong", "weak"].map(with).into_iter().find(has_partner);
        scaled.unwrap_or_else(|| one.clone())
    };
    measurements.iter().map(scaled).collect()
}

/// Returns the data of a run, the options of its ranks' work, and if there are several ranks the
/// options of their synchronisation, by the names that studies use.
pub(super) fn settings(run: &Run, ranks: usize) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    for (name, value) in run.settings.first().into_iter().flatten() {
        let (section, key) = name.split_once('.').unwrap_or_default();
        let is_used = WORK.contains(&section) || section == "sync" && ranks > 1;
        if is_used && !EXCLUDED.contains(&key) {
            settings.insert(key.replace('-', "_"), value.clone());
        }
    }
    let mut insert = |key: &str, value: String| settings.insert(key.to_owned(), value);
    insert("kind", "train".to_owned());
    insert("ranks", ranks.to_string());
    if let Some(global) = run.global_batch_size() {
        let of_rank = global / ranks.max(1) as u64;
        insert("batch_size_per_rank", of_rank.to_string());
    }
    match run.manifest() {
        Some(manifest) => {
            let data = &manifest.dataset;
            let checksum = data.train_checksum.get(..8).unwrap_or_default();
            insert("data", format!("{} {checksum}", data.name));
            insert("threads", manifest.launch.threads_per_rank.to_string());
        }
        None => {
            _ = insert(
                "data",
                run.setting("data.dataset").unwrap_or_default().to_owned(),
            )
        }
    }
    if let Some(family) = run.setting("model.family") {
        settings
            .entry("model".to_owned())
            .or_insert(family.to_owned());
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;
    use records::{EpochRecord, Manifest};

    /// Returns a run at 5 images/s with these options.
    fn run(ranks: usize, checksum: &str, options: &[(&str, &str)]) -> Run {
        let common = [
            ("batch.global-batch-size", "64"),
            ("model.model", "resnet20"),
            ("sync.sync", "allreduce"),
        ];
        let settings = common.iter().chain(options);
        let settings = settings.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let mut manifest = Manifest::default();
        manifest.launch.ranks = ranks;
        manifest.dataset.train_checksum = checksum.to_owned();
        Run {
            settings: vec![settings.collect()],
            epochs: vec![EpochRecord {
                images_per_second: 5.0,
                ..EpochRecord::default()
            }],
            manifests: vec![manifest],
            ..Run::default()
        }
    }

    #[test]
    fn runs_of_the_same_data_model_and_settings_are_one_line_and_no_others() {
        const DATA: &str = "11111111aa";
        let same = measurements(&[
            run(1, DATA, &[]),
            run(2, DATA, &[]),
            run(4, DATA, &[("optimizer.learning-rate", "0.4")]),
        ]);
        assert!(same.iter().all(|one| one.scaling == "strong"), "{same:?}");
        assert_eq!(same[1].line(), same[2].line());
        assert_eq!(same[2].reference(&same), Some(&same[0]));
        for (data, options) in [
            ("22222222bb", &[][..]),
            (DATA, &[("train-split.augment", "none")]),
            (DATA, &[("compute.kernels", "stock")]),
            (DATA, &[("optimizer.momentum", "0.5")]),
        ] {
            let two = measurements(&[run(1, DATA, &[]), run(2, data, options)]);
            assert!(two.iter().all(|one| one.scaling == "none"), "{options:?}");
            assert_ne!(two[0].line(), two[1].line(), "{options:?}");
            assert_eq!(two[1].reference(&two), Some(&two[1]), "{options:?}");
        }
        let met = measurements(&[
            run(1, DATA, &[]),
            run(2, DATA, &[]),
            run(4, DATA, &[("sync.overlap", "off")]),
        ]);
        assert_ne!(met[1].line(), met[2].line(), "another synchronisation");
        assert_eq!(met[2].reference(&met), Some(&met[0]));
    }

    #[test]
    fn servers_on_separate_ranks_do_not_train() {
        let mut run = run(3, "", &[("sync.server-placement", "own")]);
        run.epochs[0].num_ranks = 2;
        let measured = &measurements(&[run])[0];
        let batch = measured.setting("batch_size_per_rank");
        assert_eq!((measured.ranks, batch), (2, "32"));
    }
}
