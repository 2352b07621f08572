//! Results: the best runs and cells, and everything that the reader must know about them.
//!
//! In: everything. Out: sentences for the head of the page, tables with the best first, warnings.
//! Invariant: runs that differ in nothing but the seed are one row, with mean and deviation. The
//! warnings name everything that was left out.

use super::studies::of_study;
use super::training::metrics;
use super::{Facts, Group, short};
use crate::document::{Cell, NamedRow, Section, mebibytes, number, percent, row};
use crate::sources::Run;
use records::{Comparison, EpochRecord, Measurement, Spread};
use records::{counted, decimal, mean_and_deviation};
use std::collections::{BTreeMap, BTreeSet};

/// Rows of a table of the best.
const MOST_BEST: usize = 10;

/// Mean and deviation.
type Mean = Option<(f64, Option<f64>)>;

/// Returns the groups, the best first by the score that chose their epochs: the test split of a run
/// with a val split chooses nothing.
fn ranked<'a>(facts: &Facts<'a>) -> Vec<Group<'a>> {
    let rank = |group: &Group<'a>| {
        let best = group.runs[0].best();
        let mean = group.mean(|run| Some(run.best()?.value));
        let rank = best.as_ref().zip(mean).map(
            |(best, (mean, _))| {
                if best.lower_is_better { mean } else { -mean }
            },
        );
        let rank = rank.filter(|rank| rank.is_finite());
        (best.map(|best| best.figure), rank.unwrap_or(f64::INFINITY))
    };
    let mut ranked: Vec<_> = facts
        .groups()
        .into_iter()
        .map(|group| (rank(&group), group))
        .collect();
    ranked.sort_by(|((figure, rank), _), ((of_other, other), _)| {
        figure.cmp(of_other).then(rank.total_cmp(other))
    });
    ranked.into_iter().map(|(_, group)| group).collect()
}

/// Returns the measurements of the cells of a study that do not train, the fastest first.
fn fastest<'f>(facts: &'f Facts<'_>, study: usize) -> Vec<(&'f Measurement, (f64, Option<f64>))> {
    let study = study.to_string();
    let all = facts
        .measurements
        .iter()
        .filter(|one| one.setting("study") == study);
    let all = all.filter(|one| one.setting("kind") != "train");
    let mean = |one: &'f Measurement| Some((one, mean_and_deviation(&one.speeds())?));
    let mut all: Vec<_> = all.filter_map(mean).collect();
    all.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    all
}

fn with_deviation((mean, deviation): (f64, Option<f64>), decimals: usize) -> String {
    let mean = decimal(mean, decimals);
    deviation.map_or(mean.clone(), |deviation| {
        format!("{mean} ± {}", decimal(deviation, decimals))
    })
}

/// Returns a sentence about the best training and one about the fastest cell of each study.
pub(super) fn sentences(facts: &Facts<'_>) -> Vec<String> {
    let ranked = ranked(facts);
    let mut sentences: Vec<String> = Vec::new();
    if let Some(group) = ranked.first() {
        let best = match (ranked.len(), group.runs[0].best()) {
            (1, _) => String::new(),
            (all, Some(best)) => format!("Best of {all} by {}, {}: ", best.name(), group.name),
            (all, None) => format!("First of {all}, {}: ", group.name),
        };
        sentences.extend(of_best(group).map(|sentence| best + &sentence));
    }
    for (index, study) in facts.sources.studies.iter().enumerate() {
        let fastest = fastest(facts, index + 1);
        let Some((cell, speed)) = fastest.first() else {
            continue;
        };
        let commit = study.plan.commit.as_deref().map(short);
        let facts = [
            Some(format!(
                "{} images/s with {}",
                with_deviation(*speed, 1),
                facts.name_of(cell)
            )),
            Some(format!("fastest of {}", counted(fastest.len(), "cell"))),
            commit.map(|commit| format!("commit {commit}")),
        ];
        let facts: Vec<String> = facts.into_iter().flatten().collect();
        sentences.push(format!("{}.", facts.join("; ")));
    }
    sentences.extend(facts.sources.comparisons.iter().filter_map(over_others));
    sentences
}

/// Compares Lockstep with the fastest other framework of each job.
fn over_others(comparison: &Comparison) -> Option<String> {
    let mut fastest: BTreeMap<_, f64> = BTreeMap::new();
    for row in comparison.rows.iter().filter(|row| !row.is_ours()) {
        let Some(ratio) = row.ratio else { continue };
        let ratio_of_job = fastest.entry(row.job()).or_default();
        *ratio_of_job = ratio_of_job.max(ratio.median);
    }
    let factors = Spread::of(fastest.values().map(|ratio| 1.0 / ratio))?;
    let range = match factors.range() {
        None => decimal(factors.median, 2),
        Some((least, most)) => format!("{} to {}", decimal(least, 2), decimal(most, 2)),
    };
    Some(format!(
        "{range} times the images/s of the fastest other framework in {}; commit {}.",
        counted(fastest.len(), "job"),
        short(&comparison.commit)
    ))
}

/// Describes a group by its result and its job; `None` before the first epoch.
fn of_best(group: &Group<'_>) -> Option<String> {
    let run = group.runs[0];
    let last = run.epochs.last()?;
    let has_top1 = run
        .result()
        .is_some_and(|(.., scores)| scores.top1.is_some());
    let figure = match run.best() {
        Some(best) if !has_top1 => best.figure,
        _ => "top1".to_owned(),
    };
    let figure = figure.as_str();
    let mean = group.mean(|run| run.result()?.2.value(figure));
    let result = run.result().zip(mean).map(|((split, epoch, _), mean)| {
        let mut epochs = group.runs.iter().filter_map(|run| Some(run.result()?.1));
        let of = match epoch == last.number() || epochs.any(|other| other != epoch) {
            true => String::new(),
            false => format!(" of the model of epoch {epoch}"),
        };
        match figure {
            "top1" => {
                let share = |share| 100.0 * share;
                let mean = (share(mean.0), mean.1.map(share));
                format!("{} % {split} accuracy{of}", with_deviation(mean, 2))
            }
            figure => format!("{split} {figure} {}{of}", with_deviation(mean, 4)),
        }
    });
    let result = match result {
        Some(result) => result,
        None => format!(
            "training loss {}",
            with_deviation(group.mean(|run| run.epochs.last()?.train_loss)?, 4)
        ),
    };
    let seeds = match group.runs.len() {
        1 => String::new(),
        all => format!(", {}", counted(all, "run")),
    };
    let ranks = run.ranks_in_turn().map(|ranks| match ranks.as_str() {
        "1" => "1 rank".to_owned(),
        ranks => format!("{ranks} ranks"),
    });
    let job = [
        run.model().map(str::to_owned),
        ranks,
        group
            .mean(Run::seconds)
            .map(|(seconds, _)| format!("{} s", records::rate(seconds))),
        run.manifest()
            .map(|manifest| format!("commit {}", short(&manifest.commit))),
    ];
    let job: Vec<String> = job.into_iter().flatten().collect();
    let epochs = counted(last.number() as usize, "epoch");
    Some(format!(
        "{result} after {epochs}{seeds}; {}.",
        job.join(", ")
    ))
}

pub(super) fn summary(facts: &Facts<'_>, section: &mut Section) {
    let sources = facts.sources;
    for study in &sources.studies {
        let plan = &study.plan;
        let title = match plan.title.as_str() {
            "" => &plan.name,
            title => title,
        };
        section.text(format!("{title}. {}", plan.about).trim());
    }
    let groups = ranked(facts);
    let title = match groups.len() {
        1 => "Result",
        _ => "Results, the best first",
    };
    section.table("results", title, rows(&groups, groups.len() == 1));
    let is_repeated = groups.iter().any(|group| group.runs.len() > 1);
    if is_repeated {
        let runs = sources.runs.iter().map(|run| Group {
            name: run.label.clone(),
            runs: vec![run],
        });
        let runs: Vec<Group<'_>> = runs.collect();
        section.folded_table("runs", "Every run", rows(&runs, true));
    }
    for (index, study) in sources.studies.iter().enumerate() {
        let fastest = fastest(facts, index + 1);
        let title = match fastest.len() {
            0..=MOST_BEST => format!("Cells of {}, the fastest first", study.plan.name),
            all => format!(
                "The fastest {MOST_BEST} of {all} cells of {}",
                study.plan.name
            ),
        };
        let rows = fastest
            .into_iter()
            .take(MOST_BEST)
            .map(|(cell, (mean, deviation))| {
                row![
                    "cell" => facts.name_of(cell),
                    "images/s" => number(mean, 1),
                    "± images/s" => number(deviation, 1),
                    "repetitions" => cell.attempts.len(),
                ]
            });
        section.table("fastest", title, rows);
    }
    warnings(facts, section);
    let studies = sources.studies.iter().enumerate();
    section.table(
        "studies",
        "Studies",
        studies.map(|(index, study)| of_study(facts, index + 1, study)),
    );
}

/// Adds the warnings; one that differs only in numbers is shown once for all runs.
fn warnings(facts: &Facts<'_>, section: &mut Section) {
    let sources = facts.sources;
    let mut of_runs: BTreeMap<String, (String, usize)> = BTreeMap::new();
    for run in &sources.runs {
        for remark in &run.remarks {
            let key = remark.replace(|c: char| c.is_ascii_digit(), "");
            let text = format!("{}: {remark}", run.label);
            of_runs.entry(key).or_insert((text, 0)).1 += 1;
        }
    }
    let of_runs = of_runs.into_values().map(|(text, runs)| match runs {
        1 => text,
        _ => format!("{text}, and likewise {}", counted(runs - 1, "other run")),
    });
    for study in &sources.studies {
        let of_study = super::studies::warnings(facts, study);
        of_study.into_iter().for_each(|text| section.warn(text));
    }
    for text in sources.remarks.iter().cloned().chain(of_runs) {
        section.warn(text);
    }
}

/// Returns a row for each group, with its best epoch if the table is detailed.
fn rows(groups: &[Group<'_>], is_detailed: bool) -> Vec<NamedRow> {
    let metrics = metrics(groups);
    let row = |group| of_group(group, &metrics, is_detailed);
    groups.iter().map(row).collect()
}

fn of_group(group: &Group<'_>, metrics: &BTreeSet<&str>, is_detailed: bool) -> NamedRow {
    let run = group.runs[0];
    let result = run.result();
    let mut row = row![
        "run" => &group.name,
        "runs" => Some(group.runs.len()).filter(|runs| *runs > 1),
        "seeds" => Some(group.num_seeds()).filter(|_| group.runs.len() > 1),
        "split" => result.map(|(split, ..)| split),
    ];
    let mut add = |name: &str, mean: Mean, cell: &dyn Fn(Option<f64>) -> Cell| {
        let (mean, deviation) = mean.unzip();
        row.extend(row![
            name => cell(mean),
            &format!("± {}", name.trim_end_matches(", %")) => cell(deviation.flatten()),
        ]);
    };
    let share = |share| percent(share, 2);
    let plain = |value| number(value, 4);
    let of_result = |figure: &str| group.mean(|run| run.result()?.2.value(figure));
    if let Some(best) = run.best() {
        let mean = group.mean(|run| Some(run.best()?.value));
        match best.figure == "top1" {
            true => add(&format!("best {}, %", best.name()), mean, &share),
            false => add(&format!("best {}", best.name()), mean, &plain),
        }
    }
    add("accuracy, %", of_result("top1"), &share);
    for metric in metrics {
        add(metric, of_result(metric), &plain);
    }
    add("loss", of_result("loss"), &plain);
    add("images/s", group.mean(Run::images_per_second), &|speed| {
        number(speed, 1)
    });
    let mean = |mean: Mean| mean.map(|(mean, _)| mean);
    let manifest = run.manifest();
    let is_detailed = is_detailed && group.runs.len() == 1;
    row.extend(row![
        "training loss" => plain(mean(group.mean(|run| run.epochs.last()?.train_loss))),
        "seconds" => number(mean(group.mean(Run::seconds)), 1),
        "model of epoch" => result.map(|(_, epoch, _)| epoch).filter(|_| is_detailed),
        "epochs" => run.epochs.last().map(EpochRecord::number),
        "ranks" => run.ranks_in_turn(),
        "memory, MiB" => mebibytes(run.peak_memory_bytes()),
        "global batch" => run.global_batch_size(),
        "model" => run.model(),
        "format" => run.setting("compute.dtype"),
        "data" => manifest.map(|manifest| &manifest.dataset.name),
        "CPU" => manifest.map(|manifest| &manifest.cpu_model),
        "commit" => manifest.map(|manifest| short(&manifest.commit)),
    ]);
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::Sources;
    use records::{Best, Evaluation, FinalTest, Manifest, Summary};

    fn run(seed: &str, scores: Evaluation) -> Run {
        let mut manifest = Manifest {
            commit: "abc".to_owned(),
            ..Manifest::default()
        };
        manifest.launch.ranks = 2;
        let settings = [("model.model", "resnet20"), ("run.seed", seed)];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Run {
            label: format!("seed{seed}"),
            manifests: vec![manifest],
            settings: vec![settings.into()],
            epochs: vec![EpochRecord {
                seconds_total: 157.0,
                test: Some(scores),
                ..EpochRecord::default()
            }],
            ..Run::default()
        }
    }

    fn sentences_of(runs: Vec<Run>) -> Vec<String> {
        let sources = Sources {
            runs,
            ..Sources::default()
        };
        sentences(&Facts::new(&sources, None))
    }

    #[test]
    fn the_page_begins_with_result_job_and_commit() {
        let top1 = |top1| Evaluation {
            top1: Some(top1),
            ..Evaluation::default()
        };
        let job = "resnet20, 2 ranks, 157 s, commit abc.";
        let expected = format!("99.20 % test accuracy after 1 epoch; {job}");
        assert_eq!(sentences_of(vec![run("0", top1(0.992))]), [expected]);
        let other = Run {
            settings: Vec::new(),
            ..run("2", top1(0.5))
        };
        let seeds = vec![other, run("0", top1(0.8)), run("1", top1(0.9))];
        let expected = format!(
            "Best of 2 by test accuracy, seed0 and 1 more: 85.00 ± 7.07 % test accuracy after 1 epoch, 2 runs; {job}"
        );
        assert_eq!(sentences_of(seeds), [expected]);
        assert!(sentences_of(vec![Run::default()]).is_empty());
    }

    #[test]
    fn the_val_split_chooses_the_best_and_the_test_split_is_only_shown() {
        let run = |seed: &str, rate: &str, [val, test]: [f64; 2], epoch| {
            let top1 = |top1| Evaluation {
                top1: Some(top1),
                ..Evaluation::default()
            };
            let mut run = run(seed, top1(0.0));
            let rate = ("optimizer.learning-rate".to_owned(), rate.to_owned());
            run.settings[0].extend([rate]);
            run.summary = Some(Summary {
                best: Some(Best {
                    epoch,
                    monitor: "val-top1".to_owned(),
                    value: val,
                }),
                test: Some(FinalTest {
                    epoch,
                    scores: top1(test),
                }),
                ..Summary::default()
            });
            run
        };
        let sources = Sources {
            runs: vec![
                run("0", "0.1", [0.5, 0.9], 0),
                run("0", "0.2", [0.8, 0.6], 2),
                run("1", "0.2", [0.8, 0.6], 3),
            ],
            ..Sources::default()
        };
        let facts = Facts::new(&sources, None);
        let sentence = sentences(&facts).remove(0);
        let expected = "60.00 ± 0.00 % test accuracy after 1 epoch, 2 runs;";
        assert!(
            sentence.starts_with("Best of 2 by val accuracy, "),
            "{sentence}"
        );
        assert!(sentence.contains(expected), "{sentence}");
        let mut section = Section::new("", "");
        summary(&facts, &mut section);
        let crate::document::Content::Table(table) = &section.contents[0] else {
            panic!("{section:?}")
        };
        let table = table.to_csv();
        assert!(table.contains("\"best val accuracy, %\""), "{table}");
        let tests: Vec<usize> = ["60", "90"].map(|test| table.find(test).unwrap()).to_vec();
        assert!(tests[0] < tests[1], "{table}");
    }

    #[test]
    fn a_task_without_classes_is_named_by_the_score_that_chose_its_best_epoch() {
        let scores = |iou| Evaluation {
            loss: 1.0,
            metrics: [("iou".to_owned(), iou), ("psnr".to_owned(), 9.0)].into(),
            ..Evaluation::default()
        };
        let best = Best {
            epoch: 0,
            monitor: "test-iou".to_owned(),
            value: 0.625,
        };
        let run = Run {
            summary: Some(Summary {
                best: Some(best),
                ..Summary::default()
            }),
            ..run("0", scores(0.625))
        };
        let sentences = sentences_of(vec![run]);
        assert!(
            sentences[0].starts_with("test iou 0.6250 after 1 epoch; "),
            "{sentences:?}"
        );
    }
}
