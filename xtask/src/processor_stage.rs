//! What `cargo xtask test` checks of other machines than this one: the same bits on another processor, with another C library.
//!
//! In: the trainer's tests. Out: a verdict. Invariant: the test's own constants judge; here it is only run elsewhere.

use std::fs;
use std::process::Command;

use crate::at::at;
use crate::cargo::{self, Mpi};
use crate::kernel_stages::Reason;
use cluster::failure::Outcome;
use cluster::probe;
use cluster::process;

const TEST: &str =
    "same_bits::exact_runs_of_a_named_instruction_set_have_these_bits_on_every_processor";
const EMULATORS: [&str; 2] = ["qemu-x86_64", "qemu-x86_64-static"];
/// AVX2 with FMA, without AVX-512; and without what the emulator warns that it lacks.
const PROCESSOR: &str = "Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid";

/// A C library each of whose results is the next larger number.
const INEXACT_MATH: &str = "\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#define OWN(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ONE(name) double name(double x) { return nextafter(OWN(name)(x), INFINITY); } \\
    float name##f(float x) { return nextafterf(OWN(name##f)(x), INFINITY); }
#define TWO(name) double name(double x, double y) { return nextafter(OWN(name)(x, y), INFINITY); } \\
    float name##f(float x, float y) { return nextafterf(OWN(name##f)(x, y), INFINITY); }
ONE(sin) ONE(cos) ONE(exp) ONE(log) ONE(log1p) TWO(pow) TWO(hypot)
void sincos(double x, double *s, double *c) { *s = sin(x); *c = cos(x); }
void sincosf(float x, float *s, float *c) { *s = sinf(x); *c = cosf(x); }
";

/// Both, or the second alone where no emulator is installed, which is then said as the reason.
pub(crate) fn same_bits(mpi: Mpi) -> Result<Outcome, Reason> {
    if !cfg!(all(
        target_arch = "x86_64",
        target_os = "linux",
        target_env = "gnu"
    )) {
        return Err("the bits are those of x86-64 with glibc".to_owned());
    }
    let with_other_library =
        inexact_math().and_then(|library| run_test(mpi, &format!("env LD_PRELOAD={library}")));
    if with_other_library.is_err() {
        return Ok(with_other_library);
    }
    match EMULATORS
        .into_iter()
        .find(|emulator| probe::program(emulator).is_some())
    {
        Some(emulator) => Ok(run_test(mpi, &format!("{emulator} -cpu {PROCESSOR}"))),
        None => Err(format!(
            "no {} (package qemu-user); with another C library it passed",
            EMULATORS[0]
        )),
    }
}

fn run_test(mpi: Mpi, runner: &str) -> Outcome {
    println!("under {runner}:");
    let mut command = cargo::command(&["test", "-p", "trainer", "--test", "it"]);
    command.args(mpi.features()).args(["--", "--exact", TEST]);
    command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    process::run(command)
}

/// The library, compiled; its path.
fn inexact_math() -> Outcome<String> {
    let folder = cargo::target_folder().join("inexact-math");
    let (source, library) = (folder.join("math.c"), folder.join("libinexact.so"));
    fs::create_dir_all(&folder)
        .and_then(|()| fs::write(&source, INEXACT_MATH))
        .map_err(at(&source))?;
    let mut compile = Command::new("cc");
    compile
        .args(["-shared", "-fPIC", "-fno-builtin", "-o"])
        .args([&library, &source])
        .arg("-lm");
    process::run(compile)?;
    Ok(library.display().to_string())
}
