//! Checkpoints of a run, judged from outside: names, files, SHA-256 by the system's own program.
//!
//! In: the output directory of a run. Out: the steps of its checkpoints, oldest first, or an error.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use cluster::json;
use cluster::process;

const STATE: &str = "state.json";
/// Files of every checkpoint.
const FILES: [&str; 2] = ["model.safetensors", "training.safetensors"];

/// Returns the steps of all finished checkpoints if each is whole, except for a `damaged` step.
///
/// A checkpoint that is about to be replaced counts, as a resumed run restores it.
pub(crate) fn whole(output: &Path, damaged: Option<u64>) -> Result<Vec<u64>, String> {
    let mut steps = Vec::new();
    let folder = output.join("checkpoints");
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let current = name.trim_end_matches(".replaced");
        let digits = current.strip_prefix("step-");
        let Some(step) = digits.and_then(|digits| digits.parse::<u64>().ok()) else {
            continue;
        };
        let is_superseded = current != name && folder.join(current).exists();
        if is_superseded || damaged == Some(step) {
            continue;
        }
        check(&entry.path(), step).map_err(|text| format!("{}: {text}", entry.path().display()))?;
        steps.push(step);
    }
    steps.sort_unstable();
    Ok(steps)
}

/// Returns true if an unfinished checkpoint exists that is not older than `since`.
pub(crate) fn is_being_written(output: &Path, since: SystemTime) -> bool {
    let entries = fs::read_dir(output.join("checkpoints"));
    entries.into_iter().flatten().flatten().any(|entry| {
        let modified = entry.metadata().and_then(|data| data.modified());
        entry.file_name().to_string_lossy().ends_with(".unfinished")
            && modified.is_ok_and(|time| time >= since)
    })
}

fn check(checkpoint: &Path, step: u64) -> Result<(), String> {
    let read = |file: &str| {
        fs::read_to_string(checkpoint.join(file)).map_err(|error| format!("{file}: {error}"))
    };
    let state = read(STATE)?;
    let written = json::number(&state, "step");
    if written != Some(step as f64) {
        return Err(format!("{STATE}: expected step {step}, got {written:?}"));
    }
    let first_word = |text: &str| text.split_whitespace().next().map(str::to_owned);
    let mut sums = vec![(STATE.to_owned(), first_word(&read("state.sha256")?))];
    let entries = fs::read_dir(checkpoint).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let residuals = names.filter(|name| name.starts_with("residual-"));
    for file in FILES.map(str::to_owned).into_iter().chain(residuals) {
        let sum = json::text(&state, &file);
        sums.push((file, sum));
    }
    for (file, expected) in sums {
        let expected = expected.ok_or_else(|| format!("no SHA-256 of {file}"))?;
        let path = checkpoint.join(&file).display().to_string();
        let answer = process::answer("sha256sum", &[path.as_str()]).unwrap_or_default();
        let got = first_word(&answer).unwrap_or_else(|| "an unreadable file".to_owned());
        if got != expected {
            return Err(format!("{file}: expected SHA-256 {expected}, got {got}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Makes the folder of a run with one checkpoint whose files are empty.
    fn example(name: &str, model_sum: Option<&str>) -> std::path::PathBuf {
        const OF_NOTHING: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let folder =
            std::env::temp_dir().join(format!("lockstep-xtask-{}-{name}", std::process::id()));
        let checkpoint = folder.join("checkpoints/step-00000005");
        fs::create_dir_all(&checkpoint).unwrap();
        for file in FILES {
            fs::write(checkpoint.join(file), "").unwrap();
        }
        let state = format!(
            r#"{{"progress":{{"step":5}},"files":{{"{}":"{}","{}":"{OF_NOTHING}"}}}}"#,
            FILES[0],
            model_sum.unwrap_or(OF_NOTHING),
            FILES[1]
        );
        fs::write(checkpoint.join(STATE), state).unwrap();
        let path = checkpoint.join(STATE).display().to_string();
        let sum = process::answer("sha256sum", &[path.as_str()]).unwrap();
        fs::write(checkpoint.join("state.sha256"), sum).unwrap();
        folder
    }

    #[test]
    fn whole_checkpoints_are_listed_and_unfinished_ones_are_not_judged() {
        let folder = example("whole", None);
        assert!(!is_being_written(&folder, SystemTime::UNIX_EPOCH));
        fs::create_dir_all(folder.join("checkpoints/step-00000006.unfinished")).unwrap();
        assert_eq!(whole(&folder, None).unwrap(), [5]);
        let later = SystemTime::now() + Duration::from_secs(60);
        assert!(!is_being_written(&folder, later));
        assert!(is_being_written(&folder, SystemTime::UNIX_EPOCH));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_changed_state_a_wrong_sum_and_a_missing_file_are_found() {
        let folder = example("broken", Some("00"));
        let error = || whole(&folder, None).unwrap_err();
        assert!(error().contains("expected SHA-256 00, got e3b0"));
        let state = folder.join("checkpoints/step-00000005").join(STATE);
        let text = fs::read_to_string(&state).unwrap();
        fs::write(&state, format!("{text} ")).unwrap();
        assert!(error().contains("state.json: expected SHA-256"));
        fs::remove_file(state).unwrap();
        assert!(error().contains(STATE));
        fs::remove_dir_all(folder).unwrap();
    }
}
