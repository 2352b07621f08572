//! What the watchdog costs: nanoseconds a watched call, and processor time of its idle thread.
//!
//! `mpirun -n 2 watchdog_cost [SECONDS]`; without a launcher the first alone.
#![allow(clippy::print_stdout, reason = "a program that prints")]

use std::error::Error;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use distributed::{Communicator, RankStatus, SingleCommunicator, Watchdog, WatchedCommunicator, launch};

fn main() -> ExitCode {
    launch(measure)
}

fn measure(world: &Arc<dyn Communicator>) -> Result<(), Box<dyn Error>> {
    let seconds = std::env::args().nth(1).map_or(Ok(10), |argument| argument.parse())?;
    let rank_status = Arc::new(RankStatus::new());
    let single: Arc<dyn Communicator> = Arc::new(SingleCommunicator::new());
    let watched: Arc<dyn Communicator> =
        Arc::new(WatchedCommunicator::new(Arc::clone(&single), Arc::clone(&rank_status)));
    let (plain, with) = (nanoseconds(&*single, 10_000_000)?, nanoseconds(&*watched, 10_000_000)?);
    if world.rank() == 0 {
        println!("a call that does nothing: {plain:.1} ns, watched {with:.1} ns");
    }
    if world.world_size() == 1 {
        return Ok(());
    }
    let watched = WatchedCommunicator::new(Arc::clone(world), Arc::clone(&rank_status));
    for _ in 0..3 {
        let (plain, with) = (nanoseconds(&**world, 20_000)?, nanoseconds(&watched, 20_000)?);
        if world.rank() == 0 {
            println!("a barrier: {plain:.0} ns, watched {with:.0} ns");
        }
    }
    let watchdog = Watchdog::start(&**world, rank_status, Duration::from_secs(600), Box::new(|_| {}))?;
    std::thread::sleep(Duration::from_secs(1));
    let before = processor_time()?;
    std::thread::sleep(Duration::from_secs(seconds));
    let used = processor_time()?.saturating_sub(before);
    let percent = used.as_secs_f64() / seconds as f64 * 100.0;
    println!("rank {}: the idle watchdog used {used:?} in {seconds} s, {percent:.3} % of a core", world.rank());
    watched.barrier()?;
    drop(watchdog);
    Ok(())
}

fn nanoseconds(communicator: &dyn Communicator, calls: u32) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    for _ in 0..calls {
        black_box(communicator).barrier()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(calls))
}

/// Time that the watchdog's thread has been on a processor.
fn processor_time() -> Result<Duration, Box<dyn Error>> {
    let mut total = Duration::ZERO;
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        if std::fs::read_to_string(task.join("comm"))?.trim_end() == "watchdog" {
            let statistics = std::fs::read_to_string(task.join("schedstat"))?;
            total += Duration::from_nanos(statistics.split(' ').next().unwrap_or("0").parse()?);
        }
    }
    Ok(total)
}
