//! What a program needs of the machine that starts it.
//!
//! In: a program, `objdump`. Out: the highest version of glibc that one of its symbols asks for, and its shared libraries.

use std::path::Path;

use cluster::failure::{Failure, Outcome};
use cluster::process;

/// The version of glibc, such as `2.34`.
pub(crate) fn glibc(program: &Path) -> Outcome<String> {
    newest(&told(program, "-T")?)
        .ok_or_else(|| Failure::Failed(format!("{}: no symbol of glibc", program.display())))
}

/// The libraries beside glibc and the compiler's own, such as `libmpi.so.40`.
pub(crate) fn libraries(program: &Path) -> Outcome<Vec<String>> {
    Ok(linked(&told(program, "-p")?))
}

fn told(program: &Path, flag: &str) -> Outcome<String> {
    process::answer("objdump", &[flag, &program.to_string_lossy()]).ok_or_else(|| {
        Failure::Failed(
            "`objdump` failed: install binutils, which tells a program's needs".to_owned(),
        )
    })
}

fn newest(listing: &str) -> Option<String> {
    let versions = listing.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        rest[..end]
            .split('.')
            .map(|part| part.parse().ok())
            .collect::<Option<Vec<u32>>>()
    });
    let newest = versions.max()?;
    Some(
        newest
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join("."),
    )
}

fn linked(headers: &str) -> Vec<String> {
    const EVERYWHERE: [&str; 7] = [
        "libc.",
        "libm.",
        "libgcc_s.",
        "libpthread.",
        "libdl.",
        "librt.",
        "ld-linux",
    ];
    let names = headers
        .lines()
        .filter_map(|line| line.trim().strip_prefix("NEEDED"));
    let others = names
        .map(str::trim)
        .filter(|name| !EVERYWHERE.iter().any(|start| name.starts_with(start)));
    others.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let listing = "0 DF *UND* 0 (GLIBC_2.2.5) free\n0 DF *UND* 0 (GLIBC_2.34) pthread_create\n0 DF *UND* 0 (GLIBC_2.9) x\n0 DF *UND* 0 (GLIBC_PRIVATE) y\n";
        assert_eq!(newest(listing), Some("2.34".to_owned()));
        assert_eq!(newest("0 DF *UND* 0 Base LLVMAdd"), None);
    }

    #[test]
    fn libraries_that_every_system_has_are_not_told() {
        let headers = "Dynamic Section:\n  NEEDED               libmpi.so.40\n  NEEDED               libc.so.6\n  INIT 0x1\n";
        assert_eq!(linked(headers), ["libmpi.so.40"]);
    }
}
