//! Accuracies and losses of trainings, for the lines of a study.
//!
//! In: results of trainings. Out: text. Invariant: cells are ranked by the monitored split, which
//! is never the test split of a training with a val split.

use records::mean_and_deviation;
use serde_json::Value;

/// Scores of a training by name.
pub(crate) type Scores = Vec<(String, f64)>;

/// Returns the scores of a training by name, such as `val-top1`, the monitored one first.
pub(crate) fn of(result: &Value) -> Scores {
    let best = &result["best"];
    let (Some(monitor), Some(value)) = (best["monitor"].as_str(), best["value"].as_f64()) else {
        return Vec::new();
    };
    let mut scores = vec![(monitor.to_owned(), value)];
    if let Some((split, figure)) = monitor.split_once('-')
        && let Some(tested) = result["test"][figure].as_f64()
        && split != "test"
    {
        scores.push((format!("test-{figure}"), tested));
    }
    scores
}

/// Returns a score: an accuracy in per cent, another as a number.
pub(crate) fn shown(name: &str, value: f64, deviation: Option<f64>) -> String {
    let (scale, digits, unit) = match name.ends_with("-top1") || name.ends_with("-top5") {
        true => (100.0, 2, " %"),
        false => (1.0, 4, ""),
    };
    let value = format!("{:.digits$}", scale * value);
    let deviation = deviation.map_or_else(String::new, |deviation| {
        format!(" ± {:.digits$}", scale * deviation)
    });
    format!("{name} {value}{deviation}{unit}")
}

/// Returns a table of cells by the mean of their repetitions' scores, the best first if all have
/// one monitored loss or accuracy. `cells`: the id and the scores of each repetition.
pub(crate) fn table(mut cells: Vec<(&str, Vec<Scores>)>) -> Vec<String> {
    cells.retain(|(_, runs)| runs.iter().any(|scores| !scores.is_empty()));
    let means = |runs: &[Scores]| -> Vec<(String, f64, Option<f64>)> {
        let names = runs.iter().find(|scores| !scores.is_empty());
        let names = names.into_iter().flatten().map(|(name, _)| name);
        let mean = |name: &String| {
            let all = runs.iter().flatten().filter(|(other, _)| other == name);
            let values: Vec<f64> = all.map(|(_, value)| *value).collect();
            let (mean, deviation) = mean_and_deviation(&values)?;
            Some((name.clone(), mean, deviation))
        };
        names.filter_map(mean).collect()
    };
    let mut rows: Vec<_> = cells
        .iter()
        .map(|(id, runs)| (*id, runs.len(), means(runs)))
        .collect();
    let Some((_, _, first)) = rows.first() else {
        return Vec::new();
    };
    let monitor = first[0].0.clone();
    let is_accuracy = monitor.ends_with("-top1") || monitor.ends_with("-top5");
    let is_ranked = (is_accuracy || monitor.ends_with("-loss"))
        && rows.iter().all(|(_, _, scores)| scores[0].0 == monitor);
    let mut order = "in the order of the file".to_owned();
    if is_ranked {
        rows.sort_by(|(_, _, one), (_, _, other)| match is_accuracy {
            true => other[0].1.total_cmp(&one[0].1),
            false => one[0].1.total_cmp(&other[0].1),
        });
        order = format!("best {monitor} first");
    }
    let mut lines = vec![format!("trainings, {order}; mean ± sd of the runs")];
    for (id, num_runs, scores) in rows {
        let scores: Vec<String> = scores
            .iter()
            .map(|(name, mean, deviation)| shown(name, *mean, *deviation))
            .collect();
        let runs = records::counted(num_runs, "run");
        lines.push(format!("  {} | {runs} | {id}", scores.join(" | ")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn result(val: f64, test: f64) -> Scores {
        of(&json!({
            "best": {"epoch": 1, "monitor": "val-top1", "value": val},
            "test": {"epoch": 1, "top1": test, "loss": 1.0}
        }))
    }

    #[test]
    fn cells_are_ranked_by_the_val_split_and_show_mean_and_deviation() {
        let lines = table(vec![
            ("a", vec![result(0.5, 0.9), result(0.6, 0.9)]),
            ("none", vec![of(&json!(null))]),
            ("b", vec![result(0.75, 0.25)]),
        ]);
        assert_eq!(
            lines,
            [
                "trainings, best val-top1 first; mean ± sd of the runs",
                "  val-top1 75.00 % | test-top1 25.00 % | 1 run | b",
                "  val-top1 55.00 ± 7.07 % | test-top1 90.00 ± 0.00 % | 2 runs | a",
            ]
        );
        let loss = |value: f64| of(&json!({"best": {"monitor": "test-loss", "value": value}}));
        let lines = table(vec![("a", vec![loss(2.0)]), ("b", vec![loss(1.0)])]);
        assert_eq!(lines[1], "  test-loss 1.0000 | 1 run | b");
        assert!(table(Vec::new()).is_empty());
    }
}
