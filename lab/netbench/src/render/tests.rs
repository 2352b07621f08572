//! Tests of the tables.

use super::*;
use crate::point_to_point::{fit, links};
use records::StoppedBy;

fn point(bytes: u64, seconds: f64, width: f64) -> SizeTimes {
    SizeTimes {
        bytes,
        seconds_median: seconds,
        seconds_p10: 0.9 * seconds,
        seconds_p90: 1.1 * seconds,
        relative_half_width: Some(width),
        repetitions: 10,
        stopped_by: StoppedBy::Precision,
        simulated_seconds: Some(seconds / 2.0),
    }
}

fn pair(second: usize) -> PairTimes {
    let points = vec![
        point(1, 20e-6, 0.01),
        point(1 << 20, 0.01 * second as f64, 0.01),
    ];
    let fit = fit([&points[..]]);
    PairTimes {
        ranks: [0, second],
        nodes: ["n0".into(), format!("n{second}")],
        is_inside_node: false,
        points,
        fit,
    }
}

#[test]
fn one_pair_is_shown_with_all_its_percentiles() {
    let pairs = [pair(1)];
    let text = pair_lines(&pairs, 1, &links(&pairs)).join("\n");
    assert!(
        text.contains("between nodes, half of a round trip, 1 pair\nrank 0 on n0, rank 1 on n1"),
        "{text}"
    );
    assert!(
        text.contains(
            "\n   1 MiB       10000        9000       11000     104.9      10    1.0  precision"
        ),
        "{text}"
    );
    assert!(
        text.contains("fit between nodes: latency 19.99 us, bandwidth 105.1 MB/s, residual 0 %"),
        "{text}"
    );
}

#[test]
fn what_sums_take_from_computing_is_told_with_their_size() {
    let overlap = Overlap {
        computing_share: 0.125,
        bytes: 1 << 19,
        sum_seconds: 4.5e-3,
        sum_seconds_beside: 6e-3,
    };
    assert_eq!(
        overlap_line(&overlap),
        "computing during all-reduces of 512 KiB is 12.5 % slower, and these take 6000 us each instead of 4500"
    );
}

#[test]
fn several_pairs_name_the_slowest_and_say_how_they_were_chosen() {
    let pairs: Vec<PairTimes> = (1..=30).map(pair).collect();
    let lines = pair_lines(&pairs, 400, &links(&pairs));
    let text = lines.join("\n");
    assert!(text.contains("30 pairs, chosen at random of 400"), "{text}");
    assert!(
        text.contains("\n   1 MiB       10000      155000      300000      6.77  n0-n30"),
        "{text}"
    );
    assert!(text.contains("and 6 more pairs"), "{text}");
}

#[test]
fn algorithms_stand_beside_each_other_and_unsure_medians_are_marked() {
    let times = |operation, algorithm: &str, points| CollectiveTimes {
        operation,
        algorithm: algorithm.to_owned(),
        ranks: 4,
        points,
    };
    let all = [
        times(
            Operation::AllReduce,
            "halving-doubling",
            vec![point(4, 1e-3, 0.2)],
        ),
        times(
            Operation::Broadcast,
            "mpi",
            vec![point(1, 5e-6, 0.01), point(4, 6e-6, 0.01)],
        ),
    ];
    let lines = collective_lines(&all);
    assert_eq!(lines[2], "    size  halving-d.   broadcast");
    assert_eq!(lines[3], "     1 B           -        5.00");
    assert_eq!(lines[4], "     4 B       ~1000        6.00");
    assert!(lines[5].starts_with('~'));
    let text = conclusion_lines(Some("1gbe"), true, &all).join("\n");
    assert!(
        text.contains(
            "all-reduce of 4 B simulated with the fit, of the measured: halving-doubling 50 %"
        ),
        "{text}"
    );
    assert!(
        text.contains("measured on one node") && text.ends_with("--simulate-network 1gbe"),
        "{text}"
    );
    assert!(conclusion_lines(None, true, &all).is_empty());
}

#[test]
fn no_line_is_wider_than_100_columns() {
    let all: Vec<CollectiveTimes> = (0..7)
        .map(|index| CollectiveTimes {
            operation: Operation::AllReduce,
            algorithm: format!("algorithm-{index}"),
            ranks: 1024,
            points: vec![point(64 << 20, 1.0, 0.2)],
        })
        .collect();
    let pairs = [pair(1), pair(2)];
    let lines = [
        collective_lines(&all),
        pair_lines(&pairs, 3, &links(&pairs)),
    ]
    .concat();
    assert!(
        lines.iter().all(|line| line.chars().count() <= 100),
        "{lines:#?}"
    );
}
