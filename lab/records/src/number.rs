//! Numbers: their middle, how people read them, and how JSON carries those that are none.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// The middle of `values`, which it sorts; of an even number the mean of the two in the middle, 0 of none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let number = values.len();
    if number == 0 {
        0.0
    } else {
        (values[(number - 1) / 2] + values[number / 2]) / 2.0
    }
}

/// Mean and standard deviation of a sample (divided by its number less one); `None` of no value, and no deviation of one alone.
pub fn mean_and_deviation(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>();
    (!values.is_empty()).then(|| {
        (
            mean,
            (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt()),
        )
    })
}

/// Bytes in the unit that leaves one to four digits before the point: `412 MiB`, `1.4 GiB`.
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

/// Returns a count with its digits in groups of three: `12,270`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number with so many decimals, its digits in groups of three: `1,540.8`.
pub fn grouped_decimal(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let sign = if value < 0.0 { "-" } else { "" };
    match whole.parse() {
        Ok(whole) => format!("{sign}{}{rest}", grouped(whole)),
        // Not finite, or larger than 2^64.
        Err(_) => format!("{sign}{text}"),
    }
}

/// A number of things, whose plural has an s: `1 rank`, `2 ranks`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Images/s in three digits or more: an ImageNet network's on one core are few.
pub fn rate(images_per_second: f64) -> String {
    let decimals = usize::from(images_per_second < 10.0) + usize::from(images_per_second < 100.0);
    format!("{images_per_second:.decimals$}")
}

/// A learning rate in six characters or so: `0.0921`, `1.0e-5`.
pub fn learning_rate(rate: f64) -> String {
    if rate == 0.0 || rate >= 1e-3 {
        format!("{rate:.4}")
    } else {
        format!("{rate:.1e}")
    }
}

/// A number that is not finite is written as null.
pub(crate) fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// As [`nan_if_null`], for each that has a name.
pub(crate) fn nans_of_names<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let numbers = BTreeMap::<String, Option<f64>>::deserialize(deserializer)?;
    Ok(numbers
        .into_iter()
        .map(|(name, number)| (name, number.unwrap_or(f64::NAN)))
        .collect())
}

/// As [`nan_if_null`], for each of a list.
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
    fn digits_are_grouped_from_the_right() {
        assert_eq!(
            [0, 999, 1_000, 12_270, 1_234_567].map(grouped),
            ["0", "999", "1,000", "12,270", "1,234,567"]
        );
        assert_eq!(
            [0.25, 1_540.84, -12_345.0, f64::NAN].map(|value| grouped_decimal(value, 1)),
            ["0.2", "1,540.8", "-12,345.0", "NaN"]
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
            ["5.49", "54.9", "549", "5494"]
        );
    }
}
