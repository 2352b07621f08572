//! Numbers as people read them: grouped digits, bytes, seconds.

use std::time::Duration;

pub use records::bytes;

/// A count with a space between groups of three digits: `12 270`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// Seconds, from an hour on with hours and minutes: `31.2 s`, `2 h 05 min`.
pub fn seconds(seconds: f64) -> String {
    if (seconds * 10.0).round() < 36_000.0 {
        return format!("{seconds:.1} s");
    }
    let minutes = (seconds / 60.0).round() as u64;
    format!("{} h {:02} min", minutes / 60, minutes % 60)
}

/// A time that is left, with two units at most: `45 s`, `31 min`, `2 h 05 min`.
pub(crate) fn time_left(left: Duration) -> String {
    match left.as_secs() {
        seconds if seconds < 120 => format!("{seconds} s"),
        seconds if seconds < 7200 => format!("{} min", (seconds + 30) / 60),
        seconds => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_from_the_right() {
        assert_eq!(
            [0, 999, 1_000, 12_270, 1_234_567].map(grouped),
            ["0", "999", "1 000", "12 270", "1 234 567"]
        );
    }

    #[test]
    fn a_time_left_has_two_units_at_most() {
        let shown = [0, 119, 120, 1_845, 7_199, 7_500, 180_000]
            .map(|seconds| time_left(Duration::from_secs(seconds)));
        assert_eq!(
            shown,
            [
                "0 s",
                "119 s",
                "2 min",
                "31 min",
                "120 min",
                "2 h 05 min",
                "50 h 00 min"
            ]
        );
    }

    #[test]
    fn long_times_are_told_in_hours() {
        assert_eq!(
            [31.24, 3_599.94, 3_599.96, 7_500.0].map(seconds),
            ["31.2 s", "3599.9 s", "1 h 00 min", "2 h 05 min"]
        );
    }
}
