//! NCCL on machines without it: ranks agree before one of them waits for the others inside it. With
//! fakes of the driver and NCCL they sum.

#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]
#![allow(clippy::print_stdout, reason = "the reason for a skipped test")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::{env, fs};

use distributed::communicator::SingleCommunicator;
use distributed::gradients::{
    BucketContext, BucketReduction, NcclReduction, Readiness, library_version, verdict,
};
use distributed::watchdog::RankStatus;
use distributed::{CollectiveError, Communicator, run_ranks};

mod fake;

fn ready(version: &str, gpu: &str) -> Readiness {
    Readiness::Ready {
        version: version.to_owned(),
        gpu: gpu.to_owned(),
    }
}

fn text(all: &[Readiness]) -> String {
    verdict(all).unwrap_err().to_string()
}

/// Returns the sum of `rank + 1` over all ranks, through NCCL.
fn sum(communicator: &dyn Communicator, gpu: usize) -> Result<Vec<f32>, CollectiveError> {
    let mut reduction = NcclReduction::new(communicator, gpu, Arc::new(RankStatus::new()))?;
    let mut values = vec![communicator.rank() as f32 + 1.0; 1000];
    // Twice, as the second sum takes the memory of the first.
    reduction.reduce(BucketContext::default(), 0, &mut values.clone())?;
    reduction.reduce(BucketContext::default(), 0, &mut values)?;
    communicator.barrier()?;
    Ok(values)
}

#[test]
fn two_ranks_sum_or_both_get_the_same_error() {
    let results = run_ranks(2, |communicator| sum(&communicator, communicator.rank()));
    assert_eq!(results[0], results[1]);
    match &results[0] {
        Ok(values) => assert!(values.iter().all(|&value| value == 3.0)),
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.starts_with("NCCL cannot be used on rank")
                    && text.contains("remove --reduction nccl"),
                "{text}"
            );
        }
    }
}

#[test]
fn two_ranks_on_one_gpu_sum_or_are_refused_before_nccl_is_entered() {
    let results = run_ranks(2, |communicator| sum(&communicator, 0));
    assert_eq!(results[0], results[1]);
    match &results[0] {
        Ok(values) => assert!(values.iter().all(|&value| value == 3.0)),
        Err(error) => assert!(
            matches!(error, CollectiveError::NcclUnavailable { .. }),
            "{error}"
        ),
    }
}

#[test]
fn ranks_share_a_gpu_if_this_nccl_can_and_the_user_wants_it() {
    let Some(libraries) = fake::libraries() else {
        return;
    };
    for (version, wanted, num_sums) in [("23000", "1", 4), ("23000", "0", 0), ("22907", "1", 0)] {
        let log = libraries.path().join(format!("log-{version}-{wanted}"));
        fs::write(&log, "").unwrap();
        let mut again = fake::program(env::current_exe().unwrap(), &libraries, 1);
        again.env("FAKE_CUDA_LOG", &log);
        again.env("FAKE_NCCL_VERSION", version);
        again.env("NCCL_MULTI_RANK_GPU_ENABLE", wanted);
        let output = again.arg("two_ranks_on_one_gpu").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let log = fs::read_to_string(log).unwrap();
        let sums = log.lines().filter(|line| line.starts_with("call "));
        assert_eq!(sums.count(), num_sums, "NCCL {version}, variable {wanted}");
    }
}

#[test]
fn one_rank_gets_its_own_values_or_a_clear_error() {
    match sum(&SingleCommunicator::new(), 0) {
        Ok(values) => {
            assert!(library_version().is_some() && values.iter().all(|&value| value == 1.0))
        }
        Err(error) => assert!(
            matches!(error, CollectiveError::NcclUnavailable { .. }),
            "{error}"
        ),
    }
}

#[test]
fn with_fake_gpus_ranks_sum_and_each_stream_uploads_sums_and_downloads_in_this_order() {
    let Some(libraries) = fake::libraries() else {
        return;
    };
    let log = libraries.path().join("log");
    let mut again = fake::program(env::current_exe().unwrap(), &libraries, 2);
    again.env("FAKE_CUDA_LOG", &log);
    again.args(["two_ranks", "one_rank", "--test-threads", "1"]);
    let output = again.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let log = fs::read_to_string(log).unwrap();
    let mut streams = BTreeMap::<&str, Vec<&str>>::new();
    for line in log.lines() {
        let (call, stream) = line.split_once(' ').unwrap();
        let (_, stream) = stream.rsplit_once(' ').unwrap();
        if ["upload", "call", "download"].contains(&call) {
            streams.entry(stream).or_default().push(call);
        }
    }
    // Two ranks and then one rank, each with two sums.
    let of_rank = ["upload", "call", "download"].repeat(2);
    assert_eq!(
        streams.into_values().collect::<Vec<_>>(),
        [of_rank.clone(), of_rank.clone(), of_rank]
    );
}

#[test]
fn ranks_with_gpus_of_their_own_and_one_version_may_begin() {
    assert_eq!(
        verdict(&[ready("2.21.5", "GPU-a"), ready("2.21.5", "GPU-b")]),
        Ok(())
    );
    assert_eq!(verdict(&[ready("2.21.5", "GPU-a")]), Ok(()));
}

#[test]
fn what_one_rank_lacks_is_told_to_all_with_a_remedy() {
    let lacking = Readiness::Lacking {
        problem: "expected a, got b".to_owned(),
        remedy: "Do c".to_owned(),
    };
    let error = text(&[ready("2.21.5", "GPU-a"), lacking, ready("2.21.5", "GPU-a")]);
    assert_eq!(
        error,
        "NCCL cannot be used on rank 1: expected a, got b. Do c, or remove --reduction nccl to stage gradients \
         through host memory."
    );
}

#[test]
fn ranks_that_share_a_gpu_are_named() {
    let error = text(&[
        ready("2.21.5", "GPU-a"),
        ready("2.21.5", "GPU-b"),
        ready("2.21.5", "GPU-a"),
    ]);
    assert!(
        error.contains("on ranks 0, 2: expected a GPU for every rank, got GPU-a for 2 of them"),
        "{error}"
    );
}

#[test]
fn another_version_on_a_rank_is_refused() {
    let error = text(&[ready("2.21.5", "GPU-a"), ready("2.18.1", "GPU-b")]);
    assert!(
        error.contains("on rank 1: expected NCCL 2.21.5 as on rank 0, got 2.18.1"),
        "{error}"
    );
}
