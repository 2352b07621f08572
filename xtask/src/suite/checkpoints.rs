//! Checkpoints of a run, judged from outside: names, files, SHA-256 by the system's own program.
//!
//! In: the output directory of a run. Out: the steps of its checkpoints, oldest first, or an error.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::SystemTime;

use cluster::json;

const STATE: &str = "state.json";
/// Files of every checkpoint.
const FILES: [&str; 2] = ["model.safetensors", "training.safetensors"];

/// Returns the steps of all finished checkpoints if each is whole, except for a `damaged` step.
///
/// A checkpoint that is about to be replaced counts, as a resumed run restores it.
pub(crate) fn whole(output: &Path, damaged: Option<u64>) -> Result<Vec<u64>, String> {
    let mut steps = Vec::new();
    let folder = output.join("checkpoints");
    for name in names(&folder) {
        let current = name.trim_end_matches(".replaced");
        let digits = current.strip_prefix("step-");
        let Some(step) = digits.and_then(|digits| digits.parse::<u64>().ok()) else {
            continue;
        };
        let is_superseded = current != name && folder.join(current).exists();
        if !is_superseded && damaged != Some(step) {
            let path = folder.join(&name);
            check(&path, step).map_err(|text| format!("{}: {text}", path.display()))?;
            steps.push(step);
        }
    }
    steps.sort_unstable();
    Ok(steps)
}

/// Returns true if an unfinished checkpoint exists that is not older than `since`.
pub(crate) fn is_being_written(output: &Path, since: SystemTime) -> bool {
    let folder = output.join("checkpoints");
    names(&folder).any(|name| {
        let modified = fs::metadata(folder.join(&name)).and_then(|data| data.modified());
        name.ends_with(".unfinished") && modified.is_ok_and(|time| time >= since)
    })
}

fn names(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
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
    // Lines as sha256sum writes them.
    let mut sums = read("state.sha256")?;
    let residuals = names(checkpoint).filter(|name| name.starts_with("residual-"));
    for file in FILES.map(str::to_owned).into_iter().chain(residuals) {
        let sum = json::text(&state, &file).ok_or_else(|| format!("no SHA-256 of {file}"))?;
        sums.push_str(&format!("{sum}  {file}\n"));
    }
    let mut command = Command::new("sha256sum");
    command.args(["--check", "--strict", "--quiet"]);
    command.current_dir(checkpoint).env("LC_ALL", "C");
    command.stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut judge = || {
        let mut child = command.spawn()?;
        child
            .stdin
            .take()
            .map_or(Ok(()), |mut input| input.write_all(sums.as_bytes()))?;
        child.wait_with_output()
    };
    let output = judge().map_err(|error| format!("sha256sum: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            Err(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
        }
    }
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
        let sum = cluster::process::answer("sha256sum", &[path.as_str()]).unwrap();
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
        let wrong = "0".repeat(64);
        let folder = example("broken", Some(&wrong));
        let error = || whole(&folder, None).unwrap_err();
        assert!(error().contains("model.safetensors: FAILED"), "{}", error());
        let state = folder.join("checkpoints/step-00000005").join(STATE);
        let text = fs::read_to_string(&state).unwrap();
        fs::write(&state, format!("{text} ")).unwrap();
        assert!(error().contains("state.json: FAILED"), "{}", error());
        fs::remove_file(state).unwrap();
        assert!(error().contains(STATE));
        fs::remove_dir_all(folder).unwrap();
    }
}
