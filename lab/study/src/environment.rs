//! Variables of the environment that change what our programs, or the scripts of other frameworks, compute.
//!
//! In: the environment. Out: a refusal. Invariant: whatever begins with `LOCKSTEP_` counts as such a variable, unless it is known here.

use std::ffi::OsString;

use cluster::failure::{Failure, Outcome};

/// Variables that change no measurement; the last one is set by whoever watches a run.
const OF_NO_CONCERN: [&str; 6] = [
    "LOCKSTEP_NO_INSTALL",
    "LOCKSTEP_COMMIT",
    "LOCKSTEP_DATA",
    "LOCKSTEP_FUZZ_CHANGES",
    "LOCKSTEP_TEST_PANIC",
    crate::quiet::MARK,
];

/// Refuses variables that would change what is measured: its records would not tell them.
pub(crate) fn refuse_switches(variables: impl Iterator<Item = (OsString, OsString)>) -> Outcome {
    let is_switch = |name: &str| name.starts_with("LOCKSTEP_") && !OF_NO_CONCERN.contains(&name);
    for (name, value) in variables {
        if let Some(name) = name.to_str().filter(|name| is_switch(name)) {
            return Err(Failure::Usage(format!(
                "{name}: expected no variable that changes what is measured, as the records do not tell it, got `{}`: \
                 unset {name}; what is a flag, such as --cpu, is a key of a study's file",
                value.to_string_lossy()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_changes_what_is_measured_is_refused_by_name() {
        let refuse = |names: &[&str]| {
            refuse_switches(names.iter().map(|name| (name.into(), "portable".into())))
        };
        refuse(&["PATH", "LOCKSTEP_NO_INSTALL", "LOCKSTEP_WATCH"]).unwrap();
        for name in [
            "LOCKSTEP_CPU",
            "LOCKSTEP_NORM",
            "LOCKSTEP_PEER_RANK",
            "LOCKSTEP_NEW",
        ] {
            let failure = refuse(&["PATH", name]).unwrap_err();
            assert_eq!(failure.exit_code(), 2);
            let told = failure.to_string();
            assert!(
                told.starts_with(name) && told.contains("got `portable`: unset"),
                "{told}"
            );
        }
    }
}
