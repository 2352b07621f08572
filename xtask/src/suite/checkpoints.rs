//! Whether the checkpoints of a run can be read, judged from outside: names, presence, SHA-256 by the system's own program.
//!
//! In: a run's output directory. Out: the steps of its checkpoints, oldest first, or what is broken.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use cluster::json;
use cluster::process;

const STATE: &str = "state.json";
/// Every checkpoint has them.
const FILES: [&str; 2] = ["model.safetensors", "training.safetensors"];

/// The steps of all finished checkpoints, each of which is whole; also of those about to be replaced, which a resumed run brings
/// back.
pub(crate) fn whole(output: &Path) -> Result<Vec<u64>, String> {
    whole_but(output, None)
}

/// As [`whole`], without the checkpoint of one step, which is known not to be.
pub(crate) fn whole_but(output: &Path, damaged: Option<u64>) -> Result<Vec<u64>, String> {
    let mut steps = Vec::new();
    let folder = output.join("checkpoints");
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let digits = name
            .strip_prefix("step-")
            .map(|name| name.trim_end_matches(".replaced"));
        let Some(step) = digits.and_then(|digits| digits.parse::<u64>().ok()) else {
            continue;
        };
        let is_superseded =
            name.ends_with(".replaced") && folder.join(name.trim_end_matches(".replaced")).exists();
        if is_superseded || damaged == Some(step) {
            continue;
        }
        check(&entry.path(), step).map_err(|text| format!("{}: {text}", entry.path().display()))?;
        steps.push(step);
    }
    steps.sort_unstable();
    Ok(steps)
}

/// Whether a checkpoint is being written, or was half-written, that was begun after this time.
pub(crate) fn is_being_written(output: &Path, since: SystemTime) -> bool {
    let entries = fs::read_dir(output.join("checkpoints"))
        .into_iter()
        .flatten()
        .flatten();
    entries.into_iter().any(|entry| {
        let is_new = || {
            entry
                .metadata()
                .and_then(|data| data.modified())
                .is_ok_and(|time| time >= since)
        };
        entry.file_name().to_string_lossy().ends_with(".unfinished") && is_new()
    })
}

fn check(checkpoint: &Path, step: u64) -> Result<(), String> {
    let read = |file: &str| {
        fs::read_to_string(checkpoint.join(file)).map_err(|error| format!("{file}: {error}"))
    };
    let state = read(STATE)?;
    let says = json::number(&state, "step");
    if says != Some(step as f64) {
        return Err(format!("state.json: expected step {step}, got {says:?}"));
    }
    let entries = fs::read_dir(checkpoint).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let residuals: Vec<String> = names.filter(|name| name.starts_with("residual-")).collect();
    let of_state = read("state.sha256")?
        .split_whitespace()
        .next()
        .map(str::to_owned);
    let files = FILES
        .into_iter()
        .chain(residuals.iter().map(String::as_str));
    let of_files = files.map(|file| (file, json::text(&state, file)));
    for (file, expected) in of_files.chain([(STATE, of_state)]) {
        let expected = expected.ok_or_else(|| format!("no SHA-256 of {file}"))?;
        let path = checkpoint.join(file).display().to_string();
        let answer = process::answer("sha256sum", &[path.as_str()]).unwrap_or_default();
        let got = answer
            .split_whitespace()
            .next()
            .unwrap_or("nothing that can be read");
        if got != expected {
            return Err(format!("{file}: expected SHA-256 {expected}, got {got}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run's folder with one checkpoint whose files are empty.
    fn example(name: &str, model_sum: &str) -> std::path::PathBuf {
        const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let folder =
            std::env::temp_dir().join(format!("lockstep-xtask-{}-{name}", std::process::id()));
        let checkpoint = folder.join("checkpoints/step-00000005");
        fs::create_dir_all(&checkpoint).unwrap();
        for file in FILES {
            fs::write(checkpoint.join(file), "").unwrap();
        }
        let sum = if model_sum.is_empty() {
            OF_NOTHING
        } else {
            model_sum
        };
        let state = format!(
            r#"{{"progress":{{"step":5}},"files":{{"{}":"{sum}","{}":"{OF_NOTHING}"}}}}"#,
            FILES[0], FILES[1]
        );
        fs::write(checkpoint.join(STATE), state).unwrap();
        let path = checkpoint.join(STATE).display().to_string();
        fs::write(
            checkpoint.join("state.sha256"),
            process::answer("sha256sum", &[path.as_str()]).unwrap(),
        )
        .unwrap();
        folder
    }

    #[test]
    fn whole_checkpoints_are_listed_and_unfinished_ones_are_not_judged() {
        let folder = example("whole", "");
        assert!(!is_being_written(&folder, SystemTime::UNIX_EPOCH));
        fs::create_dir_all(folder.join("checkpoints/step-00000006.unfinished")).unwrap();
        assert_eq!(whole(&folder).unwrap(), [5]);
        assert!(!is_being_written(
            &folder,
            SystemTime::now() + std::time::Duration::from_secs(60)
        ));
        assert!(is_being_written(&folder, SystemTime::UNIX_EPOCH));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_state_that_is_not_what_was_written_is_found() {
        let folder = example("changed", "");
        let state = folder.join("checkpoints/step-00000005").join(STATE);
        let text = fs::read_to_string(&state).unwrap();
        fs::write(&state, format!("{text} ")).unwrap();
        assert!(
            whole(&folder)
                .unwrap_err()
                .contains("state.json: expected SHA-256")
        );
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_wrong_sum_and_a_missing_file_are_found() {
        let folder = example("broken", "00");
        assert!(
            whole(&folder)
                .unwrap_err()
                .contains("expected SHA-256 00, got e3b0")
        );
        fs::remove_file(folder.join("checkpoints/step-00000005/state.json")).unwrap();
        assert!(whole(&folder).unwrap_err().contains("state.json"));
        fs::remove_dir_all(folder).unwrap();
    }
}
