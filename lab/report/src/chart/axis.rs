//! Axes: where ticks stand and what they say.
//!
//! In: the values of an axis. Out: its range in the plot's coordinates, ticks, their texts.
//! Invariant: the range holds every value; there are two ticks at least; a logarithmic axis holds positive values only.

use crate::document::grouped;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use std::ops::Range;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    /// What it measures, with its unit.
    pub(crate) label: String,
    /// How values are spaced.
    pub(crate) scale: Scale,
    /// How ticks are written.
    pub(crate) unit: Unit,
    /// Whether it begins at zero; linear ones only.
    pub(crate) from_zero: bool,
    /// Whether ticks stand at whole numbers only.
    pub(crate) is_whole: bool,
    /// Where ticks stand, if the values themselves are the best places.
    pub(crate) ticks: Option<Vec<f64>>,
}

/// How values are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    Linear,
    /// By ratio, ticks at powers of ten and between.
    Decimal,
    /// By ratio, ticks at powers of two.
    Binary,
}

/// How ticks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Plain,
    /// 0.5 as 50 %.
    Share,
    /// 4096 as 4 KiB.
    Bytes,
}

/// An axis with its range and ticks, in the plot's coordinates: logarithms on logarithmic axes.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) ticks: Vec<(f64, String)>,
    scale: Scale,
}

impl Axis {
    /// A linear axis of plain numbers.
    pub(crate) fn linear(label: &str) -> Self {
        Self {
            label: label.to_owned(),
            scale: Scale::Linear,
            unit: Unit::Plain,
            from_zero: false,
            is_whole: false,
            ticks: None,
        }
    }

    /// As [`linear`](Self::linear), from zero.
    pub(crate) fn from_zero(label: &str) -> Self {
        Self {
            from_zero: true,
            ..Self::linear(label)
        }
    }

    /// Of things that are counted, from zero.
    pub(crate) fn whole(label: &str) -> Self {
        Self {
            from_zero: true,
            is_whole: true,
            ..Self::linear(label)
        }
    }

    pub(crate) fn logarithmic(label: &str) -> Self {
        Self {
            scale: Scale::Decimal,
            ..Self::linear(label)
        }
    }

    /// Numbers of ranks or samples, with ticks where there are some: by ratio if they go far.
    pub(crate) fn of_counts(label: &str, values: &[f64]) -> Self {
        let mut ticks: Vec<f64> = values
            .iter()
            .copied()
            .filter(|value| *value > 0.0)
            .collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let is_wide = ticks.len() > 2 && ticks[ticks.len() - 1] / ticks[0] > 4.0;
        let scale = if is_wide {
            Scale::Binary
        } else {
            Scale::Linear
        };
        Self {
            scale,
            ticks: Some(ticks),
            ..Self::linear(label)
        }
    }

    /// With ticks written in this unit.
    pub(crate) fn in_unit(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    /// Finds range and ticks for `values` with room for about so many ticks.
    pub(super) fn place(&self, values: impl Iterator<Item = f64>, most_ticks: usize) -> Placed {
        let fits = |value: &f64| value.is_finite() && (self.scale == Scale::Linear || *value > 0.0);
        let (mut low, mut high) = values
            .filter(fits)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            });
        if low > high {
            (low, high) = if self.scale == Scale::Linear {
                (0.0, 1.0)
            } else {
                (1.0, 10.0)
            };
        }
        match self.scale {
            Scale::Linear => self.place_linear(low, high, most_ticks),
            Scale::Decimal | Scale::Binary => self.place_logarithmic(low, high, most_ticks),
        }
    }

    fn place_linear(&self, mut low: f64, mut high: f64, most_ticks: usize) -> Placed {
        if self.from_zero {
            (low, high) = (low.min(0.0), high.max(0.0));
        }
        if high - low <= f64::EPSILON * high.abs().max(low.abs()) {
            let around = if high == 0.0 { 1.0 } else { high.abs() * 0.1 };
            (low, high) = (
                if self.from_zero { low } else { low - around },
                high + around,
            );
        }
        let own = self.ticks.as_ref().map(|ticks| thinned(ticks, most_ticks));
        let step = nice_step((high - low) / most_ticks.max(2) as f64).max(if self.is_whole {
            1.0
        } else {
            0.0
        });
        let is_own = own.is_some();
        let ticks = own.unwrap_or_else(|| {
            let (first, last) = (
                (low / step + 1e-9).floor() as i64,
                (high / step - 1e-9).ceil() as i64,
            );
            (first..=last).map(|index| index as f64 * step).collect()
        });
        if is_own {
            let around = (high - low) * 0.06;
            (low, high) = (low - around, high + around);
        } else {
            (low, high) = (low.min(ticks[0]), high.max(ticks[ticks.len() - 1]));
        }
        let decimals = if is_own {
            0
        } else {
            decimals_of(step, self.unit)
        };
        let ticks = ticks
            .into_iter()
            .map(|value| (value, self.write(value, decimals)))
            .collect();
        Placed {
            low,
            high,
            ticks,
            scale: self.scale,
        }
    }

    fn place_logarithmic(&self, low: f64, high: f64, most_ticks: usize) -> Placed {
        let (from, to) = (low.log10(), high.log10());
        let around = ((to - from) * 0.05).max(0.06);
        let (low, high) = (from - around, to + around);
        let ticks = match (&self.ticks, self.scale) {
            (Some(ticks), _) => thinned(ticks, most_ticks),
            (None, Scale::Binary) => {
                let powers = |value: f64| value / 2f64.log10();
                // Nothing has half a byte or half a rank.
                let (first, last) = (
                    powers(low).ceil().max(0.0) as i32,
                    powers(high).floor() as i32,
                );
                let few = |every: &i32| {
                    (first..=last).filter(|power| power % every == 0).count() <= most_ticks
                };
                let every = [1, 2, 5, 10].into_iter().find(few).unwrap_or(20);
                (first..=last)
                    .filter(|power| power % every == 0)
                    .map(|power| 2f64.powi(power))
                    .collect()
            }
            (None, _) => decimal_ticks(low, high, most_ticks),
        };
        let ticks = ticks
            .into_iter()
            .map(|value| (value.log10(), self.write(value, decimals_below(value))))
            .collect();
        Placed {
            low,
            high,
            ticks,
            scale: self.scale,
        }
    }

    fn write(&self, value: f64, decimals: usize) -> String {
        match self.unit {
            Unit::Plain => grouped(value, decimals),
            Unit::Share => format!("{} %", grouped(100.0 * value, decimals)),
            Unit::Bytes => records::bytes(value as u64),
        }
    }
}

impl Placed {
    /// Where a value stands; `None` where it cannot.
    pub(super) fn at(&self, value: f64) -> Option<f64> {
        let at = if self.scale == Scale::Linear {
            value
        } else {
            value.log10()
        };
        at.is_finite().then_some(at)
    }

    /// Where `factor` times the value stands that stands at `position`.
    pub(super) fn scaled(&self, position: f64, factor: f64) -> f64 {
        if self.scale == Scale::Linear {
            position * factor
        } else {
            position + factor.log10()
        }
    }
}

impl Ranged for Placed {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (f64::from(to - from) * (value - self.low) / (self.high - self.low)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() {
            return Vec::new();
        }
        self.ticks
            .iter()
            .map(|(at, _)| *at)
            .filter(|at| (self.low..=self.high).contains(at))
            .collect()
    }

    fn range(&self) -> Range<f64> {
        self.low..self.high
    }
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn nice_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * power >= least * 0.999)
        .unwrap_or(10.0);
    factor * power
}

fn decimals_of(step: f64, unit: Unit) -> usize {
    let step = if unit == Unit::Share {
        step * 100.0
    } else {
        step
    };
    decimals_below(step)
}

/// Decimals that show the first digit of a number below one.
fn decimals_below(value: f64) -> usize {
    if value >= 1.0 {
        0
    } else {
        (-value.log10()).ceil().clamp(0.0, 9.0) as usize
    }
}

fn decimal_ticks(low: f64, high: f64, most_ticks: usize) -> Vec<f64> {
    for factors in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
        let decades = (low.floor() as i32)..=(high.ceil() as i32);
        let ticks: Vec<f64> = decades
            .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)))
            .filter(|value| (low..=high).contains(&value.log10()))
            .collect();
        if ticks.len() <= most_ticks || factors.len() == 1 {
            return if ticks.len() < 2 {
                vec![10f64.powf(low), 10f64.powf(high)]
            } else {
                thinned(&ticks, most_ticks)
            };
        }
    }
    Vec::new()
}

/// Every second, third … of many, with the first.
fn thinned(ticks: &[f64], most: usize) -> Vec<f64> {
    ticks
        .iter()
        .copied()
        .step_by(ticks.len().div_ceil(most.max(2)).max(1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis, values: &[f64], most: usize) -> Vec<String> {
        axis.place(values.iter().copied(), most)
            .ticks
            .into_iter()
            .map(|(_, text)| text)
            .collect()
    }

    #[test]
    fn linear_ticks_are_round_numbers_around_all_values() {
        let axis = Axis::from_zero("x");
        assert_eq!(
            texts(&axis, &[3.0, 9.7], 5),
            ["0", "2", "4", "6", "8", "10"]
        );
        assert_eq!(texts(&axis, &[0.3], 3), ["0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(texts(&Axis::whole("epochs"), &[2.0], 6), ["0", "1", "2"]);
        assert_eq!(
            texts(&axis.clone().in_unit(Unit::Share), &[1.0], 4),
            ["0 %", "50 %", "100 %"]
        );
    }

    #[test]
    fn an_axis_of_one_value_or_none_still_has_ticks() {
        for values in [&[][..], &[5.0], &[0.0], &[f64::NAN], &[-3.0]] {
            for axis in [
                Axis::linear("x"),
                Axis::from_zero("x"),
                Axis::logarithmic("x"),
                Axis::of_counts("x", values),
            ] {
                let placed = axis.place(values.iter().copied(), 5);
                assert!(placed.low < placed.high, "{axis:?} {values:?} {placed:?}");
                assert!(
                    axis.ticks.is_some() || placed.ticks.len() >= 2,
                    "{axis:?} {values:?} {placed:?}"
                );
            }
        }
    }

    #[test]
    fn logarithmic_ticks_thin_out_over_many_decades() {
        assert_eq!(
            texts(&Axis::logarithmic("x"), &[1.0, 9.0], 6),
            ["1", "2", "5", "10"]
        );
        assert_eq!(texts(&Axis::logarithmic("x"), &[0.001, 1000.0], 8).len(), 7);
        let sizes = Axis {
            scale: Scale::Binary,
            ..Axis::linear("x")
        }
        .in_unit(Unit::Bytes);
        assert_eq!(
            texts(&sizes, &[1024.0, 4096.0], 4),
            ["1 KiB", "2 KiB", "4 KiB"]
        );
    }

    #[test]
    fn ranks_stand_where_they_were_measured() {
        assert_eq!(
            texts(
                &Axis::of_counts("ranks", &[1.0, 2.0, 4.0, 2.0]),
                &[1.0, 4.0],
                8
            ),
            ["1", "2", "4"]
        );
        assert_eq!(
            Axis::of_counts("ranks", &[1.0, 2.0, 64.0]).scale,
            Scale::Binary
        );
    }
}
