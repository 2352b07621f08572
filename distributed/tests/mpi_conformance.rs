//! The conformance suite under MPI: `mpirun -n N mpi_conformance`; without a launcher, a world of
//! one.
//!
//! With an argument the last rank fails, and the job must end within seconds with one line `error
//! (rank R): …`:
//! - `fault panic`, `fault panic-thread` and `fault error`: the others wait in a barrier; exit
//!   codes 101, 101 and 3;
//! - `fault panic-memory`: the others wait in shared memory; exit code 101;
//! - `fault return`: the rank's work in `launch` returns an error; exit code 1;
//! - `fault leave`: the rank drops its communicator; exit code 1.
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program without the test harness"
)]

mod conformance;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use distributed::communicator::{Launcher, MpiCommunicator, check_world_size};
use distributed::gradients::HierarchicalReducer;
use distributed::watchdog::{Alarm, RankStatus, Watchdog, WatchedCommunicator};
use distributed::{CollectiveError, Communicator, launch};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["fault", "return"] {
        return launch(|communicator| give_up(&**communicator));
    }
    let communicator = MpiCommunicator::init().expect("MPI starts");
    let launcher =
        Launcher::detect_from_environment().expect("the launcher's variables are numbers");
    if let Err(error) = check_world_size(launcher.as_ref(), communicator.world_size(), true) {
        eprintln!("error (rank {}): {error}", communicator.rank());
        return ExitCode::FAILURE;
    }
    if let [command, fault] = arguments.as_slice()
        && command == "fault"
    {
        if fault == "leave" {
            // What a program does that ends with `?` in `main`.
            return give_up(&communicator).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
        }
        fail(&communicator, fault);
    }
    check_launcher(launcher.as_ref(), &communicator);
    conformance::check(&communicator);
    a_watched_communicator_conforms(&communicator);
    a_reduction_longer_than_one_mpi_call_is_whole(&communicator);
    the_communicator_works_from_another_thread(&communicator);
    ranks_of_one_node_share_memory(&communicator);
    if communicator.rank() == 0 {
        let world_size = communicator.world_size();
        let level = communicator.thread_level();
        println!(
            "mpi conformance: ok, {world_size} ranks, {}, threads {level}",
            communicator.library()
        );
    }
    communicator.finish().expect("all ranks are there");
    ExitCode::SUCCESS
}

/// Returns an error on the last rank, while the others wait for it.
fn give_up(communicator: &dyn Communicator) -> Result<(), CollectiveError> {
    communicator.barrier()?;
    if communicator.rank() + 1 == communicator.world_size() {
        let text = "the last rank gives up on purpose";
        return Err(CollectiveError::no_thread(text));
    }
    communicator.barrier()
}

/// Lets the last rank fail and the others wait for it.
fn fail(communicator: &MpiCommunicator, fault: &str) {
    let mut reducer =
        HierarchicalReducer::new(communicator.duplicate().expect("all ranks are there"))
            .expect("all ranks are there");
    communicator.barrier().expect("all ranks are there");
    if communicator.rank() + 1 == communicator.world_size() {
        match fault {
            "panic" | "panic-memory" => panic!("the last rank fails on purpose"),
            "panic-thread" => {
                let thread = std::thread::Builder::new().name("loader".to_owned());
                let thread = thread.spawn(|| panic!("a thread of the last rank fails on purpose"));
                // The panic ends the job from its thread: it must not need this one.
                let _kept = thread.expect("a thread starts");
                communicator.barrier().expect("the others wait too");
                std::thread::sleep(Duration::from_secs(60));
            }
            _ => {
                eprintln!(
                    "error (rank {}): the last rank gives up on purpose",
                    communicator.rank()
                );
                communicator.abort("the last rank gives up on purpose", 3);
            }
        }
    }
    if fault == "panic-memory" {
        reducer
            .sum(&mut [1.0; 1000])
            .expect("the job ends before this returns an error");
    }
    communicator
        .barrier()
        .expect("the job ends before this returns an error");
    communicator
        .barrier()
        .expect("the job ends before this returns an error");
}

fn check_launcher(launcher: Option<&Launcher>, communicator: &MpiCommunicator) {
    let Some(launcher) = launcher else {
        assert_eq!(communicator.world_size(), 1);
        return;
    };
    assert!(
        launcher.rank.is_none_or(|rank| rank == communicator.rank()),
        "{launcher:?}"
    );
}

fn a_watched_communicator_conforms(communicator: &MpiCommunicator) {
    let rank_status = Arc::new(RankStatus::new());
    let watched = communicator.duplicate().unwrap();
    let timeout = Duration::from_secs(60);
    let on_alarm = Arc::new(|alarm: &Alarm| eprintln!("{alarm}"));
    let watchdog =
        Watchdog::start(communicator, Arc::clone(&rank_status), timeout, on_alarm).unwrap();
    conformance::check(&WatchedCommunicator::new(watched, Arc::clone(&rank_status)));
    communicator.barrier().unwrap();
    drop(watchdog);
    assert_eq!(rank_status.report().call, None);
}

fn a_reduction_longer_than_one_mpi_call_is_whole(communicator: &MpiCommunicator) {
    let length = (1 << 23) + 3;
    let mut values = vec![1.0_f32; length];
    values[length - 1] = 2.0;
    communicator.all_reduce_sum(&mut values).unwrap();
    let world_size = communicator.world_size() as f32;
    assert!(
        values[..length - 1]
            .iter()
            .all(|&value| value == world_size)
    );
    assert_eq!(values[length - 1], 2.0 * world_size);
}

fn the_communicator_works_from_another_thread(communicator: &MpiCommunicator) {
    let sum = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let mut values = [communicator.rank() as u64 + 1];
            communicator.all_reduce_sum_u64(&mut values).unwrap();
            values[0]
        });
        thread.join().unwrap()
    });
    let world_size = communicator.world_size() as u64;
    assert_eq!(sum, world_size * (world_size + 1) / 2);
}

fn ranks_of_one_node_share_memory(communicator: &MpiCommunicator) {
    if communicator.topology().num_nodes == 1 {
        let reducer = HierarchicalReducer::new(communicator.duplicate().unwrap()).unwrap();
        assert!(reducer.shares_memory(), "{reducer:?}");
    }
}
