//! Which C library a program needs.
//!
//! In: a program, `objdump`. Out: the highest version of glibc that one of its symbols asks for.

use std::path::Path;

use jobs::failure::{Failure, Outcome};
use jobs::process;

/// The version, such as `2.34`.
pub(super) fn needed(program: &Path) -> Outcome<String> {
    let listing = process::answer("objdump", &["-T", &program.to_string_lossy()]).ok_or_else(|| {
        Failure::Failed("`objdump` failed: install binutils, which tells a program's needs".to_owned())
    })?;
    newest(&listing).ok_or_else(|| Failure::Failed(format!("{}: no symbol of glibc", program.display())))
}

fn newest(listing: &str) -> Option<String> {
    let versions = listing.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u32>>>()
    });
    let newest = versions.max()?;
    Some(newest.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
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
}
