//! Axes: scale, range and ticks.
//!
//! In: the values of an axis. Out: pixels of values, and the text of each tick.
//! Invariant: the range has every value that the axis can show; a logarithm needs a positive
//! value.

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Axis {
    /// Quantity and unit.
    pub(crate) label: String,
    pub(crate) steps: Steps,
    unit: Unit,
    from_zero: bool,
    is_whole: bool,
    /// Values at which ticks are drawn; round values if absent.
    ticks: Option<Vec<f64>>,
}

/// Values that are equally far apart on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Steps {
    Linear,
    Logarithmic,
    /// Shares whose distances to 1 have equal ratios: 90 %, 99 %, 99.9 %.
    TowardsOne,
}

/// Ticks of [`Steps::TowardsOne`].
const SHARES: [f64; 13] = [
    0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9998, 0.9999,
];

/// Least ratio of values at which [`Axis::showing`] leaves the linear axis.
const WIDE: f64 = 5.0;

/// Unit of the ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unit {
    #[default]
    Plain,
    /// Percentage of a share.
    Share,
    Bytes,
}

/// An axis in a drawing.
pub(super) struct Scale<'a> {
    axis: &'a Axis,
    /// Ends in the coordinates of the axis; those of a logarithmic axis are logarithms.
    ends: [f64; 2],
    pub(super) pixels: [f64; 2],
    /// Pixel and text of each tick.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Scale<'_> {
    /// Returns the pixel of a value; `None` if the axis cannot show it.
    pub(super) fn at(&self, value: f64) -> Option<f64> {
        Some(self.pixel(self.axis.coordinate(value)?))
    }

    fn pixel(&self, coordinate: f64) -> f64 {
        let [low, high] = self.ends;
        let [first, last] = self.pixels;
        let pixel = first + (coordinate - low) / (high - low) * (last - first);
        (10.0 * pixel).round() / 10.0
    }
}

impl Axis {
    pub(crate) fn linear(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            steps: Steps::Linear,
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
            steps: Steps::Logarithmic,
            ..Self::linear(label)
        }
    }

    /// Returns an axis on which the differences between `values` are visible: not linear if the
    /// values, or the distances of shares to 1, have a wide range.
    pub(crate) fn showing(
        label: impl Into<String>,
        unit: Unit,
        values: impl Iterator<Item = f64>,
    ) -> Self {
        let (steps, distances): (_, Vec<f64>) = match unit {
            Unit::Share => (Steps::TowardsOne, values.map(|value| 1.0 - value).collect()),
            _ => (Steps::Logarithmic, values.collect()),
        };
        let least = distances.iter().copied().fold(f64::INFINITY, f64::min);
        let most = distances.iter().copied().fold(0.0, f64::max);
        let is_wide = least > 0.0 && most >= WIDE * least;
        Self {
            steps: if is_wide { steps } else { Steps::Linear },
            unit,
            ..Self::linear(label)
        }
    }

    /// Returns the label with the scale, if it is not linear.
    pub(super) fn title(&self) -> String {
        match self.steps {
            Steps::Linear => self.label.clone(),
            Steps::Logarithmic => format!("{} (log scale)", self.label),
            Steps::TowardsOne => format!("{} (log scale towards 100 %)", self.label),
        }
    }

    /// Returns an axis with ticks at the measured counts, logarithmic over more than two octaves.
    pub(crate) fn of_counts(label: &str, counts: impl IntoIterator<Item = f64>) -> Self {
        let mut ticks: Vec<f64> = counts.into_iter().filter(|count| *count > 0.0).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        let is_wide = ticks.len() > 2 && ticks[ticks.len() - 1] / ticks[0] > 4.0;
        Self {
            steps: if is_wide {
                Steps::Logarithmic
            } else {
                Steps::Linear
            },
            ticks: Some(ticks),
            ..Self::linear(label)
        }
    }

    pub(crate) fn in_unit(self, unit: Unit) -> Self {
        Self { unit, ..self }
    }

    /// Returns the coordinate of a value; `None` if the axis cannot show it.
    fn coordinate(&self, value: f64) -> Option<f64> {
        let coordinate = match self.steps {
            Steps::Linear => value,
            Steps::Logarithmic => value.log10(),
            Steps::TowardsOne => -(1.0 - value).log10(),
        };
        coordinate.is_finite().then_some(coordinate)
    }

    /// Chooses range and ticks for `values`.
    pub(super) fn place(
        &self,
        values: impl IntoIterator<Item = f64>,
        most_ticks: usize,
        pixels: [f64; 2],
    ) -> Scale<'_> {
        let values = values.into_iter();
        let placed: Vec<f64> = values.filter_map(|value| self.coordinate(value)).collect();
        let zero = self.from_zero.then_some(0.0);
        let placed = || placed.iter().copied().chain(zero);
        let low = placed().reduce(f64::min).unwrap_or(0.0);
        let mut high = placed().reduce(f64::max).unwrap_or(1.0);
        if high - low <= 1e-9 * high.abs().max(low.abs()) {
            high += if high == 0.0 { 1.0 } else { high.abs() * 0.1 };
        }
        let margin = 0.05 * (high - low);
        let low = match self.from_zero && low == 0.0 {
            true => low,
            false => low - margin,
        };
        let high = high + margin;
        let mut ticks = match &self.ticks {
            Some(ticks) => ticks
                .iter()
                .filter_map(|tick| self.coordinate(*tick))
                .collect(),
            None => match self.steps {
                Steps::Linear => linear_ticks(low, high, most_ticks),
                Steps::Logarithmic => self.logarithmic_ticks(low, high),
                Steps::TowardsOne => {
                    let ticks = SHARES.iter().filter_map(|share| self.coordinate(*share));
                    ticks.filter(|tick| (low..=high).contains(tick)).collect()
                }
            },
        };
        ticks.retain(|tick| !self.is_whole || tick.fract() == 0.0);
        let every = ticks.len().div_ceil(most_ticks).max(1);
        let mut scale = Scale {
            axis: self,
            ends: [low, high],
            pixels,
            ticks: Vec::new(),
        };
        let ticks = ticks.into_iter().step_by(every);
        scale.ticks = ticks
            .map(|tick| (scale.pixel(tick), self.text(tick)))
            .collect();
        scale
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
    fn text(&self, at: f64) -> String {
        let value = match self.steps {
            Steps::Linear => at,
            Steps::Logarithmic => 10f64.powf(at),
            Steps::TowardsOne => 1.0 - 10f64.powf(-at),
        };
        match self.unit {
            Unit::Plain => shortest(value),
            Unit::Share => format!("{} %", shortest(100.0 * value)),
            Unit::Bytes => records::bytes(value.round() as u64),
        }
    }
}

/// Returns the multiples of the least round step that has at most `most` of them.
fn linear_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let least_power = ((high - low) / most as f64).log10().floor() as i32;
    let steps =
        (least_power..).flat_map(|power| [1.0, 2.0, 5.0].map(|one| one * 10f64.powi(power)));
    let ticks = steps.map(|step| {
        let numbers = (low / step).ceil() as i64..=(high / step).floor() as i64;
        // The quotient of two whole numbers is nearest to the decimal number.
        let tick = |number: i64| match step < 1.0 {
            true => number as f64 / (1.0 / step).round(),
            false => number as f64 * step,
        };
        numbers.map(tick).collect::<Vec<f64>>()
    });
    ticks
        .into_iter()
        .find(|ticks| ticks.len() <= most)
        .unwrap_or_default()
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
        let scale = axis.place(values.iter().copied(), most_ticks, [0.0, 1.0]);
        scale.ticks.into_iter().map(|(_, text)| text).collect()
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
        let wide = Axis::of_counts("ranks", [1.0, 2.0, 64.0]);
        assert_eq!(wide.steps, Steps::Logarithmic);
    }

    #[test]
    fn an_axis_shows_the_differences_of_losses_over_a_decade_and_of_accuracies_near_one() {
        for (unit, values, expected) in [
            (Unit::Plain, [2.0, 0.1], Steps::Logarithmic),
            (Unit::Plain, [2.0, 1.0], Steps::Linear),
            (Unit::Plain, [2.0, -0.1], Steps::Linear),
            (Unit::Share, [0.3, 0.99], Steps::TowardsOne),
            (Unit::Share, [0.3, 0.6], Steps::Linear),
            (Unit::Share, [0.3, 1.0], Steps::Linear),
        ] {
            let axis = Axis::showing("", unit, values.into_iter());
            assert_eq!(axis.steps, expected, "{values:?}");
        }
        let axis = Axis::showing("", Unit::Share, [0.7, 0.992].into_iter());
        assert_eq!(
            texts(&axis, &[0.7, 0.992], 7),
            ["80 %", "90 %", "95 %", "98 %", "99 %"]
        );
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
                let scale = axis.place(values.iter().copied(), 5, [0.0, 100.0]);
                let [low, high] = scale.ends;
                assert!(low < high, "{axis:?} {values:?} {low} {high}");
                let mut pixels = values.iter().filter_map(|value| scale.at(*value));
                assert!(pixels.all(|at| (0.0..=100.0).contains(&at)), "{axis:?}");
            }
        }
    }
}
