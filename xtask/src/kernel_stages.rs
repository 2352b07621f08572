//! What `cargo xtask test` checks of the kernels beyond their tests: addresses, and the other processor family.
//!
//! In: the crate `kernels`. Out: the verdicts of two stages. Invariant: own target folders, so that nothing of the
//! workspace is compiled anew by another compiler flag.

use std::fs;
use std::process::Command;

use crate::cargo;
use cluster::failure::Outcome;
use cluster::probe;
use cluster::process;

const HOST: &str = "x86_64-unknown-linux-gnu";
const ARM: &str = "aarch64-unknown-linux-gnu";
const ARM_LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATORS: [&str; 2] = ["qemu-aarch64-static", "qemu-aarch64"];

/// Why a stage cannot run here.
pub(crate) type Reason = String;

/// The kernels' tests under AddressSanitizer: every instruction set, one read or write out of bounds fails it. The flag is
/// not stable yet; the variable lets the stable compiler, whose libraries have the runtime, take it.
pub(crate) fn sanitized() -> Result<Outcome, Reason> {
    if !cfg!(all(
        target_arch = "x86_64",
        target_os = "linux",
        target_env = "gnu"
    )) {
        return Err(format!("AddressSanitizer is run on {HOST} only"));
    }
    if !has_runtime() {
        return Err(
            "this Rust comes without AddressSanitizer's runtime, rustup's has it".to_owned(),
        );
    }
    let mut command = kernel_tests(HOST, "sanitized");
    command.args(
        ["debug-assertions", "overflow-checks"]
            .map(|check| format!("--config=profile.dev.package.lockstep-kernels.{check}=true")),
    );
    command
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", "-Zsanitizer=address");
    Ok(process::run(command))
}

/// Whether the compiler's libraries have AddressSanitizer's part.
fn has_runtime() -> bool {
    let folder = process::answer("rustc", &["--print", "target-libdir"]).unwrap_or_default();
    let files = fs::read_dir(folder.trim()).into_iter().flatten().flatten();
    files
        .map(|file| file.file_name())
        .any(|name| name.to_string_lossy().contains("_rt.asan"))
}

/// The portable kernels on aarch64: compiled, and tested under qemu where it and a linker are there.
pub(crate) fn on_arm() -> Result<Outcome, Reason> {
    let installed =
        process::answer("rustup", &["target", "list", "--installed"]).unwrap_or_default();
    if !installed.lines().any(|target| target == ARM) {
        return Err(format!(
            "no target {ARM}, `rustup target add {ARM}` adds it"
        ));
    }
    let emulator = EMULATORS
        .into_iter()
        .find(|emulator| probe::program(emulator).is_some());
    match emulator.filter(|_| probe::program(ARM_LINKER).is_some()) {
        Some(emulator) => {
            let mut command = kernel_tests(ARM, "arm");
            command
                .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", ARM_LINKER)
                .env(
                    "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
                    format!("{emulator} -L /usr/aarch64-linux-gnu"),
                );
            Ok(process::run(command))
        }
        None => {
            println!(
                "no {} with {ARM_LINKER}: the tests are compiled but not run",
                EMULATORS[0]
            );
            let mut command = cargo::command(&[
                "check",
                "-p",
                "lockstep-kernels",
                "--lib",
                "--tests",
                "--target",
                ARM,
            ]);
            command
                .arg("--target-dir")
                .arg(cargo::target_folder().join("arm"));
            Ok(process::run(command))
        }
    }
}

fn kernel_tests(target: &str, folder: &str) -> Command {
    let mut command = cargo::command(&[
        "test",
        "-p",
        "lockstep-kernels",
        "--lib",
        "--target",
        target,
    ]);
    command
        .arg("--target-dir")
        .arg(cargo::target_folder().join(folder));
    command
}
