//! The CUDA build, checked where burn's compiler cannot download its LLVM bundle.
//!
//! In: the trainer's feature `cuda-nvrtc`, which compiles kernels by NVRTC at run time. Out: a
//! program that starts, which `gpu-check` packs for another machine. Invariant: LLVM is linked by
//! name only. Its symbols stay undefined in the program, and a library of stubs defines them at
//! start; a call of a stub ends the program, and so shows a use of LLVM. Only for checks: with a
//! network, build with plain `--features cuda`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::failure::Outcome;
use cluster::process;

use crate::at;
use crate::cargo;
use crate::program;
use crate::suite::{Checked, Ended};

/// Starts of the names of symbols in the bundle.
const LLVM_SYMBOLS: [&str; 2] = ["LLVM", "cubecl_"];

/// Without MPI, which a machine with a GPU may lack; with the reference of `trainer verify`.
const FEATURES: &str = "cuda-nvrtc,kernel-cache,flex";

/// A built program.
pub(crate) struct Built {
    pub(crate) trainer: PathBuf,
    /// Library to preload whenever the program starts.
    pub(crate) stubs: PathBuf,
}

/// Builds the program and starts it.
pub(crate) fn check() -> Checked {
    let Built { trainer, stubs } = build()?;
    let start = |words: &str, limit_s| {
        let mut command = Command::new(&trainer);
        command.args(words.split(' ')).env("LD_PRELOAD", &stubs);
        Ended::run(command, &folder().join("start.log"), limit_s)
    };
    start("--version", 60)?.expect_success()?;
    let bench =
        "bench --model resnet20 --device cuda --batch-size-per-rank 8 --steps 2 --warmup-steps 1";
    // The first steps on a GPU compile and tune every kernel.
    let ended = start(bench, 900)?;
    print!("{}", ended.text());
    if has_gpu() {
        return ended.expect_success();
    }
    // Without a GPU the program ends by its own error, neither by a panic nor by a signal.
    let names_cuda = ended.text().to_lowercase().contains("cuda");
    let is_error = ended.expect_code(1).or_else(|_| ended.expect_code(2));
    is_error.and(ended.expect(names_cuda, "a message about cuda"))
}

/// Returns true if an NVIDIA driver is loaded.
pub(crate) fn has_gpu() -> bool {
    ["/proc/driver/nvidia/version", "/dev/nvidiactl"]
        .iter()
        .any(|path| Path::new(path).exists())
}

fn folder() -> PathBuf {
    cargo::root().join("target/cuda-offline")
}

/// Builds the program without a download of LLVM, and the library of stubs.
pub(crate) fn build() -> Outcome<Built> {
    let folder = folder();
    let mut command = cargo::command(&["build", "--release", "-p", "trainer"]);
    command.args(["--no-default-features", "--features", FEATURES]);
    command.arg("--target-dir").arg(&folder);
    // The build scripts that download LLVM return at once for documentation of docs.rs.
    command.env("DOCS_RS", "1");
    let flags = env::var("RUSTFLAGS").unwrap_or_default();
    let flags = format!("{flags} -C link-arg=-Wl,--unresolved-symbols=ignore-all");
    command.env("RUSTFLAGS", flags.trim_start());
    let trainer = cargo::executable(command, "trainer", false)?;
    let source = folder.join("llvm-absent.c");
    let stubs = folder.join("libllvm-absent.so");
    let symbols = program::undefined(&trainer, &LLVM_SYMBOLS)?;
    fs::write(&source, stub_source(&symbols)).map_err(at(&source))?;
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-w", "-O0", "-o"]);
    compile.args([&stubs, &source]);
    process::run(compile)?;
    println!("{} stubs of LLVM in {}", symbols.len(), stubs.display());
    Ok(Built { trainer, stubs })
}

fn stub_source(symbols: &[String]) -> String {
    let mut source = "\
#include <stdio.h>
#include <stdlib.h>
static void end(const char *name) { fprintf(stderr, \"absent: %s\\n\", name); abort(); }
"
    .to_owned();
    for symbol in symbols {
        source.push_str(&format!("void {symbol}(void) {{ end(\"{symbol}\"); }}\n"));
    }
    source
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_symbol_gets_one_function_that_prints_its_name() {
        let source = stub_source(&["LLVMAddFunction".to_owned()]);
        assert!(source.contains("void LLVMAddFunction(void) { end(\"LLVMAddFunction\"); }"));
    }
}
