//! Two charts of `benchmarks.md`: speed and memory of Lockstep and PyTorch on one rank.
//!
//! In: rows of `steps.csv`. Out: SVG. Invariant: one scale, which starts at zero; a bar without a
//! measurement is absent.

use cluster::failure::Outcome;

use super::results::{Job, jobs};
use super::table::{Filter, Table};

const WIDTH: f64 = 720.0;
const LABELS: f64 = 225.0;
const BAR: f64 = 11.0;
const TOP: f64 = 54.0;
const INK: &str = "#1C1E21";
const GRID: &str = "#D5D7DB";
const DEFAULT: (&str, &str, &str) = ("PyTorch default", "PyTorch's defaults", "#9BB7D4");
const BEST: (&str, &str, &str) = ("PyTorch best", "PyTorch's best settings", "#1F5F99");

struct Bar {
    value: f64,
    colour: &'static str,
}

/// Speed of Lockstep over that of PyTorch.
pub(super) fn speed(steps: &Table) -> Outcome<String> {
    draw(
        steps,
        "Speed of Lockstep over that of PyTorch, one core or GPU",
        |job, program| Some(job.ratio(program)?.middle()),
    )
}

/// Memory of Lockstep as a share of PyTorch's.
pub(super) fn memory(steps: &Table) -> Outcome<String> {
    draw(
        steps,
        "Peak memory of Lockstep over that of PyTorch, one core",
        |job, program| Some(job.program("Lockstep")?.mib? / job.program(program)?.mib?),
    )
}

/// Draws a bar for each job and each program that `value` has a number for.
fn draw(steps: &Table, title: &str, value: impl Fn(&Job, &str) -> Option<f64>) -> Outcome<String> {
    let jobs = jobs(steps, &Filter::parse("ranks=1")?)?;
    let mut groups: Vec<(String, Vec<Bar>)> = Vec::new();
    for job in &jobs {
        let label = label(job);
        let bar = |(program, _, colour)| {
            let value = value(job, program)?;
            Some(Bar { value, colour })
        };
        let bars: Vec<Bar> = [DEFAULT, BEST].into_iter().filter_map(bar).collect();
        // A job that two studies measured is drawn once.
        if !bars.is_empty() && groups.iter().all(|(earlier, _)| *earlier != label) {
            groups.push((label, bars));
        }
    }
    let all = groups.iter().flat_map(|(_, bars)| bars);
    let most = all.map(|bar| bar.value).fold(1.0, f64::max);
    let scale = (WIDTH - LABELS - 50.0) / most;
    let mut shapes = String::new();
    let mut y = TOP;
    for (label, bars) in &groups {
        let height = bars.len() as f64 * BAR;
        shapes += &text(LABELS - 8.0, y + height / 2.0 + 4.0, "end", label);
        for bar in bars {
            let (width, colour) = (bar.value * scale, bar.colour);
            shapes += &format!(
                "<rect x=\"{LABELS}\" y=\"{y}\" width=\"{width:.1}\" height=\"{:.0}\" fill=\"{colour}\"/>\n",
                BAR - 1.0
            );
            shapes += &text(
                LABELS + width + 4.0,
                y + BAR - 2.0,
                "start",
                &format!("{:.2}", bar.value),
            );
            y += BAR;
        }
        y += 8.0;
    }
    let one = LABELS + scale;
    let grid = format!(
        "<line x1=\"{one:.1}\" y1=\"{:.0}\" x2=\"{one:.1}\" y2=\"{y:.0}\" stroke=\"{INK}\" stroke-dasharray=\"3 3\"/>\n\
         <line x1=\"{LABELS}\" y1=\"{:.0}\" x2=\"{LABELS}\" y2=\"{y:.0}\" stroke=\"{GRID}\"/>\n",
        TOP - 4.0,
        TOP - 4.0
    );
    let mut legend = String::new();
    let mut x = LABELS;
    for (_, name, colour) in [DEFAULT, BEST] {
        legend +=
            &format!("<rect x=\"{x}\" y=\"28\" width=\"12\" height=\"10\" fill=\"{colour}\"/>\n");
        legend += &text(x + 17.0, 37.0, "start", &format!("compared with {name}"));
        x += 260.0;
    }
    let height = y + 8.0;
    Ok(format!(
        "<svg width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" font-family=\"sans-serif\" \
         font-size=\"11\" fill=\"{INK}\">\n<title>{title}</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"#FFFFFF\"/>\n\
         <text x=\"10\" y=\"18\" font-size=\"15\" font-weight=\"bold\">{title}</text>\n\
         {legend}{shapes}{grid}</svg>\n"
    ))
}

fn label(job: &Job) -> String {
    let machine = job.key("machine");
    let pixels = match job.key("pixels") {
        "32" => String::new(),
        pixels => format!(" at {pixels}"),
    };
    let (model, precision) = (job.key("model"), job.key("precision"));
    format!(
        "{model}{pixels}, {precision}, b{}, {machine}",
        job.key("batch")
    )
}

fn text(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>\n")
}
