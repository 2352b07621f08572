//! File of a rank's measured step, and the form of the step for a simulation.
//!
//! In: a file of `trainer bench`. Out: [`ProfileFile`], read and checked; [`StepProfile`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use records::{PROFILE_SCHEMA, ProfileFile};

use crate::StepProfile;

/// Largest size of a rank's gradients.
const MOST_BYTES: u128 = 1 << 40;

/// Reads a file of `bench --profile-output`.
///
/// # Errors
/// If the file cannot be read, is not a profile, or has impossible numbers.
pub fn read_profile(path: &Path) -> Result<ProfileFile> {
    let expected = || {
        format!(
            "{}: expected a file that `trainer bench --profile-output` wrote",
            path.display()
        )
    };
    let text =
        records::file::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let value: serde_json::Value = serde_json::from_slice(&text).with_context(expected)?;
    let schema = value
        .get("schema")
        .and_then(serde_json::Value::as_str)
        .unwrap_or("none");
    ensure!(
        schema == PROFILE_SCHEMA,
        "{}, with schema {PROFILE_SCHEMA}, got {schema}",
        expected()
    );
    let file: ProfileFile = serde_json::from_value(value).with_context(expected)?;
    ensure!(
        file.batch_size_per_rank > 0,
        "{}: expected a batch of at least 1 sample, got 0",
        path.display()
    );
    let of_shape = |shape: &[usize]| {
        shape
            .iter()
            .fold(4, |bytes: u128, side| bytes.saturating_mul(*side as u128))
    };
    let bytes = file
        .parameters
        .iter()
        .fold(0, |sum: u128, one| sum.saturating_add(of_shape(&one.shape)));
    ensure!(
        bytes > 0,
        "{}: expected parameters with at least one element, got none",
        path.display()
    );
    let bytes = bytes.max(
        file.buckets
            .iter()
            .map(|bucket| u128::from(bucket.bytes))
            .sum(),
    );
    ensure!(
        bytes <= MOST_BYTES,
        "{}: expected at most 1 TiB of gradients, got {bytes} bytes; measure again",
        path.display()
    );
    let times = [
        file.forward_s,
        file.backward_s,
        file.optimizer_s,
        file.input_s,
        file.other_s,
        file.step_spread_s,
    ];
    let ready = file.parameters.iter().map(|parameter| parameter.ready_s);
    let ready = ready.chain(file.buckets.iter().map(|bucket| bucket.ready_s));
    if let Some(wrong) = times
        .into_iter()
        .chain(ready)
        .find(|time| !(time.is_finite() && *time >= 0.0))
    {
        bail!(
            "{}: expected times finite and not negative, got {wrong}; measure again",
            path.display()
        );
    }
    ensure!(
        file.forward_s + file.backward_s > 0.0,
        "{}: expected a forward and a backward pass that take time, got 0 s; measure again",
        path.display()
    );
    Ok(file)
}

/// Reads the step of a model, or two steps that differ only in their batch.
///
/// # Errors
/// Same as [`read_profile`]; also if the second step differs in more than the batch.
pub fn read_profiles(paths: &[PathBuf]) -> Result<Vec<ProfileFile>> {
    let profiles: Vec<ProfileFile> = paths
        .iter()
        .map(|path| read_profile(path))
        .collect::<Result<_>>()?;
    if let [first, second] = profiles.as_slice() {
        expect_pair((first, &paths[0]), (second, &paths[1]))?;
    }
    Ok(profiles)
}

/// Rejects a second step that differs from the first one in more than the batch.
fn expect_pair(
    (first, its): (&ProfileFile, &Path),
    (second, path): (&ProfileFile, &Path),
) -> Result<()> {
    let facts = |profile: &ProfileFile| {
        let own = [
            ("model", profile.model.clone()),
            ("dtype", profile.dtype.clone()),
        ];
        let mut facts = work_of(profile);
        facts.extend(own.map(|(key, value)| (key.to_owned(), value)));
        facts.insert("threads".to_owned(), profile.threads.to_string());
        facts
    };
    let expected = facts(first);
    let got = facts(second);
    let both = expected
        .iter()
        .filter_map(|(key, there)| Some((key, there, got.get(key)?)));
    let wrong: Vec<String> = both
        .filter(|(_, a, b)| a != b)
        .map(|(key, there, here)| format!("{key} {here} instead of {there}"))
        .collect();
    ensure!(
        wrong.is_empty() && first.batch_size_per_rank != second.batch_size_per_rank,
        "{}: expected the step of {} with another batch than {}, got batch {}{}; measure it again so",
        path.display(),
        its.display(),
        first.batch_size_per_rank,
        second.batch_size_per_rank,
        wrong
            .iter()
            .map(|one| format!(", {one}"))
            .collect::<String>()
    );
    Ok(())
}

/// Returns the settings of a step's work, under the names of a study. Equal work has equal
/// settings.
pub(crate) fn work_of(file: &ProfileFile) -> BTreeMap<String, String> {
    let mut work = file.options.clone();
    work.insert("kernels".to_owned(), file.kernels.clone());
    work
}

/// Returns the step for a simulation, with the measured buckets.
pub fn step_of(file: &ProfileFile) -> StepProfile {
    StepProfile {
        forward_s: file.forward_s,
        backward_s: file.backward_s,
        buckets: file.buckets.clone(),
        parameters: file.parameters.clone(),
        optimizer_s: file.optimizer_s,
        other_s: file.input_s + file.other_s,
        batch_size_per_rank: file.batch_size_per_rank,
        straggler_spread_s: file.step_spread_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a step of 100 ms with 32 samples.
    ///
    /// Its backward pass takes 60 ms through two layers of 64 KiB and one of 4 KiB.
    fn profile() -> ProfileFile {
        serde_json::from_str(include_str!("../tests/profile.json")).unwrap()
    }

    #[test]
    fn a_profile_is_read_as_it_was_written_and_other_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("step.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_profile(&path).map_err(|error| format!("{error:#}"))
        };
        let text = serde_json::to_string(&profile()).unwrap();
        assert_eq!(read(&text).unwrap(), profile());
        for (text, expected) in [
            ("", "bench --profile-output"),
            ("{\"schema\": \"lockstep.study/1\"}", "got lockstep.study/1"),
            (
                &text.replace("\"forward_s\":0.03", "\"forward_s\":-1"),
                "expected times finite and not negative, got -1",
            ),
            (
                &text.replace("\"batch_size_per_rank\":32", "\"batch_size_per_rank\":0"),
                "at least 1 sample",
            ),
            (
                &text.replace("\"backward_s\":0.06", "\"backward_s\":\"long\""),
                "bench --profile-output",
            ),
            (
                &text.replace("[32,32]", "[4294967296,4294967296]"),
                "at most 1 TiB of gradients",
            ),
            (
                &text.replace("\"bytes\":135168", "\"bytes\":18446744073709551615"),
                "at most 1 TiB of gradients",
            ),
            (
                &text.replace("128,128", "0").replace("32,32", "0"),
                "at least one element, got none",
            ),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "expected {expected} in {error}");
        }
        assert!(
            read_profile(&directory.path().join("absent.json"))
                .unwrap_err()
                .to_string()
                .contains("cannot read")
        );
        let error = format!("{:#}", read_profile(Path::new("/dev/zero")).unwrap_err());
        assert!(
            error.contains("/dev/zero: expected a regular file"),
            "{error}"
        );
    }

    #[test]
    fn layers_share_the_backward_pass() {
        let layers: Vec<(String, f64)> = profile()
            .layers()
            .into_iter()
            .map(|layer| (layer.name, (layer.seconds * 1e3).round()))
            .collect();
        let expected = [("fc", 10.0), ("second.conv", 20.0), ("first.conv", 20.0)];
        assert_eq!(
            layers,
            expected.map(|(name, seconds)| (name.to_owned(), seconds))
        );
    }
}
