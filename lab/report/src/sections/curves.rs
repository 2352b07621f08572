//! Curves of trainings over epochs, samples or time, as the reader chooses.
//!
//! In: the moments of repeated trainings. Out: one figure for each horizontal axis.
//! Invariant: several repetitions are one line, their mean, in a band of the standard deviation.
//! The line ends with the shortest repetition.

use crate::chart::{Axis, Kind, Marks, Point, Series};
use crate::document::Section;
use records::mean_and_deviation;

/// Names of a horizontal axis in its files, in titles and on the switch.
const VIEWS: [[&str; 2]; 3] = [
    ["epochs", "epoch"],
    ["samples", "samples"],
    ["time", "time"],
];

const UNITS: [(f64, &str); 3] = [(3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds")];

/// A value after an epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moment {
    /// Epochs, samples and seconds so far, as far as they are known.
    pub(super) at: [Option<f64>; VIEWS.len()],
    pub(super) value: f64,
}

/// A line of a figure.
#[derive(Debug)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) style: usize,
    pub(super) kind: Kind,
    /// Moments of each repetition, by ascending epochs.
    pub(super) runs: Vec<Vec<Moment>>,
}

impl Curve {
    /// Returns the means at the epochs that all repetitions have.
    fn points(&self, view: usize, unit: f64) -> Vec<Point> {
        let mut runs: Vec<_> = self.runs.iter().filter(|run| !run.is_empty()).collect();
        runs.sort_by_key(|run| run.len());
        let Some(shortest) = runs.first() else {
            return Vec::new();
        };
        let point = |epoch: &Moment| {
            let is_it = |other: &&Moment| other.at[0] == epoch.at[0];
            let moments = runs.iter().map(|run| run.iter().find(is_it));
            let moments = moments.collect::<Option<Vec<&Moment>>>()?;
            let x = moments.iter().map(|one| one.at[view]);
            let (x, _) = mean_and_deviation(&x.collect::<Option<Vec<f64>>>()?)?;
            let values: Vec<f64> = moments.iter().map(|one| one.value).collect();
            let (y, deviation) = mean_and_deviation(&values)?;
            Some(Point {
                x: x / unit,
                y,
                range: deviation.map(|deviation| (y - deviation, y + deviation)),
            })
        };
        shortest.iter().filter_map(point).collect()
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.runs.iter().flatten().map(|moment| moment.value)
    }
}

/// Draws curves; `y` is made for their values, and a target is a grey line. The words are the
/// beginnings of id and title, and the caption.
pub(super) fn draw(
    section: &mut Section,
    [id, title, caption]: [&str; 3],
    y: impl Fn(&mut dyn Iterator<Item = f64>) -> Axis,
    curves: &[Curve],
    target: Option<f64>,
) {
    let y = y(&mut curves.iter().flat_map(Curve::values).chain(target));
    let repeated = match curves.iter().any(|one| one.runs.len() > 1) {
        true => " Lines are means of the repetitions, bands their standard deviation.",
        false => "",
    };
    for (view, [file, name]) in VIEWS.into_iter().enumerate() {
        let moments = curves.iter().flat_map(|one| one.runs.iter().flatten());
        let last = moments.filter_map(|one| one.at[view]).fold(0.0, f64::max);
        let (unit, word) = match view {
            2 => UNITS.into_iter().find(|(unit, _)| last >= 5.0 * unit),
            _ => None,
        }
        .unwrap_or((1.0, UNITS[2].1));
        let series = curves
            .iter()
            .map(|one| Series::line(&one.name, one.style, one.kind, one.points(view, unit)));
        let mut series: Vec<Series> = series.filter(|one| one.points().next().is_some()).collect();
        if series.is_empty() {
            continue;
        }
        if let Some(target) = target {
            let line = [0.0, last / unit].map(|x| Point::new(x, target)).to_vec();
            series.push(Series::line("target", 0, Kind::Reference, line));
        }
        let x = match view {
            2 => Axis::from_zero(format!("{word}, with evaluation and checkpoints")),
            _ => Axis::whole(file),
        };
        section.figure(
            [
                &format!("{id}-by-{file}"),
                &format!("{title} by {name}"),
                &format!("{caption}{repeated}"),
            ],
            Some((view, name)),
            x,
            Marks::Lines(y.clone(), series),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_are_one_line_with_their_deviation_as_far_as_all_have_come() {
        let moment = |epoch: f64, value| Moment {
            at: [Some(epoch), None, Some(60.0 * epoch)],
            value,
        };
        let curve = Curve {
            name: "c".to_owned(),
            style: 0,
            kind: Kind::Evaluated,
            runs: vec![
                vec![moment(1.0, 1.0), moment(2.0, 4.0), moment(3.0, 9.0)],
                vec![moment(1.0, 3.0), moment(2.0, 4.0)],
                Vec::new(),
            ],
        };
        let mut section = Section::new("", "");
        let y = |_: &mut dyn Iterator<Item = f64>| Axis::linear("y");
        draw(&mut section, ["c", "C", "W."], y, &[curve], None);
        let figures = section.contents.iter().map(|content| match content {
            crate::document::Content::Figure(figure) => {
                (figure.id.as_str(), figure.data().to_csv())
            }
            other => panic!("{other:?}"),
        });
        let figures: Vec<(&str, String)> = figures.collect();
        let [(by_epochs, epochs), (by_time, time)] = &figures[..] else {
            panic!("{figures:?}")
        };
        assert_eq!((*by_epochs, *by_time), ("c-by-epochs", "c-by-time"));
        let deviation = 2.0_f64.sqrt();
        let first = format!("c,1,2,{},{}", 2.0 - deviation, 2.0 + deviation);
        assert_eq!(
            epochs.lines().skip(1).collect::<Vec<_>>(),
            [&first, "c,2,4,4,4"]
        );
        assert!(time.contains("\nc,60,2,"), "{time}");
    }
}
