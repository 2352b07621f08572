//! Which setting each framework competes with.
//!
//! In: what can be chosen. Out: rows of the document's sweep, and the best setting.
//! Invariant: one choice after the other, the options of one next to each other in time, the best of it kept for the next; what is
//! slower, fails or has other losses is kept as a row. Choices that matter on one rank are made there once, for all numbers of ranks.

use super::choice::{Choice, Setting, choices};
use super::document::{Document, row_of};
use super::framework::{Framework, OURS};
use super::measure::{Bench, Contender};
use super::measure_block;
use super::row::{Key, Row};
use cluster::failure::Outcome;

/// The setting of a framework for one job, measured as far as it is not known; `key` is that of its defaults.
pub(super) fn best(
    bench: &Bench<'_>,
    document: &mut Document,
    framework: Framework,
    key: &Key,
) -> Outcome<Setting> {
    let threads = bench.settings.threads;
    if let Some(setting) = frozen(document, key) {
        return Ok(setting);
    }
    if !bench.settings.is_swept || bench.gap(Contender::Peer(framework), key).is_some() {
        return Ok(Setting::default());
    }
    let all = choices(framework, key.ranks, threads);
    let on_one_rank = Key {
        framework: framework.alone().title().to_owned(),
        ranks: 1,
        ..key.clone()
    };
    let choices_alone = choices(framework.alone(), 1, threads);
    let is_known = key.ranks > 1 && is_whole(document, &on_one_rank, &choices_alone);
    let mut setting = Setting::default();
    if is_known {
        setting = winner(document, framework.alone(), &on_one_rank, &choices_alone).among(&all);
    }
    let tried: Vec<Choice> = all
        .into_iter()
        .filter(|choice| !is_known || choice.is_communication)
        .collect();
    reference(bench, document, key)?;
    for choice in &tried {
        for option in choice.options {
            let key = Key {
                setting: setting.with(choice, option),
                tried: choice.name.to_owned(),
                ..key.clone()
            };
            measure_block(
                bench,
                row_of(&mut document.sweep, &key, threads),
                Contender::Peer(framework),
                0,
            );
            document.save()?;
        }
        setting = best_of(document, key, choice, &setting);
    }
    Ok(setting)
}

/// The setting of the rounds of this job, if they began: all of them have one.
fn frozen(document: &Document, key: &Key) -> Option<Setting> {
    let mut rows = document.rows.iter();
    rows.find(|row| is_same_job(&row.key, key) && !row.blocks.is_empty())
        .map(|row| row.key.setting.clone())
}

/// Whether every option of these choices has been tried.
fn is_whole(document: &Document, key: &Key, choices: &[Choice]) -> bool {
    let tried = |choice: &Choice| {
        document
            .sweep
            .iter()
            .filter(|row| is_same_job(&row.key, key) && row.key.tried == choice.name)
            .count()
    };
    choices
        .iter()
        .all(|choice| tried(choice) >= choice.options.len())
}

/// What a complete sweep over these choices has found.
fn winner(document: &Document, framework: Framework, key: &Key, choices: &[Choice]) -> Setting {
    let key = Key {
        framework: framework.title().to_owned(),
        ..key.clone()
    };
    choices.iter().fold(Setting::default(), |setting, choice| {
        best_of(document, &key, choice, &setting)
    })
}

/// The fastest that does the same work, of equals the first; the setting as it was where none does.
fn best_of(document: &Document, key: &Key, choice: &Choice, setting: &Setting) -> Setting {
    let our_key = Key {
        framework: OURS.to_owned(),
        ..key.clone()
    };
    let ours = document
        .sweep
        .iter()
        .find(|row| is_same_job(&row.key, &our_key));
    let speed = |row: &Row| {
        row.quiet_median()
            .filter(|_| ours.is_some_and(|ours| row.agrees_with(ours) == Some(true)))
    };
    let rows = document
        .sweep
        .iter()
        .filter(|row| is_same_job(&row.key, key) && row.key.tried == choice.name);
    let known = rows.filter_map(|row| Some((row, speed(row)?)));
    known
        .rev()
        .max_by(|(_, a), (_, b)| a.total_cmp(b))
        .map_or_else(|| setting.clone(), |(row, _)| row.key.setting.clone())
}

/// Our own losses, by which the others' work is judged.
fn reference(bench: &Bench<'_>, document: &mut Document, key: &Key) -> Outcome {
    let key = Key {
        framework: OURS.to_owned(),
        setting: Setting::default(),
        tried: "losses".to_owned(),
        ..key.clone()
    };
    measure_block(
        bench,
        row_of(&mut document.sweep, &key, bench.settings.threads),
        Contender::Ours,
        0,
    );
    document.save()
}

fn is_same_job(a: &Key, b: &Key) -> bool {
    (&a.framework, &a.model, &a.dtype, a.ranks) == (&b.framework, &b.model, &b.dtype, b.ranks)
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;
    use crate::machine;
    use records::Block;

    fn tried(framework: &str, choice: &Choice, option: &str, rate: f64, losses: (f64, f64)) -> Row {
        let mut row = row(framework, 1, &[rate], losses);
        row.key.setting = Setting::default().with(choice, option);
        row.key.tried = choice.name.to_owned();
        row
    }

    #[test]
    fn the_fastest_option_of_the_same_work_is_kept_and_a_failed_one_is_not() {
        let all = choices(Framework::PyTorch, 1, 1);
        let folder = std::env::temp_dir().join("lockstep-jobs-no-such-folder");
        let mut document = Document::open(
            &folder,
            machine::Program::default(),
            machine::machine(),
            serde_json::Map::new(),
            true,
        )
        .unwrap();
        let good = (2.5, 2.0);
        document.sweep = vec![
            row(OURS, 1, &[100.0], good),
            tried("PyTorch DDP", &all[0], "channels-last", 50.0, good),
            // Faster, but other losses.
            tried("PyTorch DDP", &all[0], "contiguous", 80.0, (9.0, 9.0)),
            tried("PyTorch DDP", &all[1], "eager", 50.0, good),
            tried("PyTorch DDP", &all[1], "compile", 60.0, good),
            Row {
                blocks: Vec::new(),
                gap: Some("no such library".into()),
                ..tried("PyTorch DDP", &all[2], "jemalloc", 0.0, good)
            },
        ];
        let key = Key {
            framework: "PyTorch DDP".into(),
            ..document.sweep[0].key.clone()
        };
        assert_eq!(
            winner(&document, Framework::PyTorch, &key, &all).shown(),
            "mode compile"
        );
        assert!(
            is_whole(&document, &key, &all[..2]) && !is_whole(&document, &key, &all),
            "a choice is cut off"
        );
        // As fast as the default before it.
        document.sweep[4].blocks[0].images_per_second = 50.0;
        assert_eq!(
            winner(&document, Framework::PyTorch, &key, &all),
            Setting::default()
        );
        let disturbed = Block {
            images_per_second: 90.0,
            is_disturbed: true,
            ..document.sweep[4].blocks[0].clone()
        };
        document.sweep[4].blocks.push(disturbed);
        assert_eq!(
            winner(&document, Framework::PyTorch, &key, &all),
            Setting::default(),
            "the quiet block counts"
        );
        assert_eq!(frozen(&document, &key), None);
        document.rows = vec![tried("PyTorch DDP", &all[0], "contiguous", 80.0, good)];
        assert_eq!(
            frozen(&document, &key).unwrap().shown(),
            "layout contiguous"
        );
    }
}
