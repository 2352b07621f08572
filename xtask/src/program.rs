//! Symbols of a built program: the glibc and the libraries that it needs, and what is undefined.
//!
//! In: a program, `objdump`, `nm`. Out: the newest version of glibc, shared libraries, symbols.

use std::path::Path;

use cluster::failure::{Failure, Outcome};
use cluster::process;

/// Returns a sentence about the system that the program needs.
pub(crate) fn needs(program: &Path) -> Outcome<String> {
    let libraries = libraries(&listing("objdump", &["-p"], program)?).join(", ");
    let glibc = glibc(program)?;
    let others = match libraries.as_str() {
        "" => "no other library",
        libraries => libraries,
    };
    Ok(format!(
        "x86-64 Linux with glibc {glibc} or newer, and {others}.\n"
    ))
}

/// Returns the version of glibc, such as `2.34`.
pub(crate) fn glibc(program: &Path) -> Outcome<String> {
    let missing = || Failure::Failed(format!("{}: no symbol of glibc", program.display()));
    newest_glibc(&listing("objdump", &["-T"], program)?).ok_or_else(missing)
}

/// Returns the names of undefined symbols that begin with one of these.
pub(crate) fn undefined(program: &Path, starts: &[&str]) -> Outcome<Vec<String>> {
    let listing = listing("nm", &["-D", "--undefined-only"], program)?;
    Ok(undefined_in(&listing, starts))
}

fn listing(tool: &str, flags: &[&str], program: &Path) -> Outcome<String> {
    let program = program.to_string_lossy();
    let listing = process::answer(tool, &[flags, &[&program]].concat());
    listing.ok_or_else(|| Failure::Failed(format!("`{tool}` failed: install binutils")))
}

fn undefined_in(listing: &str, starts: &[&str]) -> Vec<String> {
    let symbols = listing
        .lines()
        .filter_map(|line| line.split_whitespace().last());
    // A library of the system defines a symbol with a version.
    let mut symbols: Vec<String> = symbols
        .filter(|name| !name.contains('@') && starts.iter().any(|start| name.starts_with(start)))
        .map(str::to_owned)
        .collect();
    symbols.sort_unstable();
    symbols.dedup();
    symbols
}

fn newest_glibc(listing: &str) -> Option<String> {
    let versions = listing.split("GLIBC_").skip(1).filter_map(|rest| {
        let version = rest
            .split(|c: char| !c.is_ascii_digit() && c != '.')
            .next()?;
        let parts = version.split('.').map(|part| part.parse::<u32>().ok());
        Some((parts.collect::<Option<Vec<u32>>>()?, version))
    });
    versions.max().map(|(_, version)| version.to_owned())
}

/// Returns the shared libraries except for those of every system, such as `libmpi.so.40`.
fn libraries(headers: &str) -> Vec<&str> {
    const EVERYWHERE: [&str; 7] = [
        "libc.",
        "libm.",
        "libgcc_s.",
        "libpthread.",
        "libdl.",
        "librt.",
        "ld-linux",
    ];
    let lines = headers
        .lines()
        .filter_map(|line| line.trim().strip_prefix("NEEDED"));
    lines
        .map(str::trim)
        .filter(|name| !EVERYWHERE.iter().any(|start| name.starts_with(start)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let listing = "0 DF *UND* 0 (GLIBC_2.2.5) free\n0 DF *UND* 0 (GLIBC_2.34) pthread_create\n0 DF *UND* 0 (GLIBC_2.9) x\n0 DF *UND* 0 (GLIBC_PRIVATE) y\n";
        assert_eq!(newest_glibc(listing), Some("2.34".to_owned()));
        assert_eq!(newest_glibc("0 DF *UND* 0 Base LLVMAdd"), None);
    }

    #[test]
    fn libraries_of_every_system_are_left_out() {
        let headers = "Dynamic Section:\n  NEEDED               libmpi.so.40\n  NEEDED               libc.so.6\n  INIT 0x1\n";
        assert_eq!(libraries(headers), ["libmpi.so.40"]);
    }

    #[test]
    fn only_undefined_symbols_with_these_starts_are_found() {
        let listing = "                 U LLVMAddFunction\n                 U malloc@GLIBC_2.2.5\n                 w __gmon_start__\n                 U cubecl_lower\n                 U LLVMAddFunction\n                 U LLVMFound@LLVM_14\n";
        let found = undefined_in(listing, &["LLVM", "cubecl_"]);
        assert_eq!(found, ["LLVMAddFunction", "cubecl_lower"]);
    }
}
