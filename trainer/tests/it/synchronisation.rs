//! Properties of `--sync`, `--reduction`, `--compress` and `--overlap`, on thread-ranks.

use std::fs;

use crate::fixture::{Run, TINY, ended_with, flags, relative_l2, run, trainer};
use distributed::ROOT;
use distributed::replica::{ParameterLayout, fingerprint, read};
use trainer::config::cli::TrainArgs;
use trainer::run::checkpoint::{Checkpoint, CheckpointStore};

/// Returns flags of epochs with five steps. The last step has 8 samples, which in some runs is less
/// than ranks times shards.
fn tiny(further: &str) -> TrainArgs {
    flags(&[
        TINY,
        "--shapes-test 24 --augment crop-flip --eval-every-epochs 2 --bucket-mib 0.05",
        further,
    ])
}

/// Relative L2 distances of the parameters (docs/numerics.md): after ten steps of two reductions,
/// and after an epoch of local SGD.
const REDUCTION_TOLERANCE: f64 = 1e-3;
const LOCAL_SGD_TOLERANCE: f64 = 1e-4;

/// Twenty steps of ResNet-20. The last step has one sample.
const EXACT: &str = "--reduction exact --virtual-shards 4 --model resnet20 --shapes-train 153 --global-batch-size 8 --epochs 1 \
                     --eval-every-epochs 1";

fn parameters(run: &Run) -> Vec<f32> {
    let model = &run.outcomes()[ROOT].model;
    read(model, &ParameterLayout::new(model))
}

fn hash(world_size: usize, options: &str) -> String {
    run(world_size, &tiny(options)).parameter_hash()
}

fn assert_replicas_are_equal(run: &Run, what: &str) {
    let outcomes = run.outcomes().iter();
    let hashes: Vec<_> = outcomes
        .map(|outcome| fingerprint(&outcome.model))
        .collect();
    assert!(
        hashes.iter().all(|hash| *hash == hashes[0]),
        "{what}: {hashes:?}"
    );
}

/// Returns the number of steps of a run, which must be the same on all ranks.
fn num_steps(run: &Run, what: &str) -> u64 {
    let outcomes = run.outcomes().iter();
    let steps: Vec<u64> = outcomes.map(|outcome| outcome.progress.step).collect();
    assert!(
        steps.iter().all(|step| *step == steps[0]),
        "{what}: {steps:?}"
    );
    steps[0]
}

#[test]
fn a_rank_of_factors_at_which_no_tensor_is_compressed_is_reported() {
    let vain = "--compress powersgd:100: no tensor of the model becomes less than half as large; give a smaller rank";
    let directory = tempfile::tempdir().unwrap();
    let train = format!("train {TINY} --threads 1 --compress powersgd:100 --output-dir");
    let text = ended_with(0, trainer(&train, &[&directory.path().join("run")]));
    assert!(text.contains(vain), "{text}");
    let bench = "bench --model resnet8 --image-size 8 --batch-size-per-rank 4 --steps 1 --threads 1 --compress powersgd:";
    let text = ended_with(1, trainer(&format!("{bench}100"), &[]));
    assert!(text.contains(vain), "{text}");
    ended_with(0, trainer(&format!("{bench}2"), &[]));
}

#[test]
fn exact_reduction_gives_the_same_bits_on_any_number_of_ranks_also_in_the_norm_statistics() {
    let one = run(1, &tiny(EXACT));
    for world_size in 2..=4 {
        let many = run(world_size, &tiny(EXACT));
        assert_eq!(
            many.parameter_hash(),
            one.parameter_hash(),
            "{world_size} ranks"
        );
        let statistics = |run: &Run| {
            read(
                &run.outcomes()[ROOT].model,
                &ParameterLayout::state(&run.outcomes()[ROOT].model),
            )
        };
        assert_eq!(statistics(&many), statistics(&one), "{world_size} ranks");
        let correct = |run: &Run| run.last_record().test.as_ref().unwrap().top1_correct;
        assert_eq!(correct(&many), correct(&one));
    }
}

#[test]
fn an_exact_run_of_four_ranks_resumed_on_one_ends_with_the_bits_of_an_undisturbed_one() {
    let whole = run(
        4,
        &tiny(&format!(
            "{EXACT} --checkpoint-every-steps 10 --keep-checkpoints 99"
        )),
    );
    let resumed = whole
        .with_checkpoint_alone(10)
        .go(1, &tiny(&format!("{EXACT} --resume")));
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
    let correct = |run: &Run| run.last_record().test.as_ref().unwrap().top1_correct;
    assert_eq!(correct(&resumed), correct(&whole));
}

#[test]
fn the_order_of_sums_is_all_that_distinguishes_the_reductions() {
    let expected = run(3, &tiny("--reduction mpi"));
    for reduction in ["ring", "halving-doubling", "hierarchical"] {
        let other = run(3, &tiny(&format!("--reduction {reduction}")));
        let error = relative_l2(&parameters(&other), &parameters(&expected));
        assert!(error <= REDUCTION_TOLERANCE, "{reduction}: {error}");
    }
}

#[test]
fn overlap_does_not_change_a_bit() {
    for options in [
        "",
        "--grad-accum-steps 2",
        "--batch-norm sync",
        "--clip-grad-norm 0.5",
    ] {
        let [on, off] =
            ["on", "off"].map(|overlap| hash(3, &format!("{options} --overlap {overlap}")));
        assert_eq!(on, off, "{options}");
    }
}

#[test]
fn a_synchronous_parameter_server_gives_the_bits_of_an_allreduce_in_rank_order() {
    // The server's buckets are smaller, which does not change a sum in rank order.
    let expected = hash(3, "--reduction mpi");
    for servers in ["1", "2", "3"] {
        assert_eq!(
            hash(3, &format!("--sync parameter-server --servers {servers}")),
            expected,
            "{servers} servers"
        );
    }
    assert_eq!(
        hash(3, "--sync async-parameter-server --staleness 0"),
        expected,
        "staleness 0"
    );
    // Three ranks are workers. The other two ranks are only servers.
    let own = "--sync parameter-server --servers 2 --server-placement own";
    assert_eq!(hash(5, own), expected, "servers on separate ranks");
}

#[test]
fn one_worker_of_an_asynchronous_server_is_sequential_descent() {
    let run = run(1, &tiny("--sync async-parameter-server"));
    assert_eq!(run.parameter_hash(), hash(1, ""));
    let staleness = run.outcomes()[ROOT].staleness.clone().unwrap();
    assert_eq!(staleness.len(), 1, "an update was stale: {staleness:?}");
}

#[test]
fn asynchronous_workers_count_every_update_and_end_with_equal_replicas() {
    for bound in ["", "--staleness 1"] {
        let run = run(
            3,
            &tiny(&format!(
                "--sync async-parameter-server --learning-rate 0.01 {bound}"
            )),
        );
        assert_replicas_are_equal(&run, bound);
        let staleness = run.outcomes()[ROOT].staleness.clone().unwrap();
        // Three workers send each bucket once in each of ten steps.
        let num_updates: u64 = staleness.iter().sum();
        assert!(
            num_updates > 0 && num_updates.is_multiple_of(30),
            "{staleness:?}"
        );
    }
}

#[test]
fn a_parameter_server_run_resumed_inside_an_epoch_ends_with_the_bits_of_an_undisturbed_one() {
    let options = "--sync parameter-server --servers 2";
    let whole = run(2, &tiny(options));
    let stopped = Run::in_new_directory()
        .stopping_after(1)
        .go(2, &tiny(options));
    let resumed = stopped.again().go(2, &tiny(&format!("{options} --resume")));
    assert_eq!(resumed.parameter_hash(), whole.parameter_hash());
}

#[test]
fn independent_ranks_stop_together_when_one_of_them_is_asked_to() {
    // Local SGD stops before its next average.
    for (options, at) in [
        ("--sync async-parameter-server --staleness 2", 4),
        ("--sync async-parameter-server", 4),
        ("--sync local-sgd --every 1000", 6),
        ("--sync post-local-sgd --from-step 3 --every 1000", 6),
    ] {
        let args = tiny(&format!("{options} --epochs 4 --shapes-train 4800"));
        let stopped = Run::in_new_directory().stopping_on(1, at).go(3, &args);
        let step = num_steps(&stopped, options);
        assert!((at..200).contains(&step), "{options}: {step}");
        assert!(
            stopped
                .outcomes()
                .iter()
                .all(|outcome| outcome.stopped_early)
        );
        assert_replicas_are_equal(&stopped, options);
        let last = format!("checkpoints/step-{step:08}");
        assert!(
            stopped.directory().join(&last).is_dir(),
            "{options}: {last}"
        );
    }
}

#[test]
fn local_sgd_that_averages_every_step_without_momentum_is_synchronous_descent() {
    // 96 samples give every rank the same number in every step.
    // The run has one epoch, because rounding differences grow with each step.
    let plain = "--momentum 0 --limit-train 96 --epochs 1";
    let expected = run(2, &tiny(plain));
    let local = run(2, &tiny(&format!("{plain} --sync local-sgd --every 1")));
    let error = relative_l2(&parameters(&local), &parameters(&expected));
    assert!(error <= LOCAL_SGD_TOLERANCE, "{error}");
}

#[test]
fn post_local_sgd_is_allreduce_until_its_first_local_step() {
    let late = "--sync post-local-sgd --from-step 99";
    assert_eq!(hash(2, late), hash(2, "--reduction mpi"));
}

#[test]
fn local_sgd_ends_with_equal_replicas_and_learns() {
    let args = tiny("--sync local-sgd --every 3 --epochs 4");
    let run = run(3, &args);
    assert_replicas_are_equal(&run, "local-sgd");
    let loss = run.last_record().train_loss.unwrap();
    assert!(loss < 2.3, "{loss}");
}

/// Every compression, with two warm-up steps where the compression has a warm-up.
const COMPRESSIONS: [&str; 4] = [
    "--compress bf16",
    "--compress f16",
    "--compress powersgd:2 --compress-warmup-steps 2",
    "--compress topk:10 --compress-warmup-steps 2",
];

#[test]
fn every_compression_trains_and_a_sixteen_bit_wire_stays_near_the_plain_sum() {
    let plain = run(2, &tiny(""));
    for compress in COMPRESSIONS {
        let run = run(2, &tiny(compress));
        assert_replicas_are_equal(&run, compress);
        let (record, expected) = (run.last_record(), plain.last_record());
        assert!(
            record.compression_error > 0.0 && expected.compression_error == 0.0,
            "{compress}"
        );
        assert!(
            record.bytes_sent_per_step < expected.bytes_sent_per_step,
            "{compress}"
        );
        let error = relative_l2(&parameters(&run), &parameters(&plain));
        assert!(
            error <= if compress.contains("16") { 0.02 } else { 0.5 },
            "{compress}: {error}"
        );
    }
}

/// Returns the flags of a compressed run that keeps a checkpoint of every step.
fn compressed(compress: &str) -> String {
    format!("{compress} --checkpoint-every-steps 1 --keep-checkpoints 99")
}

#[test]
fn a_compressed_run_resumed_inside_an_epoch_ends_with_the_bits_of_an_undisturbed_one() {
    for compress in COMPRESSIONS {
        let options = compressed(compress);
        let whole = run(2, &tiny(&options));
        // Step 1 is in the warm-up, if the compression has one. Step 3 is after the warm-up.
        for step in [1, 3] {
            let copy = whole.with_checkpoint_alone(step);
            let resumed = copy.go(2, &tiny(&format!("{options} --resume")));
            assert_eq!(
                resumed.parameter_hash(),
                whole.parameter_hash(),
                "{compress} from step {step}"
            );
        }
    }
}

#[test]
fn on_another_number_of_ranks_root_continues_with_the_sum_of_all_residuals() {
    let options = compressed(COMPRESSIONS[3]);
    let resuming = tiny(&format!("{options} --resume"));
    let whole = run(3, &tiny(&options));
    let len = parameters(&whole).len();
    let path = |run: &Run| run.directory().join("checkpoints/step-00000003");
    let copy = whole.with_checkpoint_alone(3);
    let checkpoint = Checkpoint::open(&path(&copy)).unwrap();
    let own: Vec<Vec<f32>> = (0..3)
        .map(|rank| checkpoint.residual(rank, 3, len).unwrap())
        .collect();
    assert!(own.iter().all(|own| own.iter().any(|value| *value != 0.0)));
    let sum: Vec<f32> = (0..len)
        .map(|index| own[0][index] + own[1][index] + own[2][index])
        .collect();
    assert_eq!(checkpoint.residual(ROOT, 2, len).unwrap(), sum);
    assert!(
        checkpoint
            .residual(1, 2, len)
            .unwrap()
            .iter()
            .all(|value| *value == 0.0)
    );

    let without = Run::in_new_directory();
    fs::create_dir(without.directory()).unwrap();
    let store = CheckpointStore::new(&without.directory().join("checkpoints"), 9);
    let tensors = checkpoint.training_tensors().unwrap();
    let model = fs::read(checkpoint.model_path()).unwrap();
    store
        .save(checkpoint.state, &tensors, None, &model)
        .unwrap();
    let refused = without.again().try_go(2, &resuming).unwrap_err();
    assert!(format!("{refused:#}").contains("expected a checkpoint with the residuals"));
    copy.go(2, &resuming);
}

#[test]
fn a_checkpoint_whose_ranks_residuals_are_damaged_is_not_whole() {
    let whole = run(2, &tiny(&compressed(COMPRESSIONS[0])));
    let copy = whole.with_checkpoint_alone(3);
    let folder = copy.directory().join("checkpoints/step-00000003");
    Checkpoint::open(&folder).unwrap();
    fs::remove_file(folder.join("residual-00001.safetensors")).unwrap();
    let error = format!("{:#}", Checkpoint::open(&folder).unwrap_err());
    assert!(error.contains("residual-00001.safetensors"), "{error}");
}

#[test]
fn a_trace_shows_every_rank() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    run(2, &tiny(&format!("--epochs 1 --trace {}", path.display())));
    let events: Vec<serde_json::Value> =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    for (rank, name) in [
        (0, "forward"),
        (1, "backward"),
        (1, "bucket 0"),
        (0, "exposed communication"),
        (1, "input"),
    ] {
        assert!(
            events
                .iter()
                .any(|event| event["pid"] == rank && event["name"] == name),
            "rank {rank}: {name}"
        );
    }
}
