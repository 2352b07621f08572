//! Environment variables that switch parts of the computation off, to find the part that is wrong
//! or slow on a device.
//!
//! In: `LOCKSTEP_WITHOUT_FUSERS`: `all`, or names of burn's fusers; `LOCKSTEP_SUM_STAGES`: 1 or 2;
//! `LOCKSTEP_NORM`: `kernels` or `composed`; `LOCKSTEP_CONVOLUTION`: `kernels` or `burn`;
//! `LOCKSTEP_GRAPH`: `on` or `off`. Out: burn without these fusers, and layers with these
//! implementations. Invariant: applied before the first operation on a device, since burn refuses
//! it later. An unknown value is an error.

use anyhow::{Result, bail};
use layers::backend::Switches;

use crate::config::cli::environment;

const FUSERS: &str = "LOCKSTEP_WITHOUT_FUSERS";
const SUM_STAGES: &str = "LOCKSTEP_SUM_STAGES";
const NORM: &str = "LOCKSTEP_NORM";
const CONVOLUTION: &str = "LOCKSTEP_CONVOLUTION";
const GRAPH: &str = "LOCKSTEP_GRAPH";

/// Returns the variables that are set. Ranks compare them, since a launcher may not forward them to
/// other nodes.
pub(crate) fn in_words() -> String {
    let set = |name| environment(name).map(|value| format!("{name}={value}"));
    [FUSERS, SUM_STAGES, NORM, CONVOLUTION, GRAPH]
        .into_iter()
        .filter_map(set)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Chooses the implementations of the layers.
///
/// # Errors
/// If a variable has an unknown value.
pub(super) fn choose_layers() -> Result<()> {
    let is_second = |name, ways, default| {
        is_second(name, ways, environment(name).as_deref().unwrap_or(default))
    };
    Switches {
        no_capture: is_second(GRAPH, ["on", "off"], "on")?,
        one_stage_sums: !is_second(SUM_STAGES, ["1", "2"], "2")?,
        composed_norms: is_second(NORM, ["kernels", "composed"], "kernels")?,
        burn_convolutions: is_second(CONVOLUTION, ["kernels", "burn"], "kernels")?,
    }
    .apply();
    Ok(())
}

/// Returns true if a switch has the second of its two values.
fn is_second(name: &str, [first, second]: [&str; 2], value: &str) -> Result<bool> {
    match value {
        _ if value == first => Ok(false),
        _ if value == second => Ok(true),
        other => bail!("{name}: expected {first} or {second}, got {other}"),
    }
}

/// Removes the fusers that the environment names, once in a process.
///
/// # Errors
/// If burn has no fuser of a name, or has already computed.
#[cfg(feature = "cuda")]
pub(super) fn remove_fusers() -> Result<()> {
    use burn_cubecl::fusion::{BUILTIN_NAMES, remove};
    use std::sync::OnceLock;

    static REMOVED: OnceLock<Result<(), String>> = OnceLock::new();
    let removed = REMOVED.get_or_init(|| {
        let names = unwanted(environment(FUSERS).as_deref(), &BUILTIN_NAMES)
            .map_err(|error| error.to_string())?;
        names
            .into_iter()
            .try_for_each(|name| remove(name).map_err(|error| format!("{FUSERS}: {name}: {error}")))
    });
    removed.clone().map_err(anyhow::Error::msg)
}

/// Returns the names in `value`, all of which must be `known`.
#[cfg(any(feature = "cuda", test))]
fn unwanted<'a>(value: Option<&str>, known: &[&'a str]) -> Result<Vec<&'a str>> {
    match value {
        None | Some("") => Ok(Vec::new()),
        Some("all") => Ok(known.to_vec()),
        Some(names) => names.split(',').map(|name| named(name, known)).collect(),
    }
}

#[cfg(any(feature = "cuda", test))]
fn named<'a>(name: &str, known: &[&'a str]) -> Result<&'a str> {
    match known.iter().find(|known| **known == name) {
        Some(found) => Ok(found),
        None => bail!(
            "{FUSERS}: expected all or some of {}, got {name}",
            known.join(",")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fusers_are_named_one_by_one_or_all_and_an_unknown_one_is_refused() -> Result<()> {
        let known = ["ElementWise", "Reduce"];
        assert!(unwanted(None, &known)?.is_empty());
        assert_eq!(unwanted(Some("all"), &known)?, known);
        assert_eq!(unwanted(Some("Reduce"), &known)?, ["Reduce"]);
        let error = unwanted(Some("Reduce,reduce"), &known)
            .expect_err("burn has no such fuser")
            .to_string();
        assert_eq!(
            error,
            "LOCKSTEP_WITHOUT_FUSERS: expected all or some of ElementWise,Reduce, got reduce"
        );
        Ok(())
    }

    #[test]
    fn a_switch_is_at_one_of_its_two_ways() -> Result<()> {
        for (name, ways, wrong, expected) in [
            (
                GRAPH,
                ["on", "off"],
                "yes",
                "LOCKSTEP_GRAPH: expected on or off, got yes",
            ),
            (
                SUM_STAGES,
                ["1", "2"],
                "3",
                "LOCKSTEP_SUM_STAGES: expected 1 or 2, got 3",
            ),
            (
                NORM,
                ["kernels", "composed"],
                "burn",
                "LOCKSTEP_NORM: expected kernels or composed, got burn",
            ),
        ] {
            assert!(
                is_second(name, ways, ways[1])? && !is_second(name, ways, ways[0])?,
                "{name}"
            );
            let error = is_second(name, ways, wrong)
                .expect_err("there is no third way")
                .to_string();
            assert_eq!(error, expected);
        }
        Ok(())
    }
}
