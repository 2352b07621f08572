//! Numbers: statistics, how people read them, and how JSON carries NaN.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// Returns the median of `values`, which it sorts; the mean of the middle two of an even number, 0
/// for an empty slice.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let number = values.len();
    if number == 0 {
        0.0
    } else {
        (values[(number - 1) / 2] + values[number / 2]) / 2.0
    }
}

/// Median, smallest and largest value of several measurements of one quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Smallest value.
    pub least: f64,
    /// Largest value.
    pub most: f64,
    /// Number of finite values.
    pub count: usize,
}

impl Spread {
    /// Summarises the finite values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let finite = values.into_iter().filter(|value| value.is_finite());
        let mut sorted: Vec<f64> = finite.collect();
        let median = median(&mut sorted);
        Some(Self {
            median,
            least: *sorted.first()?,
            most: *sorted.last()?,
            count: sorted.len(),
        })
    }

    /// Returns least and most of two or more values.
    pub fn range(&self) -> Option<(f64, f64)> {
        (self.count > 1).then_some((self.least, self.most))
    }
}

/// Returns mean and sample standard deviation (divisor n - 1); no deviation for one value.
pub fn mean_and_deviation(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let deviation = (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt());
    (!values.is_empty()).then_some((mean, deviation))
}

/// Formats a count with a comma between thousands: `1,610`.
pub fn grouped(count: u64) -> String {
    with_commas(&count.to_string())
}

/// Formats a number with this many decimals and a comma between thousands: `1,234.5`.
pub fn decimal(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let is_zero = text.chars().all(|c| c == '0' || c == '.');
    let sign = if value < 0.0 && !is_zero { "-" } else { "" };
    match text.split_once('.') {
        Some((whole, fraction)) => format!("{sign}{}.{fraction}", with_commas(whole)),
        None => format!("{sign}{}", with_commas(&text)),
    }
}

fn with_commas(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats bytes in the unit that leaves one to four digits before the point: `412 MiB`, `1.4 GiB`.
pub fn bytes(count: u64) -> String {
    const KIB: f64 = 1024.0;
    let count = count as f64;
    match count {
        _ if count < KIB => format!("{count} B"),
        _ if count < KIB * KIB => format!("{:.0} KiB", count / KIB),
        _ if count < KIB * KIB * KIB => format!("{:.0} MiB", count / KIB / KIB),
        _ => format!("{:.1} GiB", count / KIB / KIB / KIB),
    }
}

/// Formats a count with its noun, whose plural has an s: `1 rank`, `2 ranks`.
pub fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(count as u64))
}

/// Formats images/s with three significant digits or more: an ImageNet network on one core is slow.
pub fn rate(images_per_second: f64) -> String {
    let decimals = usize::from(images_per_second < 10.0) + usize::from(images_per_second < 100.0);
    decimal(images_per_second, decimals)
}

/// Formats a learning rate in about six characters: `0.0921`, `1.0e-5`.
pub fn learning_rate(rate: f64) -> String {
    if rate == 0.0 || rate >= 1e-3 {
        format!("{rate:.4}")
    } else {
        format!("{rate:.1e}")
    }
}

/// Breaks a text into lines of at most `columns` characters; a longer word has its own line.
pub fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Reads a number; null, as JSON writes NaN, becomes NaN.
pub(crate) fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Reads numbers by name as [`nan_if_null`] does.
pub(crate) fn nans_of_names<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let numbers = BTreeMap::<String, Option<f64>>::deserialize(deserializer)?;
    Ok(numbers
        .into_iter()
        .map(|(name, number)| (name, number.unwrap_or(f64::NAN)))
        .collect())
}

/// Reads a list of numbers as [`nan_if_null`] does.
pub(crate) fn nans_if_null<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<f64>, D::Error> {
    let numbers = Vec::<Option<f64>>::deserialize(deserializer)?;
    Ok(numbers
        .into_iter()
        .map(|number| number.unwrap_or(f64::NAN))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_an_even_number_is_a_mean() {
        assert_eq!(
            (
                median(&mut [3.0, 1.0, 2.0]),
                median(&mut [2.0, 1.0]),
                median(&mut [])
            ),
            (2.0, 1.5, 0.0)
        );
    }

    #[test]
    fn a_deviation_is_known_of_several_values() {
        assert_eq!(mean_and_deviation(&[1.0, 3.0, 5.0]), Some((3.0, Some(2.0))));
        assert_eq!(
            (mean_and_deviation(&[4.0]), mean_and_deviation(&[])),
            (Some((4.0, None)), None)
        );
    }

    #[test]
    fn bytes_choose_their_unit() {
        assert_eq!(
            [5, 2_048, 432_013_312, 1_503_238_554].map(bytes),
            ["5 B", "2 KiB", "412 MiB", "1.4 GiB"]
        );
    }

    #[test]
    fn small_learning_rates_keep_their_digits() {
        assert_eq!(
            [0.0921, 0.00001, 0.0].map(learning_rate),
            ["0.0921", "1.0e-5", "0.0000"]
        );
    }

    #[test]
    fn rates_have_three_digits_or_more() {
        assert_eq!(
            [5.494, 54.94, 549.4, 5494.0].map(rate),
            ["5.49", "54.9", "549", "5,494"]
        );
    }

    #[test]
    fn thousands_have_commas_and_zero_has_no_sign() {
        assert_eq!(
            [0, 999, 12_270, u64::MAX].map(grouped),
            ["0", "999", "12,270", "18,446,744,073,709,551,615"]
        );
        let shown = [(1_234_567.891, 1), (-12.0, 0), (-0.001, 1), (999.96, 1)]
            .map(|(value, decimals)| decimal(value, decimals));
        assert_eq!(shown, ["1,234,567.9", "-12", "0.0", "1,000.0"]);
        assert_eq!(decimal(f64::NAN, 1), "NaN");
    }

    #[test]
    fn a_spread_ignores_nan_and_one_value_has_no_range() {
        let spread = Spread::of([3.0, 1.0, f64::NAN]).unwrap();
        assert_eq!((spread.median, spread.range()), (2.0, Some((1.0, 3.0))));
        let single = Spread::of([4.0]).unwrap();
        assert_eq!((single.median, single.range()), (4.0, None));
        assert_eq!(Spread::of([f64::NAN]), None);
    }

    #[test]
    fn lines_are_no_longer_than_asked_and_a_longer_word_has_its_own() {
        assert_eq!(wrapped("a bc  d", 4), ["a bc", "d"]);
        assert_eq!(wrapped("a longer b", 3), ["a", "longer", "b"]);
        assert!(wrapped(" ", 3).is_empty());
    }
}
