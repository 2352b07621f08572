//! Faults under MPI: each job of three ranks must end in time and name the rank at fault once.
//!
//! Without arguments the program starts the jobs, `mpirun -n 3 mpi_faults fault KIND`, one after
//! the other, and checks how they end. Names of kinds select jobs. In each, rank 2 is at fault
//! while the others wait for it. With the feature `nccl`, ranks also wait in NCCL, with fakes of
//! the driver and NCCL.
#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program without the test harness"
)]

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use distributed::Communicator;
use distributed::communicator::{MpiCommunicator, WaitPolicy};
use distributed::gradients::HierarchicalReducer;
#[cfg(feature = "nccl")]
use distributed::gradients::{BucketContext, BucketReduction, NcclReduction};
use distributed::watchdog::{Phase, RankStatus, Watchdog, WatchedCommunicator};

#[cfg(feature = "nccl")]
mod fake;

const TIMEOUT: Duration = Duration::from_secs(3);

/// From the start of a job to its end: the timeout, and what MPI needs to start and end.
const LIMIT: Duration = Duration::from_secs(18);

/// A fault, and what must be on standard error.
struct Fault {
    kind: &'static str,
    /// Options of `mpirun`.
    options: &'static [&'static str],
    texts: &'static [&'static str],
    /// Number of lines that begin `error (rank `; 0 if only MPI reports.
    messages: usize,
}

/// Returns a fault that root reports, or a rank in its place.
const fn fault(kind: &'static str, texts: &'static [&'static str]) -> Fault {
    Fault {
        kind,
        options: &[],
        texts,
        messages: 1,
    }
}

const FAULTS: &[Fault] = &[
    fault(
        "stop",
        &[
            "error (rank 0): no progress for ",
            ": rank 2 does not answer",
            "\n  rank 2: no answer within 3.0 s\n",
        ],
    ),
    Fault {
        messages: 0,
        ..fault("kill", &["rank 2 with PID ", "signal 9 (Killed)"])
    },
    Fault {
        // As under launchers that do not end a job when one of its processes dies.
        options: &["--enable-recovery"],
        ..fault(
            "kill-unnoticed",
            &[
                "error (rank 0): no progress for ",
                ": rank 2 does not answer",
            ],
        )
    },
    fault(
        "panic",
        &["error (rank 2): panicked at ", "fails on purpose"],
    ),
    fault(
        "loop",
        &[
            "error (rank 0): no progress for ",
            ": rank 2 waits for no rank, busy in backward of epoch 2, step 8 for ",
            "\n  rank 1: epoch 2, step 8, waiting for ",
            "; waits in all_reduce_sum for ",
        ],
    ),
    fault(
        "loop-memory",
        &[
            ": rank 2 waits for no rank, busy in backward of ",
            "; waits in node_memory.sum_f32 for ",
        ],
    ),
    fault(
        "loop-root",
        &[
            "error (rank 1): no progress for ",
            ": rank 0 waits for no rank, busy in checkpoint of epoch 2, step 8 for ",
        ],
    ),
    fault(
        "other-collective",
        &[
            ": rank 2 waits in barrier of epoch 2, step 8, most in all_reduce_sum of epoch 2, step 8.",
        ],
    ),
    fault(
        "no-start",
        &["error (rank 0): no progress for 3.0 s: not all ranks have started their watchdogs"],
    ),
    #[cfg(feature = "nccl")]
    Fault {
        messages: 0,
        ..fault("nccl", &[])
    },
    #[cfg(feature = "nccl")]
    Fault {
        options: &["--enable-recovery"],
        ..fault(
            "nccl-kill-unnoticed",
            &[
                "error (rank 0): no progress for ",
                ": rank 2 does not answer",
                "; waits in ncclAllReduce for ",
            ],
        )
    },
    // The whole job is suspended for longer than the timeout and then resumed: no rank is at fault.
    Fault {
        messages: 0,
        ..fault("suspend", &[])
    },
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [command, kind] = arguments.as_slice()
        && command == "fault"
    {
        return be_a_rank(kind);
    }
    let Ok(version) = Command::new("mpirun").arg("--version").output() else {
        println!("mpi faults: skipped, there is no mpirun");
        return ExitCode::SUCCESS;
    };
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if !["Open MPI", "OpenRTE"]
        .iter()
        .any(|name| version.contains(name))
    {
        println!(
            "mpi faults: skipped, they need the options of Open MPI's mpirun; `cargo xtask test --only mpi` has some for all"
        );
        return ExitCode::SUCCESS;
    }
    let wanted =
        |fault: &&Fault| arguments.is_empty() || arguments.iter().any(|kind| kind == fault.kind);
    let failed: Vec<String> = FAULTS
        .iter()
        .filter(wanted)
        .filter_map(|fault| check(fault).err())
        .collect();
    failed.iter().for_each(|text| eprintln!("{text}"));
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a job and checks its end.
fn check(fault: &Fault) -> Result<(), String> {
    #[cfg(feature = "nccl")]
    let libraries = fake::libraries().ok_or("no C compiler for the fakes of NCCL")?;
    #[cfg(feature = "nccl")]
    let mut mpirun = fake::program("mpirun", &libraries, 3);
    #[cfg(not(feature = "nccl"))]
    let mut mpirun = Command::new("mpirun");
    mpirun.args([
        "-n",
        "3",
        "--oversubscribe",
        "--bind-to",
        "none",
        "--mca",
        "mpi_yield_when_idle",
        "1",
    ]);
    mpirun
        .args(fault.options)
        .arg(std::env::current_exe().unwrap())
        .args(["fault", fault.kind]);
    mpirun.envs([
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("RUST_BACKTRACE", "0"),
    ]);
    mpirun
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let start = Instant::now();
    let mut job = mpirun.spawn().unwrap();
    let stdout = read(job.stdout.take().unwrap());
    let stderr = read(job.stderr.take().unwrap());
    let status = loop {
        match job.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if start.elapsed() > LIMIT => break None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let taken = start.elapsed().as_secs_f64();
    let Some(status) = status else {
        // On this signal `mpirun` ends its processes, also stopped ones.
        signal("TERM", &[job.id()]);
        std::thread::sleep(Duration::from_secs(5));
        job.kill().unwrap();
        return Err(format!(
            "{}: the job continues after {taken:.1} s",
            fault.kind
        ));
    };
    let stdout = stdout.join().unwrap();
    let stderr = stderr.join().unwrap();
    println!(
        "mpi faults: {}: {status} after {taken:.1} s; standard error:\n{}",
        fault.kind,
        stderr.trim_end()
    );
    let mut wrong: Vec<String> = Vec::new();
    // With `--enable-recovery` Open MPI's `mpirun` succeeds whatever the processes do.
    let succeeds = ["suspend", "nccl", "kill-unnoticed", "nccl-kill-unnoticed"];
    if status.success() != succeeds.contains(&fault.kind) {
        wrong.push(format!("{status}"));
    }
    let messages = stderr.matches("error (rank ").count();
    if messages != fault.messages {
        wrong.push(format!(
            "expected {} messages, got {messages}",
            fault.messages
        ));
    }
    wrong.extend(
        fault
            .texts
            .iter()
            .filter(|&&text| !stderr.contains(text))
            .map(|text| format!("no \"{text}\"")),
    );
    let processes: Vec<&str> = stdout
        .lines()
        .filter_map(|line| line.strip_prefix("process "))
        .collect();
    if processes.len() != 3 {
        wrong.push(format!("expected 3 processes, got {processes:?}"));
    }
    // `mpirun` may end before the last of its signals has done its work.
    let end = Instant::now();
    while processes.iter().any(|process| runs(process)) && end.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    wrong.extend(
        processes
            .iter()
            .filter(|process| runs(process))
            .map(|process| format!("process {process} is left")),
    );
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(format!("{}: {}", fault.kind, wrong.join("; ")))
    }
}

fn read(mut stream: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Returns true if a process is there, and no zombie.
fn runs(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status
        .lines()
        .any(|line| line.starts_with("State:") && !line.contains('Z'))
}

/// Makes steps, and a fault in step 7 of epoch 1.
fn be_a_rank(kind: &str) -> ExitCode {
    println!("process {}", std::process::id());
    let world: Arc<dyn Communicator> = Arc::new(MpiCommunicator::init().expect("MPI starts"));
    let rank = world.rank();
    let at_fault = rank == if kind == "loop-root" { 0 } else { 2 };
    if kind == "no-start" && at_fault {
        spin();
    }
    let rank_status = Arc::new(RankStatus::new());
    let on_alarm = Arc::new(|alarm: &distributed::watchdog::Alarm| eprintln!("{alarm}"));
    let watched = WatchedCommunicator::new(Arc::clone(&world), Arc::clone(&rank_status));
    let watchdog = Watchdog::start(&*world, Arc::clone(&rank_status), TIMEOUT, on_alarm)
        .expect("all ranks start");
    let gradients = watched.duplicate().unwrap();
    gradients.set_wait_policy(WaitPolicy::Sleep);
    let mut reducer = HierarchicalReducer::new(gradients).unwrap();
    #[cfg(feature = "nccl")]
    let mut nccl = kind.starts_with("nccl").then(|| {
        NcclReduction::new(&watched, rank, Arc::clone(&rank_status)).expect("the fake NCCL starts")
    });
    for step in 0..8 {
        rank_status.at(1, step);
        rank_status.enter(Phase::Backward);
        if step == 7 && kind == "suspend" {
            suspend(&watched);
        }
        if step == 7 && at_fault {
            match kind {
                "stop" => signal("STOP", &[std::process::id()]),
                "kill" | "kill-unnoticed" | "nccl-kill-unnoticed" => {
                    signal("KILL", &[std::process::id()])
                }
                "panic" => panic!("the rank fails on purpose"),
                "loop" | "loop-memory" => spin(),
                "loop-root" => {
                    rank_status.enter(Phase::Checkpoint);
                    spin();
                }
                "other-collective" => watched.barrier().unwrap(),
                _ => {}
            }
        }
        rank_status.enter(Phase::Waiting);
        #[cfg(feature = "nccl")]
        if let Some(nccl) = &mut nccl {
            let mut values = vec![rank as f32; 100_000];
            nccl.reduce(BucketContext::default(), 0, &mut values)
                .unwrap();
            assert!(values.iter().all(|value| *value == 3.0), "{}", values[0]);
            continue;
        }
        if kind == "loop-memory" {
            reducer.sum(&mut [1.0; 1000]).unwrap();
        } else {
            watched.all_reduce_sum(&mut [1.0; 1000]).unwrap();
        }
    }
    watched.barrier().unwrap();
    drop(watchdog);
    watched.finish().unwrap();
    ExitCode::SUCCESS
}

fn spin() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

/// Sends a signal by a shell, as no C library is linked.
fn signal(name: &str, processes: &[u32]) {
    let processes: Vec<String> = processes.iter().map(u32::to_string).collect();
    let command = format!("kill -{name} {}", processes.join(" "));
    assert!(
        Command::new("sh")
            .args(["-c", &command])
            .status()
            .unwrap()
            .success()
    );
}

/// Stops all ranks for longer than the timeout while rank 2 computes.
fn suspend(communicator: &dyn Communicator) {
    let processes = communicator
        .all_gather(std::process::id().to_string().as_bytes())
        .unwrap();
    let processes: Vec<String> = processes
        .into_iter()
        .map(|process| String::from_utf8(process).unwrap())
        .collect();
    let processes = processes.join(" ");
    if communicator.rank() == 0 {
        let command = format!("sleep 0.3; kill -STOP {processes}; sleep 5; kill -CONT {processes}");
        std::thread::spawn(move || {
            Command::new("setsid")
                .args(["sh", "-c", &command])
                .status()
                .unwrap()
        });
    }
    if communicator.rank() == 2 {
        (0..20).for_each(|_| std::thread::sleep(Duration::from_millis(100)));
    }
}
