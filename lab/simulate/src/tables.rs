//! Predictions and measurements as tables.
//!
//! In: forecasts, measured groups, published figures. Out: lines. Invariant: each line of a
//! prediction is marked as a prediction.

use records::{PredictionFile, PublishedFigure, bytes};

use crate::Measured;

/// Returns one line for each method and number of ranks, then one for each omitted prediction.
pub fn forecast_lines(file: &PredictionFile, left_out: &[String]) -> Vec<String> {
    let profile = &file.profile;
    let compute_s = profile.forward_s
        + profile.backward_s
        + profile.optimizer_s
        + (profile.input_s + profile.other_s);
    let ranks_per_node = file.network.ranks_per_node.unwrap_or(1);
    let known = |number: Option<f64>| number.unwrap_or(f64::NAN);
    let mut lines = vec![
        format!(
            "predicted over {} ({}, {:.4} ms a message, {:.4} GB/s, {} a node): {} {}, batch {}, {:.2} ms of computing a step",
            file.network.name,
            file.network.source,
            file.network.alpha_s * 1e3,
            file.network.bytes_per_second / 1e9,
            records::counted(ranks_per_node, "rank"),
            file.model,
            file.dtype,
            file.batch_size_per_rank,
            compute_s * 1e3,
        ),
        format!(
            "predicted {:<26} {:>5} {:>6} {:>10} {:>10} {:>10} {:>11} {:>8} {:>6}  {}",
            "method",
            "ranks",
            "batch",
            "step ms",
            "comm ms",
            "exposed ms",
            "images/s",
            "speedup",
            "eff %",
            "best bucket"
        ),
    ];
    for record in &file.predictions {
        let best = match (record.best_bucket_bytes, record.best_images_per_second) {
            (Some(size), Some(speed)) => {
                format!(
                    "{} ({:+.1} %)",
                    bytes(size),
                    100.0 * (speed / known(record.images_per_second) - 1.0)
                )
            }
            _ => "-".to_owned(),
        };
        lines.push(format!(
            "predicted {:<26} {:>5} {:>6} {:>10.2} {:>10.2} {:>10.2} {:>11.1} {:>8.2} {:>6.1}  {best}",
            record.method,
            record.ranks,
            record.batch_size_per_rank,
            known(record.step_ms),
            known(record.communication_ms),
            known(record.exposed_ms),
            known(record.images_per_second),
            known(record.speedup),
            100.0 * known(record.efficiency),
        ));
    }
    lines.extend(left_out.iter().map(|why| format!("not predicted: {why}")));
    lines
}

/// Returns one line for each group, and one for each of its numbers of ranks.
pub fn measured_lines(groups: &[Measured]) -> Vec<String> {
    let mut lines = Vec::new();
    for group in groups {
        let settings: Vec<String> = group
            .settings
            .iter()
            .map(|(key, value)| format!("{key} {value}"))
            .collect();
        lines.push(format!("measured {}", settings.join(", ")));
        lines.push(format!(
            "measured {:>5} {:>6} {:>11} {:>4} {:>8} {:>6} {:>14} {:>15}",
            "ranks",
            "batch",
            "images/s",
            "n",
            "speedup",
            "eff %",
            "serial share %",
            "predicted vs. %"
        ));
        for run in &group.runs {
            let share = |value: Option<f64>| {
                value.map_or("-".to_owned(), |value| format!("{:.2}", 100.0 * value))
            };
            lines.push(format!(
                "measured {:>5} {:>6} {:>11.1} {:>4} {:>8} {:>6} {:>14} {:>15}{}",
                run.ranks,
                run.batch_size_per_rank,
                run.images_per_second,
                run.repetitions,
                run.scaled
                    .map_or("-".to_owned(), |scaled| format!("{:.3}", scaled.speedup)),
                run.scaled.map_or("-".to_owned(), |scaled| format!(
                    "{:.1}",
                    100.0 * scaled.efficiency
                )),
                share(run.scaled.and_then(|scaled| scaled.serial_fraction)),
                run.gap
                    .map_or("-".to_owned(), |gap| format!("{:+.1}", 100.0 * gap)),
                if run.disturbed { "  disturbed" } else { "" },
            ));
        }
    }
    lines
}

/// Returns a few lines for each figure.
pub fn published_lines(answers: &[PublishedFigure]) -> Vec<String> {
    let mut lines = vec![
        "published figures, and what the simulation makes of the assumptions next to each (a check of plausibility):"
            .to_owned(),
    ];
    for answer in answers {
        let predicted = 100.0 * answer.predicted_efficiency.unwrap_or(f64::NAN);
        let (kind, efficiency) = match answer.published_efficiency {
            None => (
                "predicted",
                format!("predicted efficiency {predicted:.1} %"),
            ),
            Some(published) => {
                let (published, gap) = (100.0 * published, predicted - 100.0 * published);
                let text = format!(
                    "published efficiency {published:.1} %, predicted {predicted:.1} %, gap {gap:+.1} points"
                );
                ("published", text)
            }
        };
        lines.push(format!("{kind} {}: {}", answer.source, answer.what));
        lines.push(format!("          {} ranks: {efficiency}", answer.ranks));
        lines.push(format!("          assumed: {}", answer.assumed));
    }
    lines
}
