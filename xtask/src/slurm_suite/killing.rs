//! Checks of ranks that are killed under srun: the step ends, and the run goes on to the same parameters.

use super::{EPOCHS, NODES, Suite};
use crate::chaos::Storm;
use crate::suite::launcher::Launcher;
use crate::suite::run::{QUICK, Run, arguments, instead};
use crate::suite::{Check, check, checkpoints, same};

pub(super) const CHECKS: [Check<Suite>; 2] = [
    check(
        "SIGKILL to one task of two nodes ends the step, and a restart ends with the undisturbed parameters",
        killed_task,
    ),
    check(
        "a run whose ranks are killed and stopped at random, under mpirun and under srun, ends with the undisturbed parameters",
        storms,
    ),
];

/// As many as there is time for in a suite; `cargo xtask chaos` takes more.
const FAULTS: usize = 12;
const SEED: u64 = 7;

/// Here with the time between SIGTERM and SIGKILL that other jobs have, after which Slurm kills the survivors; the storm, which
/// kills root as well, shortens it.
fn killed_task(suite: &Suite) -> Result<(), String> {
    let run = Run::new(suite, "killed");
    let words = instead(arguments(&run.folder, EPOCHS), &QUICK);
    let (ended, elapsed) =
        run.signalled(suite, NODES, &words, || run.has_line(), &[("KILL", 1)])?;
    ended.expect(elapsed.as_secs() < 90, "an end within 90 s of the kill")?;
    ended.expect(ended.finished.code != Some(0), "an exit code that is not 0")?;
    checkpoints::whole(&run.folder)?;
    suite.settle()?;
    run.train(suite, NODES, EPOCHS, &[&QUICK[..], &["--resume"]].concat())?;
    same(&run.name, suite.undisturbed()?, &run.parameter_hash()?)
}

fn storms(suite: &Suite) -> Result<(), String> {
    let undisturbed = suite.undisturbed_long()?;
    let storm = |name| Storm {
        name,
        faults: FAULTS,
        seed: SEED,
        disk: None,
    };
    println!("{}", storm("storm-mpirun").rage(&suite.mpi, undisturbed)?);
    suite.quicken_kills()?;
    println!("{}", storm("storm-srun").rage(suite, undisturbed)?);
    Ok(())
}
