//! The CUDA build, checked where the LLVM bundle of burn's compiler cannot be downloaded.
//!
//! In: the trainer's feature `cuda-nvrtc`, which compiles kernels by NVRTC at run time. Out: a program that starts, which
//! `gpu-check` packs for another machine.
//! Invariant: LLVM is linked by name only. Its symbols stay open in the program, and a library of stand-ins, each of
//! which ends the program when called, closes them at start; a call would show that LLVM is used after all.
//! Only for checking: whoever has a network builds with plain `--features cuda`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::at::at;
use crate::cargo;
use crate::setup;
use cluster::failure::{Failure, Outcome};
use cluster::options::Installing;
use cluster::process::{self, Finished, Running};

/// The prefixes of the symbols that the bundle would define.
const ABSENT: [&str; 2] = ["LLVM", "cubecl_"];

/// Without MPI, which a machine with a GPU may not have; with the reference that `trainer verify` compares with.
const FEATURES: &str = "cuda-nvrtc,kernel-cache,flex";

/// What was built.
pub(crate) struct Built {
    pub(crate) trainer: PathBuf,
    /// To be preloaded whenever the program starts.
    pub(crate) stand_ins: PathBuf,
}

/// Builds the program and its stand-ins, and starts it.
pub(crate) fn run(installing: Installing) -> Outcome {
    setup::run(installing)?;
    let folder = folder();
    let Built { trainer, stand_ins } = built()?;
    let start = |words: &[&str], limit_s| {
        let mut command = Command::new(&trainer);
        command.args(words).env("LD_PRELOAD", &stand_ins);
        println!("$ {}", process::shown(&command));
        let finished = Running::start(command, &folder.join("start.log"))
            .and_then(|running| running.finish(Duration::from_secs(limit_s)))
            .map_err(Failure::Failed)?;
        print!("{}", finished.text);
        Ok(finished)
    };
    let version = start(&["--version"], 60)?;
    if version.code != Some(0) {
        return Err(Failure::Failed(format!(
            "`trainer --version` ended with {:?}, expected 0",
            version.code
        )));
    }
    let bench = [
        "bench",
        "--model",
        "resnet20",
        "--device",
        "cuda",
        "--batch-size-per-rank",
        "8",
    ];
    let steps = ["--steps", "2", "--warmup-steps", "1"];
    // The first steps on a GPU compile and tune every kernel.
    let finished = start(&[&bench[..], &steps[..]].concat(), 900)?;
    let has_gpu = has_gpu();
    verdict(has_gpu, &finished).map_err(Failure::Failed)?;
    println!(
        "{}",
        if has_gpu {
            "CUDA: computed on the GPU"
        } else {
            "CUDA: linked and started; no GPU here, said clearly"
        }
    );
    Ok(())
}

/// Whether this machine has an NVIDIA driver loaded.
pub(crate) fn has_gpu() -> bool {
    Path::new("/proc/driver/nvidia/version").exists() || Path::new("/dev/nvidiactl").exists()
}

/// Builds the program and its stand-ins.
pub(crate) fn built() -> Outcome<Built> {
    let trainer = build(&folder())?;
    let stand_ins = stand_ins(&trainer, &folder())?;
    Ok(Built { trainer, stand_ins })
}

fn folder() -> PathBuf {
    cargo::root().join("target/cuda-offline")
}

/// Builds with the two build scripts that download LLVM told not to, and with open symbols allowed.
fn build(folder: &Path) -> Outcome<PathBuf> {
    let mut command = cargo::command(&[
        "build",
        "--release",
        "-p",
        "trainer",
        "--no-default-features",
    ]);
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    command
        .args(["--features", FEATURES, "--target-dir"])
        .arg(folder)
        // Those build scripts return at once when documentation is built for docs.rs.
        .env("DOCS_RS", "1")
        .env(
            "RUSTFLAGS",
            format!("{flags} -C link-arg=-Wl,--unresolved-symbols=ignore-all").trim_start(),
        );
    cargo::executable(command, "trainer", false)
}

/// Compiles a library with a stand-in for each of the program's open LLVM symbols.
fn stand_ins(program: &Path, folder: &Path) -> Outcome<PathBuf> {
    let listing = process::answer(
        "nm",
        &["-D", "--undefined-only", &program.to_string_lossy()],
    )
    .ok_or_else(|| {
        Failure::Failed("`nm` failed: install binutils, which lists a program's symbols".to_owned())
    })?;
    let symbols = open_symbols(&listing);
    let source = folder.join("llvm-absent.c");
    let library = folder.join("libllvm-absent.so");
    fs::write(&source, stand_in_source(&symbols)).map_err(at(&source))?;
    let mut compile = Command::new("cc");
    compile
        .args(["-shared", "-fPIC", "-w", "-O0", "-o"])
        .arg(&library)
        .arg(&source);
    process::run(compile)?;
    println!(
        "{} symbols of LLVM are stood in for by {}",
        symbols.len(),
        library.display()
    );
    Ok(library)
}

fn open_symbols(listing: &str) -> Vec<&str> {
    let mut symbols: Vec<&str> = listing
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        // A symbol with a version belongs to a library that is there.
        .filter(|symbol| {
            !symbol.contains('@') && ABSENT.iter().any(|prefix| symbol.starts_with(prefix))
        })
        .collect();
    symbols.sort_unstable();
    symbols.dedup();
    symbols
}

fn stand_in_source(symbols: &[&str]) -> String {
    let mut source = String::from(
        "#include <stdio.h>\n#include <stdlib.h>\nstatic void end(const char *name) { fprintf(stderr, \"absent: %s\\n\", name); abort(); }\n",
    );
    for symbol in symbols {
        source.push_str(&format!("void {symbol}(void) {{ end(\"{symbol}\"); }}\n"));
    }
    source
}

/// With a GPU the program computes; without one it ends by its own error, neither by a panic nor by a signal.
fn verdict(has_gpu: bool, finished: &Finished) -> Result<(), String> {
    match (has_gpu, finished.code) {
        (true, Some(0)) => Ok(()),
        (true, code) => Err(format!(
            "a GPU is here and `trainer bench --device cuda` ended with {code:?}, expected 0"
        )),
        (false, Some(1 | 2)) if finished.text.to_lowercase().contains("cuda") => Ok(()),
        (false, code) => Err(format!(
            "no GPU is here and `trainer bench --device cuda` ended with {code:?}, expected 1 or 2 and a message naming cuda"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_open_symbols_of_the_bundle_are_stood_in_for() {
        let listing = "                 U LLVMAddFunction\n                 U malloc@GLIBC_2.2.5\n                 w __gmon_start__\n                 U cubecl_lower\n                 U LLVMAddFunction\n                 U LLVMFound@LLVM_14\n";
        assert_eq!(open_symbols(listing), ["LLVMAddFunction", "cubecl_lower"]);
    }

    #[test]
    fn each_symbol_gets_one_function_that_names_itself() {
        let source = stand_in_source(&["LLVMAddFunction"]);
        assert!(source.contains("void LLVMAddFunction(void) { end(\"LLVMAddFunction\"); }"));
    }

    #[test]
    fn without_a_gpu_only_a_clear_error_passes() {
        let finished = |code, text: &str| Finished {
            code,
            text: text.to_owned(),
            elapsed: Duration::ZERO,
        };
        assert!(
            verdict(
                false,
                &finished(Some(1), "error: device cuda: no NVIDIA driver")
            )
            .is_ok()
        );
        assert!(verdict(false, &finished(Some(101), "panicked: cuda")).is_err());
        assert!(verdict(false, &finished(None, "absent: LLVMAddFunction")).is_err());
        assert!(verdict(false, &finished(Some(1), "something else")).is_err());
        assert!(verdict(true, &finished(Some(0), "")).is_ok());
        assert!(verdict(true, &finished(Some(1), "cuda")).is_err());
    }
}
