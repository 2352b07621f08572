//! Parts of the computation switched off, to find out which of them computes wrongly or slowly on a device.
//!
//! In: `LOCKSTEP_WITHOUT_FUSERS`: `all`, or names of burn's fusers; `LOCKSTEP_SUM_STAGES`: 1 or 2; `LOCKSTEP_NORM`: `kernels` or
//! `composed`; `LOCKSTEP_CONVOLUTION`: `kernels` or `burn`; `LOCKSTEP_GRAPH`: `on` or `off`. Out: burn without these fusers, layers that sum,
//! normalise, convolve and record so. Invariant: done before the first operation on a device, after which burn refuses it; what is not known
//! is refused.

use anyhow::{Result, bail};
use layers::backend::Switches;

use crate::config::cli::environment;

const FUSERS: &str = "LOCKSTEP_WITHOUT_FUSERS";
const SUM_STAGES: &str = "LOCKSTEP_SUM_STAGES";
const NORM: &str = "LOCKSTEP_NORM";
const CONVOLUTION: &str = "LOCKSTEP_CONVOLUTION";
const GRAPH: &str = "LOCKSTEP_GRAPH";

/// What the environment says to all of them, for a comparison of ranks; launchers bring variables to other nodes only if told so.
pub(crate) fn in_words() -> String {
    let set = |name| environment(name).map(|value| format!("{name}={value}"));
    [FUSERS, SUM_STAGES, NORM, CONVOLUTION, GRAPH]
        .into_iter()
        .filter_map(set)
        .collect::<Vec<_>>()
        .join(" ")
}

/// Layers that sum, normalise, convolve and record as the environment says.
///
/// # Errors
/// When it says something else than they know.
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

/// Whether a switch is at the second of its two ways.
fn is_second(name: &str, [first, second]: [&str; 2], value: &str) -> Result<bool> {
    match value {
        _ if value == first => Ok(false),
        _ if value == second => Ok(true),
        other => bail!("{name}: expected {first} or {second}, got {other}"),
    }
}

/// Removes the fusers that the environment names; once, as burn takes it only before it computes.
///
/// # Errors
/// When burn has none of a name, or already computes.
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

/// Those of `known` that `value` names.
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
