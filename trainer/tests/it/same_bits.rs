//! Runs whose bits do not depend on the CPU or the C library, compared with constants.
//!
//! `cargo xtask test --only bits` repeats the first test on an emulated CPU without AVX-512, and
//! with another C library.

use burn_resnet::Isa;

use crate::fixture::{Run, TINY, flags, run};
use crate::shards::photographs;

const EXACT: &str = "--cpu avx2 --reduction exact --virtual-shards 2 --epochs 1 --warmup-epochs 0 --schedule cosine";

/// Returns the parameter hash, the training losses and the test losses.
fn bits(run: &Run) -> (String, [f64; 2]) {
    let record = run.last_record();
    (
        run.parameter_hash(),
        [
            record.train_loss.unwrap(),
            record.evaluation().unwrap().1.loss,
        ],
    )
}

fn of_shapes(world_size: usize) -> (String, [f64; 2]) {
    let few = "--shapes-train 16 --shapes-test 8 --global-batch-size 8 --augment trivial --label-smoothing 0.1";
    bits(&run(world_size, &flags(&[TINY, few, EXACT])))
}

fn of_photographs(world_size: usize) -> (String, [f64; 2]) {
    let folder = photographs();
    let dir = folder.path().display();
    let data =
        format!("--dataset image-folder --data-dir {dir} --resolution 16 --augment resized-crop");
    let few =
        "--model resnet8 --limit-train 8 --limit-test 4 --global-batch-size 4 --optimizer adamw";
    bits(&run(
        world_size,
        &flags(&[
            &data,
            few,
            "--loss binary-cross-entropy --dtype bf16",
            EXACT,
        ]),
    ))
}

#[test]
fn exact_runs_of_a_named_instruction_set_have_these_bits_on_every_processor() {
    if !Isa::Avx2Fma.is_available() {
        println!("skipped: no AVX2 with FMA here");
        return;
    }
    let expected = [
        (
            "c245bd32c796c4adf8fc2761b1504c4672806afaac713955a1a1e004093716b8",
            [2.571113884449005, 3.5334708839654922],
        ),
        (
            "349c72addeaa0a1b43c105788471176714099e53c23b3e71621edbb3356d5c83",
            [1.1826963238418102, 0.7207219153642654],
        ),
    ];
    let expected = expected.map(|(hash, losses)| (hash.to_owned(), losses));
    assert_eq!(
        [of_shapes(1), of_photographs(1)],
        expected,
        "shapes in f32, photographs in bf16"
    );
}

#[test]
fn exact_runs_of_a_named_instruction_set_have_the_same_bits_on_two_ranks() {
    if !Isa::Avx2Fma.is_available() {
        println!("skipped: no AVX2 with FMA here");
        return;
    }
    assert_eq!(of_shapes(2), of_shapes(1));
    assert_eq!(of_photographs(2), of_photographs(1));
}
