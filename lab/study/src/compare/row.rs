//! The rows of a comparison, and what follows from them: ratio, speedup, efficiency, and whether a number counts.
//!
//! In: measured blocks or the reason why there are none. Out: the rows of `comparison.json`.
//! Invariant: pure. A throughput counts only if the losses say that the work was the same; what does not count is shown and ranked
//! nowhere. Speedup and ratio are taken in each round in which both sides were measured within an hour; then comes the median.

use records::{Block, ComparisonRow, Estimate};

use super::block::About;
use super::choice::Setting;
use super::framework::{self, OURS};
use super::settings::{LAST_COMPARED_STEP, is_imagenet};

/// After how many updates losses are compared, and by how much they may differ, relatively. Sums in another order, or a
/// convolution by another algorithm, differ in the last bits of each step: resnet44's losses were found to differ by up to 8e-5
/// after 2 and 5e-4 after 5 updates. Other samples, weights, rates or momentum differ by hundredths; a weight decay that is
/// missing would not be seen, so small is its part in five steps. In bf16 each framework rounds elsewhere.
///
/// ImageNet's networks amplify last bits a thousandfold in one update: losses of PyTorch's own three ways to compute ResNet-50 in f32 were found
/// to differ by up to 8e-3 after one, and by 3e-6 before. So their first losses must agree, and the others to hundredths.
const TOLERANCES: [[[(usize, f64); 2]; 2]; 2] = [
    [
        [(2, 5e-4), (LAST_COMPARED_STEP, 3e-3)],
        [(2, 5e-3), (LAST_COMPARED_STEP, 2e-2)],
    ],
    [
        [(0, 1e-4), (LAST_COMPARED_STEP, 2e-2)],
        [(0, 5e-3), (LAST_COMPARED_STEP, 2e-2)],
    ],
];

/// Between two measurements that may be compared: longer ago the machine may have been another.
const FARTHEST_S: f64 = 3600.0;
/// So many quiet rounds have an interval without the disturbed ones.
const ENOUGH_QUIET: usize = 6;

/// Which measurement: one row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The name in the table.
    pub(super) framework: String,
    pub(super) model: String,
    pub(super) dtype: String,
    pub(super) ranks: usize,
    pub(super) setting: Setting,
    /// In a sweep: whose options were tried.
    pub(super) tried: String,
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) threads: usize,
    pub(super) launcher: String,
    pub(super) about: About,
    pub(super) blocks: Vec<Block>,
    /// Why there is no number.
    pub(super) gap: Option<String>,
}

/// What follows for a row from all rows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Judged {
    pub(super) median: Option<f64>,
    pub(super) ratio: Option<Estimate>,
    pub(super) speedup: Option<Estimate>,
    pub(super) efficiency: Option<Estimate>,
    pub(super) loss_agrees: Option<bool>,
    pub(super) counts: bool,
}

impl Row {
    pub(super) fn new(key: Key, threads: usize) -> Self {
        let (launcher, about, blocks, gap) = Default::default();
        Row {
            key,
            threads,
            launcher,
            about,
            blocks,
            gap,
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        self.key.framework == OURS
    }

    /// Median images/s over the blocks; as for a ratio without the disturbed ones, if enough are quiet.
    pub(super) fn median(&self) -> Option<f64> {
        let is_enough = self
            .blocks
            .iter()
            .filter(|block| !block.is_disturbed)
            .count()
            >= ENOUGH_QUIET;
        let counted = self
            .blocks
            .iter()
            .filter(|block| !is_enough || !block.is_disturbed);
        let mut rates: Vec<f64> = counted.map(|block| block.images_per_second).collect();
        (!rates.is_empty()).then(|| records::median(&mut rates))
    }

    /// The same over the blocks that nobody disturbed, over all where there are none.
    pub(super) fn quiet_median(&self) -> Option<f64> {
        let quiet: Vec<Block> = self
            .blocks
            .iter()
            .filter(|block| !block.is_disturbed)
            .cloned()
            .collect();
        if quiet.is_empty() {
            self.median()
        } else {
            Row {
                blocks: quiet,
                ..self.clone()
            }
            .median()
        }
    }

    /// The row as `comparison.json` has it.
    pub(super) fn record(&self, rows: &[Row]) -> ComparisonRow {
        let judged = self.judged(rows);
        let first = self.blocks.first();
        let last = self.blocks.last();
        ComparisonRow {
            framework: self.key.framework.clone(),
            version: self.about.version.clone(),
            variant: self.about.variant.clone(),
            setting: self.key.setting.clone().into(),
            tried: self.key.tried.clone(),
            model: self.key.model.clone(),
            dtype: self.key.dtype.clone(),
            launcher: self.launcher.clone(),
            communication: self.about.communication.clone(),
            ranks: self.key.ranks as u64,
            threads: self.threads as u64,
            images_per_second: self
                .blocks
                .iter()
                .map(|block| Some(block.images_per_second))
                .collect(),
            images_per_second_median: judged.median,
            ratio_to_lockstep: judged.ratio.map(|ratio| ratio.median),
            ratio_interval: judged.ratio.and_then(|ratio| ratio.interval),
            speedup: judged.speedup.map(|speedup| speedup.median),
            speedup_interval: judged.speedup.and_then(|speedup| speedup.interval),
            efficiency: judged.efficiency.map(|efficiency| efficiency.median),
            peak_memory_bytes_rank: self
                .blocks
                .iter()
                .map(|block| block.peak_memory_bytes_rank)
                .max(),
            peak_memory_bytes_total: self
                .blocks
                .iter()
                .map(|block| block.peak_memory_bytes_total)
                .max(),
            import_memory_bytes_rank: self
                .blocks
                .iter()
                .map(|block| block.import_memory_bytes_rank)
                .max(),
            loss_after_2: first.and_then(|block| block.loss_after(2)),
            loss_after_5: first.and_then(|block| block.loss_after(LAST_COMPARED_STEP)),
            loss_agrees: judged.loss_agrees,
            counts: Some(judged.counts),
            disturbed_blocks: Some(
                self.blocks
                    .iter()
                    .filter(|block| block.is_disturbed)
                    .count() as u64,
            ),
            quiet: last.and_then(|block| block.quiet),
            command: last.map(|block| block.command.clone()),
            gap: self.gap.clone(),
            blocks: self.blocks.clone(),
        }
    }

    /// A row that [`Row::record`] made.
    pub(super) fn of(record: ComparisonRow) -> Self {
        let ComparisonRow {
            framework,
            model,
            dtype,
            version,
            variant,
            communication,
            tried,
            ..
        } = record;
        Row {
            key: Key {
                framework,
                model,
                dtype,
                ranks: record.ranks as usize,
                setting: Setting::from(record.setting),
                tried,
            },
            threads: record.threads as usize,
            launcher: record.launcher,
            about: About {
                version,
                variant,
                communication,
            },
            blocks: record.blocks,
            gap: record.gap,
        }
    }

    /// What this row says beside the others.
    pub(super) fn judged(&self, rows: &[Row]) -> Judged {
        let median = self.median();
        let ours = self.beside(rows, OURS, self.key.ranks);
        let loss_agrees = if self.is_ours() {
            median.map(|_| true)
        } else {
            ours.and_then(|ours| self.agrees_with(ours))
        };
        let counts = median.is_some() && loss_agrees == Some(true);
        let over =
            |other: Option<&Row>| other.filter(|_| counts).and_then(|other| self.over(other));
        let alone = framework::titled(&self.key.framework)
            .map_or(OURS, |framework| framework.alone().title());
        let speedup = over(
            self.beside(rows, alone, 1)
                .filter(|row| row.is_ours() || row.judged_alone(rows)),
        );
        Judged {
            median,
            ratio: over(ours),
            speedup,
            efficiency: speedup.map(|speedup| speedup.scaled(1.0 / self.key.ranks as f64)),
            loss_agrees,
            counts,
        }
    }

    /// The row of a framework on the same job with so many ranks, in whatever setting it competes.
    fn beside<'r>(&self, rows: &'r [Row], framework: &str, ranks: usize) -> Option<&'r Row> {
        rows.iter().find(|row| {
            (row.key.framework.as_str(), row.key.ranks) == (framework, ranks)
                && (&row.key.model, &row.key.dtype) == (&self.key.model, &self.key.dtype)
        })
    }

    /// Its speed by that of another in each round that both have at about the same time; without the disturbed ones, if enough are quiet.
    fn over(&self, other: &Row) -> Option<Estimate> {
        if self.key == other.key {
            // By definition, not by measurement.
            return Some(Estimate {
                median: 1.0,
                interval: None,
            });
        }
        let mut rounds: Vec<_> = self
            .blocks
            .iter()
            .zip(&other.blocks)
            .filter(|(own, other)| are_near(own, other))
            .collect();
        let is_quiet = |(own, other): &(&Block, &Block)| !own.is_disturbed && !other.is_disturbed;
        if rounds.iter().filter(|pair| is_quiet(pair)).count() >= ENOUGH_QUIET {
            rounds.retain(is_quiet);
        }
        let ratios = rounds
            .into_iter()
            .map(|(own, other)| own.images_per_second / other.images_per_second);
        Estimate::of(&ratios.collect::<Vec<f64>>())
    }

    /// Whether a row of one rank counts, so that others may be measured by it.
    fn judged_alone(&self, rows: &[Row]) -> bool {
        self.beside(rows, OURS, self.key.ranks)
            .and_then(|ours| self.agrees_with(ours))
            == Some(true)
    }

    /// Whether all blocks' losses are those of our first block; unknown where one side has none.
    pub(super) fn agrees_with(&self, ours: &Row) -> Option<bool> {
        let tolerances = TOLERANCES[usize::from(is_imagenet(&self.key.model))]
            [usize::from(self.key.dtype == "bf16")];
        let expected = ours.blocks.first()?;
        if self.blocks.is_empty() {
            return None;
        }
        let is_near = |block: &Block| {
            tolerances.iter().all(|&(updates, tolerance)| {
                let pair = block.loss_after(updates).zip(expected.loss_after(updates));
                // Of two that are not numbers the difference is none, which is not near.
                pair.is_some_and(|(got, expected)| {
                    (got - expected).abs() <= tolerance * expected.abs()
                })
            })
        };
        Some(self.blocks.iter().all(is_near))
    }
}

/// Whether two blocks were measured within an hour, or may have been, as one does not tell its time.
fn are_near(a: &Block, b: &Block) -> bool {
    let times = a.measured_unix_s.zip(b.measured_unix_s);
    times.is_none_or(|(a, b)| (a[0] - b[1]).max(b[0] - a[1]) <= FARTHEST_S)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row of resnet20 whose losses begin with 3 and go on with these at 2 and 5.
    pub(in super::super) fn row(
        framework: &str,
        ranks: usize,
        rates: &[f64],
        losses: (f64, f64),
    ) -> Row {
        let (setting, tried) = Default::default();
        let (framework, model, dtype) = (
            framework.to_owned(),
            "resnet20".to_owned(),
            "f32".to_owned(),
        );
        let key = Key {
            framework,
            model,
            dtype,
            ranks,
            setting,
            tried,
        };
        let block = |&images_per_second: &f64| Block {
            images_per_second,
            losses: vec![3.0, 3.0, losses.0, 2.0, 2.0, losses.1],
            peak_memory_bytes_rank: 1 << 20,
            peak_memory_bytes_total: ranks as u64 * (1 << 20),
            ..Block::default()
        };
        Row {
            blocks: rates.iter().map(block).collect(),
            ..Row::new(key, 1)
        }
    }

    #[test]
    fn ratio_speedup_and_efficiency_are_taken_in_each_round() {
        let rows = [
            // The machine is three times as fast in the second round.
            row(OURS, 1, &[100.0, 300.0, 110.0], (2.5, 2.0)),
            row(OURS, 2, &[200.0, 540.0, 220.0], (2.5, 2.0)),
            row("JAX", 1, &[50.0, 150.0, 55.0], (2.5001, 2.001)),
            row("JAX", 2, &[80.0, 240.0], (2.5, 2.0)),
        ];
        let ours = rows[1].judged(&rows);
        assert_eq!((ours.median, ours.counts), (Some(220.0), true));
        assert!((ours.speedup.unwrap().median - 2.0).abs() < 1e-9);
        let theirs = rows[3].judged(&rows);
        assert!((theirs.ratio.unwrap().median - (0.4 + 240.0 / 540.0) / 2.0).abs() < 1e-9);
        assert!((theirs.efficiency.unwrap().median - 0.8).abs() < 1e-9);
        assert_eq!(
            theirs.ratio.unwrap().interval,
            None,
            "two rounds are too few for an interval"
        );
    }

    #[test]
    fn imagenet_s_networks_must_agree_before_the_first_update_and_later_to_hundredths() {
        let of = |framework, first, last| {
            let mut row = row(framework, 1, &[100.0], (2.5, last));
            row.key.model = "resnet50".to_owned();
            row.blocks[0].losses[0] = first;
            row
        };
        let ours = of(OURS, 3.0, 2.0);
        assert_eq!(
            of("PyTorch DDP", 3.0002, 2.03).agrees_with(&ours),
            Some(true)
        );
        assert_eq!(
            of("PyTorch DDP", 3.001, 2.0).agrees_with(&ours),
            Some(false)
        );
        assert_eq!(of("PyTorch DDP", 3.0, 2.05).agrees_with(&ours), Some(false));
    }

    #[test]
    fn six_rounds_give_an_interval() {
        let rows = [
            row(OURS, 1, &[100.0; 6], (2.5, 2.0)),
            row("JAX", 1, &[50.0, 51.0, 52.0, 53.0, 54.0, 55.0], (2.5, 2.0)),
        ];
        let record = rows[1].record(&rows);
        assert_eq!(
            (record.ratio_to_lockstep, record.ratio_interval),
            (Some(0.525), Some([0.5, 0.55]))
        );
    }

    #[test]
    fn rounds_of_another_day_are_no_pair_and_disturbed_ones_count_only_where_few_are_quiet() {
        let mut rows = [
            row(OURS, 1, &[100.0; 7], (2.5, 2.0)),
            row("JAX", 1, &[50.0; 7], (2.5, 2.0)),
        ];
        rows[1].blocks[6] = Block {
            images_per_second: 1.0,
            is_disturbed: true,
            ..rows[1].blocks[6].clone()
        };
        let ratio = |rows: &[Row]| rows[1].judged(rows).ratio;
        assert_eq!(
            ratio(&rows),
            Some(Estimate {
                median: 0.5,
                interval: Some([0.5, 0.5])
            })
        );
        for (num_quiet, expected) in [(6, 100.0), (5, 60.0)] {
            let mut row = row(
                OURS,
                1,
                &[vec![100.0; num_quiet], vec![20.0; num_quiet]].concat(),
                (2.5, 2.0),
            );
            row.blocks[num_quiet..]
                .iter_mut()
                .for_each(|block| block.is_disturbed = true);
            assert_eq!(row.median(), Some(expected), "{num_quiet} quiet rounds");
        }
        for (round, begin) in [(0, 0.0), (1, 90_000.0)] {
            rows[0].blocks[round].measured_unix_s = Some([0.0, 10.0]);
            rows[1].blocks[round].measured_unix_s = Some([begin, begin + 10.0]);
        }
        // Of the six that are left one is disturbed: without it there would be no interval.
        assert_eq!(
            ratio(&rows),
            Some(Estimate {
                median: 0.5,
                interval: Some([0.01, 0.5])
            })
        );
    }

    #[test]
    fn a_number_of_other_work_does_not_count() {
        for losses in [(2.51, 2.0), (2.5, 2.1), (f64::NAN, 2.0)] {
            let rows = [
                row(OURS, 1, &[100.0], (2.5, 2.0)),
                row("MXNet", 1, &[900.0], losses),
                row("MXNet", 2, &[9.0], losses),
            ];
            let judged = rows[1].judged(&rows);
            assert_eq!(
                (judged.loss_agrees, judged.counts, judged.ratio),
                (Some(false), false, None)
            );
            assert_eq!(rows[2].judged(&rows).speedup, None);
        }
    }

    #[test]
    fn without_our_number_nothing_can_agree() {
        let rows = [row("MXNet", 1, &[900.0], (2.5, 2.0))];
        assert_eq!(rows[0].judged(&rows).loss_agrees, None);
        assert!(!rows[0].judged(&rows).counts);
    }

    #[test]
    fn horovod_is_measured_by_pytorch_on_one_rank() {
        let rows = [
            row(OURS, 1, &[100.0], (2.5, 2.0)),
            row(OURS, 2, &[100.0], (2.5, 2.0)),
            row("PyTorch DDP", 1, &[50.0], (2.5, 2.0)),
            row("Horovod", 2, &[80.0], (2.5, 2.0)),
        ];
        assert_eq!(
            rows[3].judged(&rows).speedup.map(|speedup| speedup.median),
            Some(1.6)
        );
    }

    #[test]
    fn a_row_is_read_back_with_all_its_blocks_and_its_gap() {
        let mut row = row("JAX", 2, &[84.0, 85.0], (2.5, 2.0));
        row.gap = Some("ended with exit code 1: why".to_owned());
        let rows = [row.clone()];
        assert_eq!(Row::of(row.record(&rows)), row);
    }
}
