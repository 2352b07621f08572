//! The serial share that a speedup tells of.
//!
//! In: a speedup on some number of ranks. Out: a share of the work. Invariant: one rank has no serial share.
//! Source: Karp & Flatt 1990, Measuring parallel processor performance (CACM 33:5); Amdahl 1967.
//!
//! A serial share that grows with the ranks is overhead that grows with them, as communication does; one that stays is work that no
//! rank shares. Under weak scaling the same formula tells how far a step is from its ideal.

/// The experimentally determined serial share: (1/S - 1/N) / (1 - 1/N); none for one rank or a speedup that is no positive number.
pub fn karp_flatt(speedup: f64, ranks: usize) -> Option<f64> {
    if ranks < 2 || !(speedup.is_finite() && speedup > 0.0) {
        return None;
    }
    let share = 1.0 / ranks as f64;
    Some((1.0 / speedup - share) / (1.0 - share))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The speedup on `ranks` ranks of work of which `serial_fraction` is not shared.
    fn amdahl_speedup(serial_fraction: f64, ranks: usize) -> f64 {
        1.0 / (serial_fraction + (1.0 - serial_fraction) / ranks as f64)
    }

    #[test]
    fn ten_times_as_fast_on_twelve_is_a_serial_share_of_less_than_two_percent() {
        let share = karp_flatt(10.11, 12).unwrap();
        assert!((share - 0.0170).abs() < 5e-5, "{share}");
        assert_eq!(karp_flatt(1.0, 1), None);
        assert_eq!(karp_flatt(0.0, 4), None);
        assert_eq!(karp_flatt(f64::NAN, 4), None);
    }

    #[test]
    fn what_amdahl_predicts_has_the_serial_share_it_was_predicted_from() {
        for ranks in [2, 3, 12, 1024] {
            for share in [0.0, 0.001, 0.3, 1.0] {
                let got = karp_flatt(amdahl_speedup(share, ranks), ranks).unwrap();
                assert!(
                    (got - share).abs() < 1e-9,
                    "{ranks} ranks: expected {share}, got {got}"
                );
            }
        }
        // More than linear has a negative share.
        assert!(karp_flatt(2.2, 2).unwrap() < 0.0);
    }
}
