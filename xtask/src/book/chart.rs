//! Two charts of `benchmarks.md`: speed and memory of Lockstep and PyTorch on one rank.
//!
//! In: rows of `steps.csv`. Out: SVG. Invariant: one scale, which starts at zero; a bar without a
//! measurement is absent.

use cluster::failure::Outcome;

use super::results::{Job, jobs};
use super::table::{Filter, Table};

const WIDTH: f64 = 720.0;
const LABELS: f64 = 265.0;
const BAR: f64 = 11.0;
const TOP: f64 = 54.0;
/// Programs that Lockstep is compared with, their names in the legend, and their colours.
const PROGRAMS: [(&str, &str, &str); 2] = [
    ("PyTorch default", "PyTorch's defaults", "#9BB7D4"),
    ("PyTorch best", "PyTorch's best settings", "#1F5F99"),
];

/// Speed of Lockstep over that of PyTorch.
pub(super) fn speed(steps: &Table) -> Outcome<String> {
    draw(
        steps,
        "Speed of Lockstep over that of PyTorch, one core or GPU",
        |job, program| {
            let ratio = job.ratio(program)?;
            Some(ratio.median)
        },
    )
}

/// Memory of Lockstep as a share of PyTorch's.
pub(super) fn memory(steps: &Table) -> Outcome<String> {
    draw(
        steps,
        "Peak memory of Lockstep over that of PyTorch, one core",
        |job, program| {
            let mib = |program| job.numbers(program, "MiB").first().copied();
            Some(mib(records::OURS)? / mib(program)?)
        },
    )
}

/// Draws a bar for each job and each program that `value` has a number for.
fn draw(steps: &Table, title: &str, value: impl Fn(&Job, &str) -> Option<f64>) -> Outcome<String> {
    let mut groups: Vec<(String, [Option<f64>; 2])> = Vec::new();
    for job in &jobs(steps, &Filter::parse("ranks=1")?)? {
        let label = label(job);
        let values = PROGRAMS.map(|(program, ..)| value(job, program));
        // A job that two studies measured is drawn once.
        if values != [None; 2] && groups.iter().all(|(earlier, _)| *earlier != label) {
            groups.push((label, values));
        }
    }
    let all = groups.iter().flat_map(|(_, values)| values).flatten();
    let scale = (WIDTH - LABELS - 50.0) / all.copied().fold(1.0, f64::max);
    let mut shapes = String::new();
    let mut y = TOP;
    for (label, values) in &groups {
        let num_bars = values.iter().flatten().count() as f64;
        shapes += &text(LABELS - 8.0, y + num_bars * BAR / 2.0 + 4.0, "end", label);
        for (value, (.., colour)) in values.iter().zip(PROGRAMS) {
            if let Some(value) = value {
                let end = LABELS + value * scale + 4.0;
                shapes += &rectangle(LABELS, y, value * scale, colour);
                shapes += &text(end, y + BAR - 2.0, "start", &format!("{value:.2}"));
                y += BAR;
            }
        }
        y += 8.0;
    }
    for (x, (_, name, colour)) in [LABELS - 40.0, LABELS + 200.0].into_iter().zip(PROGRAMS) {
        shapes += &rectangle(x, 28.0, 12.0, colour);
        shapes += &text(x + 17.0, 37.0, "start", &format!("compared with {name}"));
    }
    for (x, style) in [
        (LABELS, "stroke=\"#D5D7DB\""),
        (
            LABELS + scale,
            "stroke=\"#1C1E21\" stroke-dasharray=\"3 3\"",
        ),
    ] {
        let top = TOP - 4.0;
        shapes += &format!("<path d=\"M{x:.1} {top}V{y}\" {style}/>\n");
    }
    let height = y + 8.0;
    Ok(format!(
        "<svg width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" font-family=\"sans-serif\" \
         font-size=\"11\" fill=\"#1C1E21\">\n<title>{title}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"#FFFFFF\"/>\n\
         <text x=\"10\" y=\"18\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n\
         {shapes}</svg>\n"
    ))
}

fn label(job: &Job) -> String {
    let [model, pixels, precision, batch, machine] =
        ["model", "pixels", "precision", "batch", "machine"].map(|name| job.key(name));
    let pixels = match pixels {
        "" | "32" => String::new(),
        pixels => format!(" at {pixels}"),
    };
    format!("{model}{pixels}, {precision}, b{batch}, {machine}")
}

fn rectangle(x: f64, y: f64, width: f64, colour: &str) -> String {
    let height = BAR - 1.0;
    format!(
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>\n"
    )
}

fn text(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n")
}
