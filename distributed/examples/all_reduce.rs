//! Times of an all-reduce, by algorithm and size: `mpirun -n N all_reduce [rounds]`.
//!
//! In: the number of ranks that mpirun starts. Out: a table of medians and minima in µs, printed by
//! rank 0.
//! Invariant: the algorithms take turns, so that a slow moment of the machine affects all of them;
//! a round lasts as long as its slowest rank.
#![allow(clippy::print_stdout, reason = "it is a program")]

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use distributed::communicator::WaitPolicy;
use distributed::gradients::{AllReducer, ReductionKind};
use distributed::{Communicator, launch};

const SIZES: [usize; 4] = [64 << 10, 1 << 20, 4 << 20, 16 << 20];

fn main() -> ExitCode {
    launch(measure)
}

fn measure(world: &Arc<dyn Communicator>) -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(30), |rounds| rounds.parse())?;
    let patient = world.duplicate()?;
    patient.set_wait_policy(WaitPolicy::Sleep);
    let mut candidates = [
        (
            "MPI_Allreduce",
            AllReducer::new(ReductionKind::Library, Arc::clone(world))?,
        ),
        (
            "MPI_Iallreduce",
            AllReducer::new(ReductionKind::Library, world.duplicate()?)?,
        ),
        (
            "ring",
            AllReducer::new(ReductionKind::Ring, world.duplicate()?)?,
        ),
        (
            "halving-doubling",
            AllReducer::new(ReductionKind::HalvingDoubling, world.duplicate()?)?,
        ),
        (
            "hierarchical",
            AllReducer::new(ReductionKind::Hierarchical, world.duplicate()?)?,
        ),
        (
            "exact",
            AllReducer::new(ReductionKind::Exact, world.duplicate()?)?,
        ),
        (
            "Iallreduce asleep",
            AllReducer::new(ReductionKind::Library, Arc::clone(&patient))?,
        ),
        (
            "hierarchical asleep",
            AllReducer::new(ReductionKind::Hierarchical, patient)?,
        ),
    ];
    if world.rank() == 0 {
        println!(
            "{} ranks, {rounds} rounds, µs: median (minimum)",
            world.world_size()
        );
        let names: Vec<String> = candidates
            .iter()
            .map(|(name, _)| format!("{name:>20}"))
            .collect();
        println!("{:>9} {}", "bytes", names.join(" "));
    }
    for bytes in SIZES {
        let mut values = vec![0.5_f32; bytes / size_of::<f32>()];
        let mut times = vec![Vec::new(); candidates.len()];
        for round in 0..rounds + 2 {
            for ((_, reducer), times) in candidates.iter_mut().zip(&mut times) {
                values.fill(0.5 + round as f32);
                world.barrier()?;
                let start = Instant::now();
                reducer.sum(&mut values)?;
                let mut elapsed = [start.elapsed().as_nanos() as u64];
                world.all_reduce_max_u64(&mut elapsed)?;
                // The first rounds touch memory for the first time.
                if round >= 2 {
                    times.push(elapsed[0] as f64 / 1e3);
                }
            }
        }
        if world.rank() == 0 {
            let cells: Vec<String> = times
                .iter_mut()
                .map(|times| {
                    times.sort_by(f64::total_cmp);
                    format!(
                        "{:>20}",
                        format!("{:.0} ({:.0})", times[times.len() / 2], times[0])
                    )
                })
                .collect();
            println!("{bytes:>9} {}", cells.join(" "));
        }
    }
    Ok(())
}
