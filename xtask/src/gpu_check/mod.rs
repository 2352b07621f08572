//! `cargo xtask gpu-check`: a folder that proves and measures a GPU machine, made on any machine.
//!
//! In: the workspace, files that stay outside it. Out: `target/gpu-check`, which needs bash and a python3 with PyTorch where it runs.
//! Invariant: nothing is measured beside a compiler of ours; the scripts are those of `peers/`, copied.

mod pack;

use std::process::Command as Process;

use clap::Args;

use crate::cuda;
use crate::needs;
use crate::setup;
use cluster::failure::Outcome;
use cluster::options::Installing;
use cluster::process;

const DETAILS: &str = "\
Builds the trainer for CUDA without LLVM, as `ci --cuda` does (about 25 minutes on 2 cores when new), and packs it with the
scripts of peers/gpu into target/gpu-check. With a GPU here it runs them at once; else copy the folder to a machine with one and
run ./gpu-check.sh there: eight minutes at most, four with --quick. docs/gpu.md tells what it shows.
--data-dir names a folder with resnet20-12fca82f.th and CIFAR-10's test_batch.bin, for the check known-answer.";

/// Flags of `cargo xtask gpu-check`.
#[derive(Debug, Args)]
#[command(after_help = DETAILS)]
pub(crate) struct GpuCheckArgs {
    /// ResNet-20 alone, nothing compiled by PyTorch.
    #[arg(long)]
    quick: bool,
    /// Published weights and images to pack.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    #[command(flatten)]
    installing: Installing,
}

impl GpuCheckArgs {
    pub(crate) fn run(&self) -> Outcome {
        let known_answer = self
            .data_dir
            .as_deref()
            .map(pack::KnownAnswer::find)
            .transpose()?;
        setup::run(self.installing)?;
        let built = cuda::built()?;
        let needed = needs::glibc(&built.trainer)?;
        let folder = pack::pack(&built, known_answer.as_ref())?;
        println!(
            "{} packed; the program needs glibc {needed} or newer",
            folder.display()
        );
        if !cuda::has_gpu() {
            println!(
                "no GPU here: copy {} to a machine with one and run ./gpu-check.sh there",
                folder.display()
            );
            return Ok(());
        }
        let mut command = Process::new(folder.join(pack::ENTRY));
        command.current_dir(&folder);
        if self.quick {
            command.arg("--quick");
        }
        process::run(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo;

    #[test]
    fn the_scripts_pass_their_own_tests() {
        if process::answer(
            "python3",
            &["-c", "import sys; assert sys.version_info >= (3, 9)"],
        )
        .is_none()
        {
            println!("SKIPPED: no python3 of 3.9 or newer");
            return;
        }
        let output = Process::new("python3")
            .args(["-B", "-W", "error", "-m", "unittest"])
            .current_dir(cargo::root().join("peers/gpu"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    #[test]
    fn the_shell_script_is_one_and_refuses_what_it_cannot_use() {
        let script = cargo::root().join("peers/gpu").join(pack::ENTRY);
        assert!(
            Process::new("bash")
                .arg("-n")
                .arg(&script)
                .status()
                .unwrap()
                .success()
        );
        let refused = |words: &[&str]| {
            Process::new("bash")
                .arg(&script)
                .args(words)
                .output()
                .unwrap()
        };
        for words in [&["--python"][..], &["--python", "/nonexistent/python"]] {
            let output = refused(words);
            assert_eq!(output.status.code(), Some(2), "{words:?}");
            assert!(
                String::from_utf8_lossy(&output.stderr).contains("python"),
                "{words:?}"
            );
        }
    }
}
