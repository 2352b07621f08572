//! Libraries that replace NVIDIA's driver and NCCL in a process without a GPU.
//!
//! In: a C compiler. Out: a folder for `LD_LIBRARY_PATH`.
//! Invariant: copies, events and sums of f32 happen in the order of streams. Kernels compute
//! nothing, so a test with these libraries shows calls and their order.

use std::process::Command;

use tempfile::TempDir;

/// Returns a folder with both libraries, or `None` without a C compiler.
pub(crate) fn libraries() -> Option<TempDir> {
    let folder = tempfile::tempdir().unwrap();
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake");
    for (source, library) in [("cuda.c", "libcuda.so"), ("nccl.c", "libnccl.so.2")] {
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-shared", "-fPIC", "-pthread", "-o"]);
        compiler
            .arg(folder.path().join(library))
            .arg(format!("{sources}/{source}"));
        match compiler.status() {
            Ok(status) => assert!(status.success(), "{source} does not compile"),
            Err(_) => {
                println!("SKIPPED: no C compiler");
                return None;
            }
        }
    }
    Some(folder)
}

/// Returns a program that finds the libraries, with a number of GPUs.
pub(crate) fn program(
    name: impl AsRef<std::ffi::OsStr>,
    libraries: &TempDir,
    gpus: usize,
) -> Command {
    let mut program = Command::new(name);
    program.env("LD_LIBRARY_PATH", libraries.path());
    program.env("FAKE_CUDA_DEVICES", gpus.to_string());
    // A missing wait for an event would show.
    program.env("FAKE_CUDA_DELAY", "500");
    program
}
