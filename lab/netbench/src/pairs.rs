//! The pairs of ranks that send to each other.
//!
//! In: the node of every rank, the largest number of pairs. Out: [`PairPlan`].
//! Invariant: all ranks choose the same pairs, in every run.
//! Source: Floyd's sampling without replacement, in Bentley 1987, A Sample of Brilliance.

use std::collections::BTreeSet;

/// Two ranks that send to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RankPair {
    /// Rank that sends first and takes the times.
    pub(crate) first: usize,
    /// Rank that answers.
    pub(crate) second: usize,
    /// True if both are on one node.
    pub(crate) is_inside: bool,
}

/// The pairs of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PairPlan {
    /// In the order of their measurement: between nodes, then inside one.
    pub(crate) pairs: Vec<RankPair>,
    /// Number of possible pairs between nodes, or on a single node.
    pub(crate) num_possible: usize,
}

impl PairPlan {
    /// Chooses at most `most` pairs of nodes, each by its first rank, and one pair inside a node if
    /// a node has two ranks. On a single node it chooses at most `most` pairs of its ranks. A
    /// choice among more pairs is random but fixed.
    ///
    /// `nodes` has the name of every rank's node.
    pub(crate) fn new(nodes: &[String], most: usize) -> Self {
        let mut firsts: Vec<usize> = Vec::new();
        let mut inside = None;
        for (rank, node) in nodes.iter().enumerate() {
            match firsts.iter().find(|&&first| nodes[first] == *node) {
                None => firsts.push(rank),
                Some(&first) => {
                    inside = inside.or(Some(RankPair {
                        first,
                        second: rank,
                        is_inside: true,
                    }))
                }
            }
        }
        let is_inside = firsts.len() == 1;
        let members: Vec<usize> = if is_inside {
            (0..nodes.len()).collect()
        } else {
            firsts
        };
        let num_possible = members.len() * members.len().saturating_sub(1) / 2;
        let pair = |index| {
            let (first, second) = pair_at(index);
            RankPair {
                first: members[first],
                second: members[second],
                is_inside,
            }
        };
        let mut pairs: Vec<RankPair> = chosen(num_possible, most).into_iter().map(pair).collect();
        pairs.sort_unstable();
        pairs.extend(inside.filter(|_| !is_inside));
        Self {
            pairs,
            num_possible,
        }
    }
}

/// Returns the pair of that index in (0, 1), (0, 2), (1, 2), (0, 3), ….
fn pair_at(index: usize) -> (usize, usize) {
    let mut second = ((1.0 + (1.0 + 8.0 * index as f64).sqrt()) / 2.0) as usize;
    // The root of a large number may be rounded up.
    while second * (second - 1) / 2 > index {
        second -= 1;
    }
    while second * (second + 1) / 2 <= index {
        second += 1;
    }
    (index - second * (second - 1) / 2, second)
}

/// Returns `most` different indices below `number`, or all if there are no more.
fn chosen(number: usize, most: usize) -> BTreeSet<usize> {
    if number <= most {
        return (0..number).collect();
    }
    let mut indices = BTreeSet::new();
    for end in number - most..number {
        let index = (mixed(end as u64) % (end as u64 + 1)) as usize;
        if !indices.insert(index) {
            indices.insert(end);
        }
    }
    indices
}

/// Returns random bits for a number: SplitMix64, Steele, Lea & Flood 2014.
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(nodes: &[usize], most: usize) -> PairPlan {
        PairPlan::new(
            &nodes
                .iter()
                .map(|node| format!("n{node}"))
                .collect::<Vec<_>>(),
            most,
        )
    }

    fn ranks(plan: &PairPlan) -> Vec<(usize, usize, bool)> {
        plan.pairs
            .iter()
            .map(|pair| (pair.first, pair.second, pair.is_inside))
            .collect()
    }

    #[test]
    fn one_rank_has_no_pair() {
        assert_eq!(
            plan(&[0], 28),
            PairPlan {
                pairs: vec![],
                num_possible: 0
            }
        );
    }

    #[test]
    fn on_one_node_all_ranks_are_paired() {
        assert_eq!(
            ranks(&plan(&[0, 0, 0], 28)),
            [(0, 1, true), (0, 2, true), (1, 2, true)]
        );
    }

    #[test]
    fn nodes_are_paired_by_their_first_ranks_and_one_pair_lies_inside() {
        assert_eq!(ranks(&plan(&[0, 1], 28)), [(0, 1, false)]);
        assert_eq!(
            ranks(&plan(&[0, 0, 1, 1], 28)),
            [(0, 2, false), (0, 1, true)]
        );
        assert_eq!(
            ranks(&plan(&[0, 1, 2, 0, 1, 2], 28)),
            [(0, 1, false), (0, 2, false), (1, 2, false), (0, 3, true)]
        );
    }

    #[test]
    fn too_many_pairs_are_a_choice_of_different_ones_that_is_the_same_each_time() {
        let nodes: Vec<usize> = (0..100).collect();
        let plan_of = |most| plan(&nodes, most);
        let some = plan_of(28);
        assert_eq!((some.pairs.len(), some.num_possible), (28, 4950));
        assert!(some.pairs.windows(2).all(|two| two[0] < two[1]), "{some:?}");
        assert!(
            some.pairs
                .iter()
                .all(|pair| pair.first < pair.second && pair.second < 100)
        );
        assert_eq!(some, plan_of(28));
        let seen: BTreeSet<usize> = some
            .pairs
            .iter()
            .flat_map(|pair| [pair.first, pair.second])
            .collect();
        assert!(seen.len() > 28, "spread over the nodes: {seen:?}");
        assert_eq!(plan_of(4950).pairs.len(), 4950);
    }

    #[test]
    fn indices_count_every_pair_once() {
        let pairs: BTreeSet<(usize, usize)> = (0..45).map(pair_at).collect();
        assert_eq!(pairs.len(), 45);
        assert!(
            pairs
                .iter()
                .all(|&(first, second)| first < second && second < 10)
        );
        let last = 1_000_000_usize * 999_999 / 2 - 1;
        assert_eq!(pair_at(last), (999_998, 999_999));
        assert_eq!(pair_at(last + 1), (0, 1_000_000));
    }
}
