//! Axes: scale, range and ticks.
//!
//! In: the values of an axis. Out: a coordinate of plotters and the text of each tick.
//! Invariant: the range holds every value; a logarithmic axis draws positive values only.

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use std::ops::Range;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    /// Quantity and unit.
    pub(crate) label: String,
    pub(crate) is_logarithmic: bool,
    unit: Unit,
    from_zero: bool,
    is_whole: bool,
    /// Values at which ticks are drawn; chosen by plotters if absent.
    ticks: Option<Vec<f64>>,
}

/// Unit of the ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unit {
    #[default]
    Plain,
    /// Percentage of a share.
    Share,
    Bytes,
}

/// One axis of a drawing with its ticks; coordinates of a logarithmic axis are logarithms.
pub(super) struct Coordinate {
    axis: RangedCoordf64,
    pub(super) ticks: Vec<f64>,
}

impl Ranged for Coordinate {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, pixels: (i32, i32)) -> i32 {
        self.axis.map(value, pixels)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            Vec::new()
        } else {
            self.ticks.clone()
        }
    }

    fn range(&self) -> Range<f64> {
        self.axis.range()
    }
}

impl Axis {
    pub(crate) fn linear(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            is_logarithmic: false,
            unit: Unit::Plain,
            from_zero: false,
            is_whole: false,
            ticks: None,
        }
    }

    pub(crate) fn from_zero(label: impl Into<String>) -> Self {
        Self {
            from_zero: true,
            ..Self::linear(label)
        }
    }

    /// Returns an axis from zero with ticks at whole numbers.
    pub(crate) fn whole(label: impl Into<String>) -> Self {
        Self {
            is_whole: true,
            ..Self::from_zero(label)
        }
    }

    pub(crate) fn logarithmic(label: impl Into<String>) -> Self {
        Self {
            is_logarithmic: true,
            ..Self::linear(label)
        }
    }

    /// Returns an axis with ticks at the measured counts, logarithmic over more than two octaves.
    pub(crate) fn of_counts(label: &str, counts: impl IntoIterator<Item = f64>) -> Self {
        let mut ticks: Vec<f64> = counts.into_iter().filter(|count| *count > 0.0).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let is_logarithmic = ticks.len() > 2 && ticks[ticks.len() - 1] / ticks[0] > 4.0;
        Self {
            is_logarithmic,
            ticks: Some(ticks),
            ..Self::linear(label)
        }
    }

    pub(crate) fn in_unit(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    /// Returns the coordinate of a value; `None` if the axis cannot show it.
    pub(super) fn at(&self, value: f64) -> Option<f64> {
        let at = if self.is_logarithmic {
            value.log10()
        } else {
            value
        };
        at.is_finite().then_some(at)
    }

    /// Chooses range and ticks for `values`.
    pub(super) fn place(
        &self,
        values: impl IntoIterator<Item = f64>,
        most_ticks: usize,
    ) -> Coordinate {
        let placed: Vec<f64> = values
            .into_iter()
            .filter_map(|value| self.at(value))
            .collect();
        let mut low = placed.iter().copied().fold(f64::INFINITY, f64::min);
        let mut high = placed.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            low = 0.0;
            high = 1.0;
        }
        if self.from_zero {
            low = low.min(0.0);
            high = high.max(0.0);
        }
        if high - low <= 1e-9 * high.abs().max(low.abs()) {
            high += if high == 0.0 { 1.0 } else { high.abs() * 0.1 };
        }
        let margin = 0.05 * (high - low);
        let low = if self.from_zero && low == 0.0 {
            low
        } else {
            low - margin
        };
        let high = high + margin;
        let ticks = match &self.ticks {
            Some(ticks) => ticks.iter().filter_map(|tick| self.at(*tick)).collect(),
            None if self.is_logarithmic => self.logarithmic_ticks(low, high),
            None => RangedCoordf64::from(low..high).key_points(most_ticks),
        };
        let is_shown = |tick: &f64| !self.is_whole || tick.fract() == 0.0;
        let mut ticks: Vec<f64> = ticks.into_iter().filter(is_shown).collect();
        let every = ticks.len().div_ceil(most_ticks).max(1);
        ticks = ticks.into_iter().step_by(every).collect();
        Coordinate {
            axis: RangedCoordf64::from(low..high),
            ticks,
        }
    }

    fn logarithmic_ticks(&self, low: f64, high: f64) -> Vec<f64> {
        let base: f64 = if self.unit == Unit::Bytes { 2.0 } else { 10.0 };
        let factors: &[f64] = match self.unit {
            Unit::Bytes => &[1.0],
            _ if high - low < 2.5 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let powers = (low / base.log10()).floor() as i32..=(high / base.log10()).ceil() as i32;
        let tick = |power: i32, factor: &f64| (factor * base.powi(power)).log10();
        let ticks = powers.flat_map(|power| factors.iter().map(move |factor| tick(power, factor)));
        ticks.filter(|tick| (low..=high).contains(tick)).collect()
    }

    /// Returns the text of the tick at a coordinate.
    pub(super) fn text(&self, at: f64) -> String {
        let value = if self.is_logarithmic {
            10f64.powf(at)
        } else {
            at
        };
        match self.unit {
            Unit::Plain => shortest(value),
            Unit::Share => format!("{} %", shortest(100.0 * value)),
            Unit::Bytes => records::bytes(value.round() as u64),
        }
    }
}

/// Formats a tick with as few decimals as possible.
fn shortest(value: f64) -> String {
    let is_exact = |decimals: &usize| {
        let unit = 10f64.powi(*decimals as i32);
        ((value * unit).round() / unit - value).abs() <= 1e-6 * value.abs().max(1e-9)
    };
    records::decimal(value, (0..9).find(is_exact).unwrap_or(9))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis, values: &[f64], most_ticks: usize) -> Vec<String> {
        let coordinate = axis.place(values.iter().copied(), most_ticks);
        coordinate
            .ticks
            .iter()
            .map(|tick| axis.text(*tick))
            .collect()
    }

    #[test]
    fn ticks_are_round_whole_or_where_they_were_measured() {
        let axis = Axis::from_zero("x");
        assert_eq!(
            texts(&axis, &[3.0, 9.7], 6),
            ["0", "2", "4", "6", "8", "10"]
        );
        assert_eq!(texts(&Axis::whole("epochs"), &[2.0], 6), ["0", "1", "2"]);
        assert_eq!(
            texts(&axis.in_unit(Unit::Share), &[1.0], 4)[..2],
            ["0 %", "50 %"]
        );
        let ranks = [1.0, 2.0, 4.0, 2.0];
        assert_eq!(
            texts(&Axis::of_counts("ranks", ranks), &ranks, 8),
            ["1", "2", "4"]
        );
        assert!(Axis::of_counts("ranks", [1.0, 2.0, 64.0]).is_logarithmic);
    }

    #[test]
    fn logarithmic_ticks_thin_out_over_many_decades() {
        let axis = Axis::logarithmic("x");
        assert_eq!(texts(&axis, &[1.0, 9.0], 6), ["1", "2", "5", "10"]);
        assert_eq!(texts(&axis, &[0.001, 1000.0], 8).len(), 7);
        let sizes = axis.in_unit(Unit::Bytes);
        assert_eq!(
            texts(&sizes, &[1024.0, 4096.0], 4),
            ["1 KiB", "2 KiB", "4 KiB"]
        );
    }

    #[test]
    fn an_axis_of_one_value_or_none_has_a_range_around_it() {
        for values in [&[][..], &[5.0], &[0.0], &[f64::NAN], &[-3.0]] {
            let counts = Axis::of_counts("x", values.iter().copied());
            for axis in [
                Axis::linear("x"),
                Axis::from_zero("x"),
                Axis::logarithmic("x"),
                counts,
            ] {
                let range = axis.place(values.iter().copied(), 5).range();
                assert!(range.start < range.end, "{axis:?} {values:?} {range:?}");
                let placed = values.iter().filter_map(|value| axis.at(*value));
                assert!(
                    placed.into_iter().all(|at| range.contains(&at)),
                    "{axis:?} {range:?}"
                );
            }
        }
    }
}
