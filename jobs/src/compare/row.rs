//! The rows of a comparison, and what follows from them: ratio, speedup, efficiency, and whether a number counts.
//!
//! In: measured blocks or the reason why there are none. Out: the rows of `comparison.json`.
//! Invariant: pure. A throughput counts only if the losses say that the work was the same; what does not count is shown and ranked
//! nowhere. Speedup and ratio are of medians over the blocks.

use records::{Block, ComparisonRow};

use super::block::About;
use super::framework::{self, OURS};
use super::settings::LAST_COMPARED_STEP;

/// After how many updates losses are compared, and by how much they may differ, relatively. Sums in another order, or a
/// convolution by another algorithm, differ in the last bits of each step: resnet44's losses were found to differ by up to 8e-5
/// after 2 and 5e-4 after 5 updates. Other samples, weights, rates or momentum differ by hundredths; a weight decay that is
/// missing would not be seen, so small is its part in five steps. In bf16 each framework rounds elsewhere.
const F32_TOLERANCES: [(usize, f64); 2] = [(2, 5e-4), (LAST_COMPARED_STEP, 3e-3)];
const BF16_TOLERANCES: [(usize, f64); 2] = [(2, 5e-3), (LAST_COMPARED_STEP, 2e-2)];

/// Which measurement: one row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    /// The name in the table.
    pub(super) framework: String,
    pub(super) model: String,
    pub(super) dtype: String,
    pub(super) ranks: usize,
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
    pub(super) ratio: Option<f64>,
    pub(super) speedup: Option<f64>,
    pub(super) efficiency: Option<f64>,
    pub(super) loss_agrees: Option<bool>,
    pub(super) counts: bool,
}

impl Row {
    pub(super) fn new(key: Key, threads: usize) -> Self {
        let (launcher, about, blocks, gap) = Default::default();
        Row { key, threads, launcher, about, blocks, gap }
    }

    pub(super) fn is_ours(&self) -> bool {
        self.key.framework == OURS
    }

    /// Median images/s over the blocks.
    pub(super) fn median(&self) -> Option<f64> {
        let mut rates: Vec<f64> = self.blocks.iter().map(|block| block.images_per_second).collect();
        (!rates.is_empty()).then(|| records::median(&mut rates))
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
            model: self.key.model.clone(),
            dtype: self.key.dtype.clone(),
            launcher: self.launcher.clone(),
            communication: self.about.communication.clone(),
            ranks: self.key.ranks as u64,
            threads: self.threads as u64,
            images_per_second: self.blocks.iter().map(|block| Some(block.images_per_second)).collect(),
            images_per_second_median: judged.median,
            ratio_to_lockstep: judged.ratio,
            speedup: judged.speedup,
            efficiency: judged.efficiency,
            peak_memory_bytes_rank: self.blocks.iter().map(|block| block.peak_memory_bytes_rank).max(),
            peak_memory_bytes_total: self.blocks.iter().map(|block| block.peak_memory_bytes_total).max(),
            loss_after_2: first.and_then(|block| block.loss_after(2)),
            loss_after_5: first.and_then(|block| block.loss_after(LAST_COMPARED_STEP)),
            loss_agrees: judged.loss_agrees,
            counts: Some(judged.counts),
            disturbed_blocks: Some(self.blocks.iter().filter(|block| block.is_disturbed).count() as u64),
            quiet: last.and_then(|block| block.quiet),
            command: last.map(|block| block.command.clone()),
            gap: self.gap.clone(),
            blocks: self.blocks.clone(),
        }
    }

    /// A row that [`Row::record`] made.
    pub(super) fn of(record: ComparisonRow) -> Self {
        let ComparisonRow { framework, model, dtype, version, variant, communication, .. } = record;
        Row {
            key: Key { framework, model, dtype, ranks: record.ranks as usize },
            threads: record.threads as usize,
            launcher: record.launcher,
            about: About { version, variant, communication },
            blocks: record.blocks,
            gap: record.gap,
        }
    }

    /// What this row says beside the others.
    pub(super) fn judged(&self, rows: &[Row]) -> Judged {
        let row_of = |framework: &str, ranks: usize| {
            let key = Key { framework: framework.to_owned(), ranks, ..self.key.clone() };
            rows.iter().find(|row| row.key == key)
        };
        let median = self.median();
        let ours = row_of(OURS, self.key.ranks);
        let loss_agrees =
            if self.is_ours() { median.map(|_| true) } else { ours.and_then(|ours| self.agrees_with(ours)) };
        let counts = median.is_some() && loss_agrees == Some(true);
        let over = |other: Option<f64>| median.filter(|_| counts).zip(other).map(|(own, other)| own / other);
        let alone = framework::ALL.into_iter().find(|framework| framework.title() == self.key.framework);
        let alone = alone.map_or(OURS, |framework| framework.alone().title());
        let speedup =
            over(row_of(alone, 1).filter(|row| row.is_ours() || row.judged_alone(rows)).and_then(Row::median));
        Judged {
            median,
            ratio: over(ours.and_then(Row::median)),
            speedup,
            efficiency: speedup.map(|speedup| speedup / self.key.ranks as f64),
            loss_agrees,
            counts,
        }
    }

    /// Whether a row of one rank counts, so that others may be measured by it.
    fn judged_alone(&self, rows: &[Row]) -> bool {
        let key = Key { framework: OURS.to_owned(), ..self.key.clone() };
        rows.iter().find(|row| row.key == key).and_then(|ours| self.agrees_with(ours)) == Some(true)
    }

    /// Whether all blocks' losses are those of our first block; unknown where one side has none.
    fn agrees_with(&self, ours: &Row) -> Option<bool> {
        let tolerances = if self.key.dtype == "bf16" { BF16_TOLERANCES } else { F32_TOLERANCES };
        let expected = ours.blocks.first()?;
        if self.blocks.is_empty() {
            return None;
        }
        let is_near = |block: &Block| {
            tolerances.iter().all(|&(updates, tolerance)| {
                let pair = block.loss_after(updates).zip(expected.loss_after(updates));
                // Of two that are not numbers the difference is none, which is not near.
                pair.is_some_and(|(got, expected)| (got - expected).abs() <= tolerance * expected.abs())
            })
        };
        Some(self.blocks.iter().all(is_near))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A row of resnet20 whose losses begin with 3 and go on with these at 2 and 5.
    pub(in super::super) fn row(framework: &str, ranks: usize, rates: &[f64], losses: (f64, f64)) -> Row {
        let key = Key { framework: framework.to_owned(), model: "resnet20".into(), dtype: "f32".into(), ranks };
        let block = |&images_per_second: &f64| Block {
            images_per_second,
            losses: vec![3.0, 3.0, losses.0, 2.0, 2.0, losses.1],
            peak_memory_bytes_rank: 1 << 20,
            peak_memory_bytes_total: ranks as u64 * (1 << 20),
            ..Block::default()
        };
        Row { blocks: rates.iter().map(block).collect(), ..Row::new(key, 1) }
    }

    #[test]
    fn ratio_speedup_and_efficiency_are_of_medians() {
        let rows = [
            row(OURS, 1, &[100.0, 300.0, 110.0], (2.5, 2.0)),
            row(OURS, 2, &[200.0, 220.0], (2.5, 2.0)),
            row("JAX", 1, &[50.0], (2.5001, 2.001)),
            row("JAX", 2, &[84.0], (2.5, 2.0)),
        ];
        let ours = rows[1].judged(&rows);
        assert_eq!((ours.median, ours.ratio, ours.counts), (Some(210.0), Some(1.0), true));
        assert!((ours.speedup.unwrap() - 210.0 / 110.0).abs() < 1e-9);
        let theirs = rows[3].judged(&rows);
        assert!((theirs.ratio.unwrap() - 0.4).abs() < 1e-9);
        assert!((theirs.efficiency.unwrap() - 0.84).abs() < 1e-9);
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
            assert_eq!((judged.loss_agrees, judged.counts, judged.ratio), (Some(false), false, None));
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
        assert_eq!(rows[3].judged(&rows).speedup, Some(1.6));
    }

    #[test]
    fn a_row_is_read_back_with_all_its_blocks_and_its_gap() {
        let mut row = row("JAX", 2, &[84.0, 85.0], (2.5, 2.0));
        row.gap = Some("ended with exit code 1: why".to_owned());
        let rows = [row.clone()];
        assert_eq!(Row::of(row.record(&rows)), row);
    }
}
