//! The head of a run's log.
//!
//! In: the manifest, the configuration, the rule of the best model. Out: at most six rows.
//! Invariant: pure. `run.toml` and the manifest have the complete facts.

use std::path::Path;

use records::{Manifest, counted, grouped};

use crate::config::TrainConfig;
use crate::measure::report::lines::WIDTH;
use crate::run::best::BestRule;

/// Number of machines that are named.
const NUM_NAMED: usize = 2;

/// Returns the rows of a run's start. `facts` are those of the task, by name.
pub fn head(
    manifest: &Manifest,
    config: &TrainConfig,
    directory: Option<&Path>,
    best_rule: &BestRule,
    num_parameters: usize,
    facts: &[(&'static str, String)],
) -> Vec<String> {
    let commit = manifest.commit.get(..8).unwrap_or(&manifest.commit);
    let mut run = vec![format!("{} ({commit})", manifest.version)];
    if let Some(directory) = directory {
        run.insert(0, directory.display().to_string());
    }

    let frozen = config.optimizer.freeze.as_deref().unwrap_or_default();
    let trained = if frozen.is_empty() { "" } else { "trained " };
    let parameters = format!("{} {trained}parameters", grouped(num_parameters as u64));

    let data = &manifest.dataset;
    let mut samples = format!("{} train", grouped(data.num_train as u64));
    for (split, number) in [("val", data.num_val), ("test", data.num_test)] {
        if number > 0 {
            samples.push_str(&format!(", {} {split}", grouped(number as u64)));
        }
    }
    let best = match (data.num_val > 0, data.num_test > 0) {
        (true, true) => "; test at the end",
        (true, false) => "",
        _ => "; no val split",
    };

    let mut data_cells = vec![data.name.clone(), samples];
    // `None` for the default.
    let sampler = config.train_split.sampler;
    data_cells.extend(sampler.map(|sampler| format!("sampler {sampler}")));
    data_cells.push(format!("best by {}{best}", best_rule.monitor));

    let workers = config.num_workers();
    let micro_batch = config.micro_batch_size();
    let mut batch = format!("batch {}", config.batch.global_batch_size);
    if let Some(shards) = config.sync.method.virtual_shards() {
        batch.push_str(&format!(" = {micro_batch} x {shards} virtual shards"));
    } else if micro_batch < config.batch.global_batch_size {
        batch.push_str(&format!(" = {micro_batch} x {}", counted(workers, "rank")));
        if config.batch.grad_accum_steps() > 1 {
            let passes = counted(config.batch.grad_accum_steps(), "pass");
            batch.push_str(&format!(" x {passes}"));
        }
    }
    let updates = format!(
        "{}, rate {}, {}",
        config.optimizer.optimizer.kind(),
        config.peak_learning_rate() as f32,
        config.schedule.schedule.kind()
    );

    let launch = &manifest.launch;
    let nodes = match launch.nodes.len() {
        0..=NUM_NAMED => launch.nodes.join(", "),
        number => counted(number, "node"),
    };
    let compute = &config.compute;
    let mut ranks = vec![
        format!("{} on {nodes}", launch.ranks),
        format!("{} each", counted(launch.threads_per_rank, "thread")),
        format!("{}, {}", compute.device, compute.dtype()),
    ];
    if launch.ranks > 1 {
        let library = launch.mpi_library.split(',').next();
        ranks.push(library.unwrap_or_default().to_owned());
    }

    let epochs = counted(config.schedule.epochs as usize, "epoch");
    let mut rows = vec![
        ("run", run),
        ("model", vec![config.model_name().to_owned(), parameters]),
        ("data", data_cells),
        ("train", vec![epochs, batch, updates]),
        ("ranks", ranks),
    ];
    if !facts.is_empty() {
        let facts = facts.iter().map(|(name, value)| format!("{name} {value}"));
        rows.push(("task", facts.collect()));
    }
    rows.iter()
        .map(|(name, cells)| shortened(format!("{name:8} {}", cells.join(" | "))))
        .collect()
}

/// Replaces the end of a line that is too wide.
fn shortened(line: String) -> String {
    if line.chars().count() <= WIDTH {
        return line;
    }
    line.chars().take(WIDTH - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cli::TrainArgs;
    use crate::task::Goal;
    use records::{DatasetFacts, LaunchFacts};
    use std::collections::BTreeMap;

    fn head_of(num_nodes: usize, num_val: usize, facts: &[(&'static str, String)]) -> Vec<String> {
        let manifest = Manifest {
            version: "0.1.0".to_owned(),
            commit: "54c897e119eed7dd4f2080eea13fa22476a0c266".to_owned(),
            launch: LaunchFacts {
                ranks: 4,
                threads_per_rank: 1,
                nodes: (0..num_nodes).map(|node| format!("n{node}")).collect(),
                mpi_library: "Open MPI v4.1.4, package: Debian OpenMPI".to_owned(),
                ..LaunchFacts::default()
            },
            dataset: DatasetFacts {
                name: "shapes".to_owned(),
                num_train: 10_000,
                num_val,
                num_test: 2000,
                ..DatasetFacts::default()
            },
            ..Manifest::default()
        };
        let config = TrainConfig::resolve(&TrainArgs::default(), 4).unwrap();
        let split = if num_val > 0 { "val" } else { "test" };
        let goal = Goal::max("top1");
        let metrics = BTreeMap::from([("top1".to_owned(), false)]);
        let (rule, _) = BestRule::new(None, None, split, goal, &metrics).unwrap();
        let directory = Some(Path::new("runs/resnet20-shapes-seed0"));
        head(&manifest, &config, directory, &rule, 272_474, facts)
    }

    #[test]
    fn the_head_has_six_rows_of_a_hundred_columns_at_most() {
        let device = TrainConfig::resolve(&TrainArgs::default(), 4)
            .unwrap()
            .compute
            .device;
        assert_eq!(
            head_of(1, 0, &[]),
            [
                "run      runs/resnet20-shapes-seed0 | 0.1.0 (54c897e1)",
                "model    resnet20 | 272,474 parameters",
                "data     shapes | 10,000 train, 2,000 test | best by test-top1; no val split",
                "train    5 epochs | batch 64 = 16 x 4 ranks | sgd, rate 0.1, cosine",
                &format!("ranks    4 on n0 | 1 thread each | {device}, f32 | Open MPI v4.1.4"),
            ]
        );
        let facts = [("class weights", "0.1234 ".repeat(20))];
        let rows = head_of(8, 500, &facts);
        assert!(
            rows[2].ends_with("best by val-top1; test at the end"),
            "{rows:?}"
        );
        assert!(rows[4].starts_with("ranks    4 on 8 nodes |"), "{rows:?}");
        assert!(
            rows[5].starts_with("task     class weights 0.1234 "),
            "{rows:?}"
        );
        assert!(
            rows.iter().all(|row| row.chars().count() <= 100),
            "{rows:?}"
        );
        assert_eq!(rows.len(), 6);
    }
}
