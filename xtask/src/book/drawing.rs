//! Drawings of a terminal and of a trace.
//!
//! In: lines of text, a trace of `--trace`. Out: SVG. Invariant: every character of a terminal has
//! its cell, whatever the fonts of the reader. Braille dots and blocks are shapes, not text.

use cluster::failure::{Outcome, failed};
use serde_json::Value;

const LINE: f64 = 16.0;
const COLUMN: f64 = 7.8;
const MARGIN: f64 = 12.0;
/// Columns and rows of the dots of U+2800, from the lowest bit.
const DOTS: [(f64, f64); 8] = [
    (0.0, 0.0),
    (0.0, 1.0),
    (0.0, 2.0),
    (1.0, 0.0),
    (1.0, 1.0),
    (1.0, 2.0),
    (0.0, 3.0),
    (1.0, 3.0),
];

/// Draws the lines of a terminal.
pub(super) fn terminal(title: &str, text: &str) -> String {
    let lines: Vec<Vec<char>> = text
        .lines()
        .map(|line| line.trim_end().chars().collect())
        .collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let mut drawn = String::new();
    for (row, line) in lines.iter().enumerate() {
        let y = MARGIN + row as f64 * LINE;
        let mut run = String::new();
        for (column, &c) in line.iter().chain(&[' ']).enumerate() {
            let x = MARGIN + column as f64 * COLUMN;
            let is_text = !matches!(c, ' ' | '█' | '\u{2800}'..='\u{28FF}');
            if is_text {
                run.push(c);
                continue;
            }
            drawn += &written(&run, x, y);
            run.clear();
            if c == '█' {
                drawn += &format!("<path d=\"M{x:.1} {y:.1}h{COLUMN}v{LINE}h-{COLUMN}\"/>\n");
            }
            let bits = u32::from(c).saturating_sub(0x2800) & 0xFF;
            for (bit, (right, down)) in DOTS.iter().enumerate() {
                if ('\u{2800}'..='\u{28FF}').contains(&c) && bits & (1 << bit) != 0 {
                    let (x, y) = (x + 2.0 + right * 3.9, y + 2.0 + down * 4.0);
                    drawn += &format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1.2\"/>\n");
                }
            }
        }
    }
    let width = columns as f64 * COLUMN + 2.0 * MARGIN;
    let height = lines.len() as f64 * LINE + 2.0 * MARGIN;
    format!(
        "<svg width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\" \
         xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" font-size=\"13\" font-family=\"DejaVu \
         Sans Mono, Menlo, Consolas, monospace\" fill=\"#D8DEE9\">\n<title>{title}</title>\n\
         <rect width=\"{width:.0}\" height=\"{height:.0}\" rx=\"6\" fill=\"#1E222A\"/>\n{drawn}</svg>\n"
    )
}

/// Draws a run of characters that ends before `x`, as wide as its cells.
fn written(run: &str, x: f64, y: f64) -> String {
    if run.is_empty() {
        return String::new();
    }
    let width = run.chars().count() as f64 * COLUMN;
    let (x, y) = (x - width, y + 12.5);
    let run = run.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{width:.1}\" \
         lengthAdjust=\"spacingAndGlyphs\">{run}</text>\n"
    )
}

/// A span of a thread.
struct Span<'a> {
    name: &'a str,
    rank: u64,
    thread: u64,
    start: f64,
    end: f64,
}

const COLOURS: [(&str, &str); 6] = [
    ("input", "#0072B2"),
    ("forward", "#D55E00"),
    ("backward", "#009E73"),
    ("exposed communication", "#C05B95"),
    ("optimizer", "#CC8B00"),
    ("bucket", "#56A7DE"),
];

/// Draws one step of a trace: a lane for the training and the communication of each rank.
pub(super) fn step_of_trace(trace: &str, step: usize) -> Outcome<String> {
    const WIDTH: f64 = 720.0;
    const LABELS: f64 = 150.0;
    const LANE: f64 = 26.0;
    const TOP: f64 = 56.0;
    let error = |error| failed!("trace: {error}");
    let events: Vec<Value> = serde_json::from_str(trace).map_err(error)?;
    let spans: Vec<Span> = events.iter().filter_map(span).collect();
    let of_root = |name: &str| {
        let mut found = spans
            .iter()
            .filter(|span| span.rank == 0 && span.name == name);
        found.nth(step)
    };
    let (Some(first), Some(last)) = (of_root("forward"), of_root("optimizer")) else {
        let text = format!("trace: no step {step} of rank 0. Train for more steps.");
        return Err(failed!("{text}"));
    };
    let (begin, end) = (first.start, last.end);
    let scale = (WIDTH - LABELS - 12.0) / (end - begin);
    let mut shapes = String::new();
    let mut lanes: Vec<(u64, u64)> = Vec::new();
    for span in spans
        .iter()
        .filter(|span| span.end > begin && span.start < end)
    {
        let Some(index) = COLOURS
            .iter()
            .position(|(name, _)| span.name.starts_with(name))
        else {
            continue;
        };
        if !lanes.contains(&(span.rank, span.thread)) {
            lanes.push((span.rank, span.thread));
        }
        let lane = (span.rank * 2 + span.thread) as f64;
        let (x, until) = (span.start.max(begin), span.end.min(end));
        let (x, width) = (LABELS + (x - begin) * scale, (until - x) * scale);
        shapes += &format!(
            "<rect x=\"{x:.1}\" y=\"{:.0}\" width=\"{:.1}\" height=\"{:.0}\" fill=\"{}\" stroke=\"#FFFFFF\" \
             stroke-width=\"0.5\"/>\n",
            TOP + lane * LANE,
            width.max(1.5),
            LANE - 6.0,
            COLOURS[index].1
        );
    }
    for (rank, thread) in &lanes {
        let what = if *thread == 0 {
            "training"
        } else {
            "communication"
        };
        let y = TOP + (rank * 2 + thread) as f64 * LANE + 14.0;
        shapes += &format!(
            "<text x=\"{:.0}\" y=\"{y:.0}\" text-anchor=\"end\">rank {rank}, {what}</text>\n",
            LABELS - 8.0
        );
    }
    let mut x = 12.0;
    for (name, colour) in COLOURS {
        shapes += &format!(
            "<rect x=\"{x:.0}\" y=\"30\" width=\"12\" height=\"10\" fill=\"{colour}\"/>\n\
             <text x=\"{:.0}\" y=\"39\">{name}</text>\n",
            x + 16.0
        );
        x += 36.0 + name.len() as f64 * 6.6;
    }
    let height = TOP + lanes.len() as f64 * LANE + 10.0;
    let milliseconds = (end - begin) / 1000.0;
    Ok(format!(
        "<svg width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" \
         xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"#1C1E21\">\n<title>A step of two ranks</title>\n\
         <rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"#FFFFFF\"/>\n\
         <text x=\"10\" y=\"18\" font-size=\"15\" font-weight=\"bold\">One step of rank 0, \
         {milliseconds:.1} ms</text>\n{shapes}</svg>\n"
    ))
}

fn span(event: &Value) -> Option<Span<'_>> {
    let start = event["ts"].as_f64()?;
    Some(Span {
        name: event["name"].as_str()?,
        rank: event["pid"].as_u64()?,
        thread: event["tid"].as_u64()?,
        start,
        end: start + event["dur"].as_f64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_keeps_its_characters_and_draws_its_dots() {
        let drawn = terminal("t", "ab <c\n\u{2801}\u{2800}█\n");
        assert!(drawn.contains(">ab</text>") && drawn.contains(">&lt;c</text>"));
        assert_eq!(drawn.matches("<circle").count(), 1);
        assert_eq!(drawn.matches("<path").count(), 1);
    }

    #[test]
    fn a_step_of_a_trace_has_a_lane_for_each_thread() {
        let event = |name: &str, rank: u64, thread: u64, start: f64| {
            format!(
                "{{\"name\":\"{name}\",\"pid\":{rank},\"tid\":{thread},\"ts\":{start},\"dur\":5}}"
            )
        };
        let events = [
            event("forward", 0, 0, 0.0),
            event("bucket 1", 0, 1, 6.0),
            event("optimizer", 0, 0, 12.0),
            event("forward", 1, 0, 1.0),
        ];
        let drawn = step_of_trace(&format!("[{}]", events.join(",")), 0).unwrap();
        assert_eq!(drawn.matches("text-anchor=\"end\"").count(), 3);
        assert!(step_of_trace("[]", 0).is_err());
    }
}
