//! `cargo xtask gpu-check`: a folder that proves and measures a GPU machine, made on any machine.
//!
//! In: the workspace, files that stay outside it. Out: `target/gpu-check`, which needs bash and a python3 with PyTorch where it runs.
//! Invariant: nothing is measured beside a compiler of ours; the scripts are those of `peers/`, copied.

mod glibc;
mod pack;

use std::process::Command as Process;

use crate::arguments::{Arguments, Command, Flag};
use crate::cuda;
use crate::failure::Outcome;
use crate::process;
use crate::setup::{self, NO_INSTALL};

pub(crate) const COMMAND: Command = Command {
    name: "gpu-check",
    summary: "Prove that the trainer computes rightly on a GPU and measure it beside PyTorch, or pack this for a GPU machine.",
    details: "\
Builds the trainer for CUDA without LLVM, as `ci --cuda` does (about 25 minutes on 2 cores when new), and packs it with the
scripts of peers/gpu into target/gpu-check. With a GPU here it runs them at once; else copy the folder to a machine with one and
run ./gpu-check.sh there: eight minutes at most, four with --quick. docs/gpu.md tells what it shows.
--data-dir names a folder with resnet20-12fca82f.th and CIFAR-10's test_batch.bin, for the check known-answer.",
    subjects: &[],
    parts: &[],
    object: None,
    flags: &[
        Flag { name: "--quick", value: None, help: "ResNet-20 alone, nothing compiled by PyTorch" },
        Flag { name: "--data-dir", value: Some("DIR"), help: "published weights and images to pack" },
        NO_INSTALL,
    ],
    passed_on: None,
    run,
};

fn run(arguments: Arguments) -> Outcome {
    let known_answer = arguments.value("--data-dir").map(pack::KnownAnswer::find).transpose()?;
    setup::run(&arguments)?;
    let built = cuda::built()?;
    let needed = glibc::needed(&built.trainer)?;
    let folder = pack::pack(&built, known_answer.as_ref())?;
    println!("{} packed; the program needs glibc {needed} or newer", folder.display());
    if !cuda::has_gpu() {
        println!("no GPU here: copy {} to a machine with one and run ./gpu-check.sh there", folder.display());
        return Ok(());
    }
    let mut command = Process::new(folder.join(pack::ENTRY));
    command.current_dir(&folder);
    if arguments.has("--quick") {
        command.arg("--quick");
    }
    process::run(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo;

    #[test]
    fn the_scripts_pass_their_own_tests() {
        if process::answer("python3", &["-c", "import sys; assert sys.version_info >= (3, 9)"]).is_none() {
            println!("SKIPPED: no python3 of 3.9 or newer");
            return;
        }
        let output = Process::new("python3")
            .args(["-B", "-W", "error", "-m", "unittest"])
            .current_dir(cargo::root().join("peers/gpu"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn the_shell_script_is_one_and_refuses_what_it_cannot_use() {
        let script = cargo::root().join("peers/gpu").join(pack::ENTRY);
        assert!(Process::new("bash").arg("-n").arg(&script).status().unwrap().success());
        let refused = |words: &[&str]| Process::new("bash").arg(&script).args(words).output().unwrap();
        for words in [&["--python"][..], &["--python", "/nonexistent/python"]] {
            let output = refused(words);
            assert_eq!(output.status.code(), Some(2), "{words:?}");
            assert!(String::from_utf8_lossy(&output.stderr).contains("python"), "{words:?}");
        }
    }
}
