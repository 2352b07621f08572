//! Parts of the computation switched off, to find out which of them computes wrongly or slowly on a device.
//!
//! In: `LOCKSTEP_WITHOUT_FUSERS`: `all`, or names of burn's fusers; `LOCKSTEP_SUM_STAGES`: 1 or 2; `LOCKSTEP_NORM`: `kernels` or
//! `composed`; `LOCKSTEP_CONVOLUTION`: `kernels` or `burn`; `LOCKSTEP_GRAPH`: `on` or `off`. Out: burn without these fusers, layers that sum,
//! normalise, convolve and record so. Invariant: done before the first operation on a device, after which burn refuses it; what is not known
//! is refused.

use anyhow::{Result, bail};

use crate::config::cli::environment;

const FUSERS: &str = "LOCKSTEP_WITHOUT_FUSERS";
const SUM_STAGES: &str = "LOCKSTEP_SUM_STAGES";
const NORM: &str = "LOCKSTEP_NORM";
const CONVOLUTION: &str = "LOCKSTEP_CONVOLUTION";
const GRAPH: &str = "LOCKSTEP_GRAPH";

/// What the environment says to all of them, for a comparison of ranks; launchers bring variables to other nodes only if told so.
pub(crate) fn in_words() -> String {
    let set = |name| environment(name).map(|value| format!("{name}={value}"));
    [FUSERS, SUM_STAGES, NORM, CONVOLUTION, GRAPH].into_iter().filter_map(set).collect::<Vec<_>>().join(" ")
}

/// Layers that sum, normalise, convolve and record as the environment says.
///
/// # Errors
/// When it says something else than they know.
pub(super) fn choose_layers() -> Result<()> {
    layers::record(is_on(environment(GRAPH).as_deref())?);
    layers::sum_in_one_stage(is_one_stage(environment(SUM_STAGES).as_deref())?);
    layers::normalise_by_composition(is_not_ours(NORM, "composed", environment(NORM).as_deref())?);
    layers::convolve_by_burn(is_not_ours(CONVOLUTION, "burn", environment(CONVOLUTION).as_deref())?);
    Ok(())
}

fn is_on(value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("on") => Ok(true),
        Some("off") => Ok(false),
        Some(other) => bail!("{GRAPH}: expected on or off, got {other}"),
    }
}

/// Whether a switch between our kernels and another way is on the other.
fn is_not_ours(name: &str, other_way: &str, value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("kernels") => Ok(false),
        Some(value) if value == other_way => Ok(true),
        Some(other) => bail!("{name}: expected kernels or {other_way}, got {other}"),
    }
}

fn is_one_stage(value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("2") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => bail!("{SUM_STAGES}: expected 1 or 2, got {other}"),
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
        let names = unwanted(environment(FUSERS).as_deref(), &BUILTIN_NAMES).map_err(|error| error.to_string())?;
        names.into_iter().try_for_each(|name| remove(name).map_err(|error| format!("{FUSERS}: {name}: {error}")))
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
        None => bail!("{FUSERS}: expected all or some of {}, got {name}", known.join(",")),
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
        let error = unwanted(Some("Reduce,reduce"), &known).expect_err("burn has no such fuser").to_string();
        assert_eq!(error, "LOCKSTEP_WITHOUT_FUSERS: expected all or some of ElementWise,Reduce, got reduce");
        Ok(())
    }

    #[test]
    fn sums_have_one_stage_or_two() -> Result<()> {
        assert!(is_one_stage(Some("1"))? && !is_one_stage(Some("2"))? && !is_one_stage(None)?);
        assert!(is_on(Some("on"))? && is_on(None)? && !is_on(Some("off"))? && is_on(Some("yes")).is_err());
        let error = is_one_stage(Some("3")).expect_err("no sum has three").to_string();
        assert_eq!(error, "LOCKSTEP_SUM_STAGES: expected 1 or 2, got 3");
        Ok(())
    }

    #[test]
    fn kernels_are_ours_or_those_of_the_other_way() -> Result<()> {
        let is_composed = |value| is_not_ours(NORM, "composed", value);
        assert!(is_composed(Some("composed"))? && !is_composed(Some("kernels"))? && !is_composed(None)?);
        let error = is_composed(Some("burn")).expect_err("there is no third way").to_string();
        assert_eq!(error, "LOCKSTEP_NORM: expected kernels or composed, got burn");
        assert!(is_not_ours(CONVOLUTION, "burn", Some("burn"))?);
        Ok(())
    }
}
