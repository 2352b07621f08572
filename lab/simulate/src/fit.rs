//! Link fitted to measured messages.
//!
//! In: sizes and times of messages. Out: latency, time per byte, residuals.
//! Invariant: every size has equal weight, whether it takes microseconds or seconds; outliers count
//! less.
//! Source: Hockney 1994 (alpha + beta n); Beaton & Tukey 1974, The Fitting of Power Series (the
//! biweight); Levenberg 1944 for the descent.
//!
//! The residual is `ln(measured / fitted)`, which is the relative error to first order. Times are
//! not a straight line: MPI libraries change their protocol with the size, and rate limits pass
//! short bursts. Therefore the fit is robust. It starts with the latency of the smallest and the
//! bandwidth of the largest size. The weight of a size falls with its residual and is 0 from 4.685
//! standard deviations on; the scale comes from the residual that two fifths of the sizes do not
//! exceed. A step between the ends is then visible in the residuals but does not bend the line.
//!
//! A rate limit with a token bucket passes a burst at once. In a ping-pong the bucket fills while
//! the answer travels: up to two bursts, half of a message is limited, and above that all but one
//! burst. Bursts are tried if the line fits badly, and accepted if they fit much better.

use records::{FitFacts, limited_bytes};

use crate::network::Link;

/// Constant of the biweight: 95 % of the efficiency of least squares for normal errors.
const BIWEIGHT: f64 = 4.685;

/// Quantile of the residuals that determines the scale, and the standard deviation of normal errors
/// over that quantile.
const SCALE_SHARE: f64 = 0.4;
const NORMAL_SCALE: f64 = 1.907;

/// Residuals up to this share are measurement noise.
const LEAST_SCALE: f64 = 0.05;

const MOST_STEPS: usize = 500;

/// Least share of the bytes in the time of the largest message; below it the bandwidth is unknown.
const LEAST_BYTES_SHARE: f64 = 0.2;

/// Mean error above which bursts are tried; single errors count at most [`MOST_ERROR`].
const POOR_ERROR: f64 = 0.1;
/// Most error with a burst, as a share of the error without it.
const ACCEPTED_SHARE: f64 = 0.65;
const MOST_ERROR: f64 = 0.5;

/// Smallest burst in bytes; each further one is larger by the square root of two.
const LEAST_BURST: f64 = 8192.0;

/// A link with a burst and its mean error.
struct Candidate {
    link: Link,
    burst_bytes: f64,
    error: f64,
}

/// Fits a link to `points` of bytes and seconds in one direction.
///
/// Returns `None` if latency or bandwidth cannot be determined: a time is not positive and finite,
/// there are fewer than two sizes, or all sizes are so small that their bytes take no time.
pub fn fit(points: &[(f64, f64)]) -> Option<FitFacts> {
    let is_sound = |&(bytes, seconds): &(f64, f64)| {
        bytes >= 0.0 && seconds > 0.0 && (bytes + seconds).is_finite()
    };
    let smallest = *points.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let largest = *points.iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    if !points.iter().all(is_sound) || smallest.0 == largest.0 {
        return None;
    }
    let mut best = Candidate::new(points, 0.0);
    let plain_error = best.error;
    let mut burst_bytes = LEAST_BURST;
    while plain_error > POOR_ERROR && 4.0 * burst_bytes <= largest.0 {
        let other = Candidate::new(points, burst_bytes);
        if other.error < best.error.min(ACCEPTED_SHARE * plain_error) {
            best = other;
        }
        burst_bytes *= std::f64::consts::SQRT_2;
    }
    let Candidate {
        link, burst_bytes, ..
    } = best;
    let is_determined = link.beta * largest.0 >= LEAST_BYTES_SHARE * link.seconds(largest.0);
    if !(is_determined && link.alpha.is_finite() && link.beta.is_finite()) {
        return None;
    }
    let fitted = |bytes| link.seconds(limited_bytes(bytes, burst_bytes));
    let residuals = points
        .iter()
        .map(|&(bytes, seconds)| (bytes, seconds / fitted(bytes) - 1.0));
    let square_sum: f64 = residuals
        .clone()
        .map(|(_, residual)| residual * residual)
        .sum();
    let (worst_bytes, worst_residual) = residuals.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()))?;
    let residual = (square_sum / points.len() as f64).sqrt();
    Some(FitFacts {
        alpha_s: link.alpha,
        beta_s_per_byte: link.beta,
        bandwidth_bytes_per_s: link.beta.recip(),
        burst_bytes,
        residual,
        worst_residual,
        worst_bytes: worst_bytes as u64,
        num_points: points.len(),
    })
}

impl Candidate {
    fn new(points: &[(f64, f64)], burst_bytes: f64) -> Self {
        let mut limited: Vec<_> = points
            .iter()
            .map(|&(bytes, seconds)| (limited_bytes(bytes, burst_bytes), seconds))
            .collect();
        limited.sort_by(|a, b| a.0.total_cmp(&b.0));
        let smallest = limited[0];
        let largest = limited[limited.len() - 1];
        let per_byte = (largest.1 - smallest.1).max(0.1 * largest.1) / largest.0;
        let link = descend([smallest.1.ln(), per_byte.ln()], &limited);
        let error = |&(bytes, seconds): &(f64, f64)| {
            let error = (seconds / link.seconds(bytes)).ln().abs();
            error.min(MOST_ERROR)
        };
        Self {
            link,
            burst_bytes,
            error: limited.iter().map(error).sum::<f64>() / limited.len() as f64,
        }
    }
}

/// Minimises the robust squares over the logarithms of latency and time per byte, which keeps both
/// positive.
fn descend(mut logarithms: [f64; 2], points: &[(f64, f64)]) -> Link {
    let link_of = |[alpha, beta]: [f64; 2]| Link {
        alpha: alpha.exp(),
        beta: beta.exp(),
    };
    for _ in 0..MOST_STEPS {
        let link = link_of(logarithms);
        let residuals: Vec<f64> = points
            .iter()
            .map(|&(bytes, seconds)| (seconds / link.seconds(bytes)).ln())
            .collect();
        let mut sizes: Vec<f64> = residuals.iter().map(|residual| residual.abs()).collect();
        sizes.sort_by(f64::total_cmp);
        let bound = BIWEIGHT
            * (NORMAL_SCALE * sizes[(SCALE_SHARE * sizes.len() as f64) as usize]).max(LEAST_SCALE);
        // Normal equations. The derivatives of a size are the shares of latency and bytes in its
        // time.
        let mut matrix = [0.0; 3];
        let mut right = [0.0; 2];
        for (&(bytes, _), residual) in points.iter().zip(&residuals) {
            let weight = (1.0 - (residual / bound).powi(2)).max(0.0).powi(2);
            let by_bytes = link.beta * bytes / link.seconds(bytes);
            let shares = [1.0 - by_bytes, by_bytes];
            matrix[0] += weight * shares[0] * shares[0];
            matrix[1] += weight * shares[0] * shares[1];
            matrix[2] += weight * shares[1] * shares[1];
            right[0] += weight * shares[0] * residual;
            right[1] += weight * shares[1] * residual;
        }
        // Damping keeps an undetermined number where it is.
        let damping = 1e-6 * points.len() as f64;
        let [a, b, c] = [matrix[0] + damping, matrix[1], matrix[2] + damping];
        let determinant = a * c - b * b;
        let step = [
            (c * right[0] - b * right[1]) / determinant,
            (a * right[1] - b * right[0]) / determinant,
        ];
        logarithms = [
            logarithms[0] + step[0].clamp(-1.0, 1.0),
            logarithms[1] + step[1].clamp(-1.0, 1.0),
        ];
        if step.iter().all(|step| step.abs() < 1e-12) {
            break;
        }
    }
    link_of(logarithms)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Powers of four from 1 B to 64 MiB.
    fn sizes() -> impl Iterator<Item = f64> {
        (0..14).map(|power| f64::from(1 << (2 * power)))
    }

    fn measured(link: Link, disturb: impl Fn(usize) -> f64) -> Vec<(f64, f64)> {
        sizes()
            .enumerate()
            .map(|(index, bytes)| (bytes, link.seconds(bytes) * disturb(index)))
            .collect()
    }

    fn assert_close(got: f64, expected: f64, share: f64) {
        assert!(
            (got / expected - 1.0).abs() <= share,
            "expected {expected} to {share}, got {got}"
        );
    }

    #[test]
    fn exact_times_give_back_their_link() {
        for link in [
            Link::new(1.5e-6, 12.5e9),
            Link::new(50e-6, 113e6),
            Link::new(0.3e-6, 4e9),
            Link::new(20e-3, 1e6),
        ] {
            let fit = fit(&measured(link, |_| 1.0)).unwrap();
            assert_close(fit.alpha_s, link.alpha, 1e-6);
            assert_close(fit.beta_s_per_byte, link.beta, 1e-6);
            assert!(fit.residual < 1e-6 && fit.burst_bytes == 0.0, "{fit:?}");
            assert_eq!(fit.num_points, 14);
        }
    }

    #[test]
    fn five_percent_of_noise_moves_the_link_by_a_few_percent() {
        let link = Link::new(50e-6, 113e6);
        // The fractional parts of multiples of the golden ratio, spread over -1..1.
        let noise = |index: usize| 2.0 * ((index as f64 + 1.0) * 0.618_033_988_75).fract() - 1.0;
        let fit = fit(&measured(link, |index| 1.0 + 0.05 * noise(index))).unwrap();
        assert_close(fit.alpha_s, link.alpha, 0.03);
        assert_close(fit.beta_s_per_byte, link.beta, 0.03);
        assert!(fit.residual > 0.01 && fit.residual < 0.05, "{fit:?}");
    }

    #[test]
    fn a_few_outliers_hardly_move_the_link_and_are_reported() {
        let link = Link::new(30e-6, 113e6);
        // 64 KiB pass in a burst, ten times as fast; 256 KiB wait for a rendezvous.
        let disturb = |index| match index {
            8 => 0.1,
            9 => 1.3,
            _ => 1.0,
        };
        let fit = fit(&measured(link, disturb)).unwrap();
        assert_close(fit.alpha_s, link.alpha, 0.02);
        assert_close(fit.beta_s_per_byte, link.beta, 0.02);
        assert_eq!(fit.worst_bytes, 65_536);
        assert_close(fit.worst_residual, -0.9, 0.02);
    }

    #[test]
    fn a_step_between_the_ends_leaves_the_bandwidth_to_the_largest_sizes() {
        // Microseconds, measured through a rate limit of 1 Gbit/s with bursts of 256 KB.
        let micros = [
            23.59, 23.81, 23.64, 23.74, 23.56, 23.65, 27.46, 29.12, 271.9, 1_100.0, 8_001.0,
            35_442.0, 140_019.0, 559_920.0,
        ];
        let points: Vec<_> = sizes().zip(micros.map(|micros| micros * 1e-6)).collect();
        let fit = fit(&points).unwrap();
        assert_close(fit.alpha_s, 23.7e-6, 0.05);
        assert_close(fit.beta_s_per_byte, 1.0 / 119.5e6, 0.05);
        assert_eq!(fit.worst_bytes, 16_384);
        assert!((130_000.0..270_000.0).contains(&fit.burst_bytes), "{fit:?}");
    }

    #[test]
    fn a_rate_limit_is_found_with_its_burst() {
        // Microseconds, measured through a rate limit of 200 Mbit/s with bursts of 262,144 bytes.
        let micros = [
            17.6, 17.6, 17.4, 18.1, 13.8, 17.9, 19.74, 93.63, 1_374.0, 5_517.0, 33_780.0,
            166_007.0, 691_322.0,
        ];
        let points: Vec<_> = sizes().zip(micros.map(|micros| micros * 1e-6)).collect();
        let fit = fit(&points).unwrap();
        assert_close(fit.beta_s_per_byte, 1.0 / 24.1e6, 0.03);
        assert_close(fit.burst_bytes, 262_144.0, 0.01);
    }

    #[test]
    fn sizes_that_do_not_determine_both_numbers_give_none() {
        let link = Link::new(50e-6, 1e9);
        let of = |sizes: &[f64]| {
            fit(&sizes
                .iter()
                .map(|&bytes| (bytes, link.seconds(bytes)))
                .collect::<Vec<_>>())
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[1024.0]), None);
        assert_eq!(of(&[1024.0, 1024.0]), None);
        assert_eq!(of(&[1.0, 4.0, 16.0]), None);
        assert!(of(&[1.0, 1e6]).is_some());
        assert_eq!(fit(&[(1.0, 0.0), (1e6, 1.0)]), None);
        assert_eq!(fit(&[(1.0, f64::NAN), (1e6, 1.0)]), None);
    }

    #[test]
    fn the_unit_of_time_does_not_matter() {
        let link = Link::new(50e-6, 113e6);
        let points = measured(link, |index| 1.0 + 0.1 * (index % 3) as f64);
        let slower: Vec<_> = points
            .iter()
            .map(|&(bytes, seconds)| (bytes, 1000.0 * seconds))
            .collect();
        let slow = fit(&slower).unwrap();
        let fit = fit(&points).unwrap();
        assert_close(slow.alpha_s, 1000.0 * fit.alpha_s, 1e-6);
        assert_close(slow.residual, fit.residual, 1e-6);
    }
}
