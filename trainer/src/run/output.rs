//! The directory a run writes to, and the files in it that outlive a crash.
//!
//! In: [`TrainConfig`]. Out: paths. Invariant: no run writes into another's directory unasked; a
//! reader never sees half a file.

use crate::config::{ConfigError, TrainConfig};
use crate::measure::held_file::HeldFile;
use crate::measure::whole_file::{make_folder, sync_parent, write_atomically};
use crate::run::lock::{DirectoryLock, LOCK_FILE};
use anyhow::{Context, Result};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where default output directories are made.
const RUNS: &str = "runs";

/// The file with a run's options, in its output directory.
pub const RUN_TOML: &str = "run.toml";

/// The file with the hashes of a run's first steps.
pub const HASHES: &str = "hashes.jsonl";

/// The directory of one run. Only root makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputDirectory {
    path: PathBuf,
}

impl OutputDirectory {
    /// Makes the directory of `--output-dir`, or that after the last of `runs/<name>`, `runs/<name>-2`, ….
    /// With `--resume` an existing one is used: that of `--output-dir`, else the last of the run's name.
    ///
    /// # Errors
    /// [`ConfigError::OutputDirectoryInUse`] if `--output-dir` has files and `--resume` was not given, another if it is that of a data set;
    /// I/O errors.
    pub fn prepare(config: &TrainConfig) -> Result<Self> {
        Self::prepare_below(Path::new(RUNS), config)
    }

    fn prepare_below(runs: &Path, config: &TrainConfig) -> Result<Self> {
        let path = match &config.run.output_dir {
            Some(path) => {
                make_folder(path)?;
                if !config.resume && has_files(path)? {
                    return Err(ConfigError::OutputDirectoryInUse { path: path.clone() }.into());
                }
                if holds_data(path) {
                    return Err(ConfigError::Invalid {
                        option: "--output-dir",
                        expected: "the directory of a run".to_owned(),
                        got: format!("{}, which holds the folders of a data set", path.display()),
                    }
                    .into());
                }
                path.clone()
            }
            None => Self::numbered(&runs.join(config.run_name()), config.resume)?,
        };
        sync_parent(&path)?;
        Ok(Self { path })
    }

    fn numbered(first: &Path, resume: bool) -> Result<PathBuf> {
        if let Some(last) = Self::last(first)?.filter(|_| resume) {
            return Ok(last);
        }
        first.parent().map_or(Ok(()), make_folder)?;
        let mut number = last_number(first, |_| true)?.saturating_add(1);
        loop {
            let path = nth(first, number);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make {}", path.display()));
                }
            }
        }
    }

    /// The directory that a start with `--resume` would use, if it is there.
    pub fn to_resume(config: &TrainConfig) -> Result<Option<Self>> {
        let path = match &config.run.output_dir {
            Some(path) => Some(path.clone()),
            None => Self::last(&Path::new(RUNS).join(config.run_name()))?,
        };
        Ok(path.filter(|path| path.is_dir()).map(|path| Self { path }))
    }

    /// The last of these directories, if there is one.
    fn last(first: &Path) -> Result<Option<PathBuf>> {
        let number = last_number(first, Path::is_dir)?;
        Ok((number > 0).then(|| nth(first, number)))
    }

    /// Takes the directory for this process, which must end before another may write to it.
    ///
    /// `None` where the file system has no locks.
    ///
    /// # Errors
    /// [`ConfigError::OutputDirectoryBusy`] while another process has it, [`ConfigError::OutputDirectoryInUse`] when one has
    /// begun a run in it since [`prepare`](Self::prepare); I/O errors.
    pub fn lock(&self, config: &TrainConfig, holder: &str) -> Result<Option<DirectoryLock>> {
        let lock = DirectoryLock::take(&self.path, holder)?;
        if !config.resume && has_files(&self.path)? {
            return Err(ConfigError::OutputDirectoryInUse {
                path: self.path.clone(),
            }
            .into());
        }
        Ok(lock)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run_toml(&self) -> PathBuf {
        self.path.join(RUN_TOML)
    }

    pub fn manifest(&self) -> PathBuf {
        self.path.join("manifest.json")
    }

    pub fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    pub fn progress(&self) -> PathBuf {
        self.path.join("progress.json")
    }

    pub fn hashes(&self) -> PathBuf {
        self.path.join(HASHES)
    }

    pub fn evaluation(&self) -> PathBuf {
        self.path.join("evaluation.json")
    }

    pub fn summary(&self) -> PathBuf {
        self.path.join("summary.json")
    }

    /// Whether a session of the run that made steps has come to its end, where it left a checkpoint.
    pub fn has_ended(&self) -> bool {
        let summary = self.summary();
        // A later session puts it aside under its own number, whichever that is.
        let beside = self
            .kept_sessions()
            .map(|session| numbered_beside(&summary, session));
        beside
            .chain([summary.clone()])
            .any(|path| made_steps(&path))
    }

    /// What was printed.
    pub fn log(&self) -> PathBuf {
        self.path.join("train.log")
    }

    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    pub fn open_log(&self) -> Result<HeldFile> {
        HeldFile::open(&self.log())
    }

    /// Keeps what the last session has written of itself under its number, `run-1.toml` and `manifest-1.json`, beside the present
    /// files: the disk may be too full for new ones. The number, if there was a session.
    pub fn keep_session(&self) -> Result<Option<u32>> {
        let (manifest, options) = (self.manifest(), self.run_toml());
        if !manifest.exists() {
            return Ok(None);
        }
        let read = |path: &Path| {
            records::file::read(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let free = (1..).find(|&session| !numbered_beside(&manifest, session).exists());
        let free = free.context("manifest: no free name")?;
        // A start that failed may have kept it already.
        if free > 1 && read(&numbered_beside(&manifest, free - 1))? == read(&manifest)? {
            return Ok(Some(free - 1));
        }
        for path in [options, manifest].iter().filter(|path| path.exists()) {
            write_atomically(&numbered_beside(path, free), &read(path)?)?;
        }
        Ok(Some(free))
    }

    /// The numbers of the sessions that [`keep_session`](Self::keep_session) has kept.
    fn kept_sessions(&self) -> impl Iterator<Item = u32> {
        let manifest = self.manifest();
        (1..).take_while(move |&session| numbered_beside(&manifest, session).exists())
    }

    /// Puts the summary of this session aside as `summary-1.json`: it is no longer the run's.
    pub fn keep_summary(&self, session: u32) -> Result<()> {
        let summary = self.summary();
        match fs::rename(&summary, numbered_beside(&summary, session)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result.with_context(|| format!("cannot rename {}", summary.display())),
        }
    }

    /// Removes what earlier sessions wrote of themselves: the run begins anew.
    pub fn forget_sessions(&self) -> Result<()> {
        let remove = |path: &Path| match fs::remove_file(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result.with_context(|| format!("cannot remove {}", path.display())),
        };
        let files = [self.run_toml(), self.manifest(), self.summary()];
        for session in self.kept_sessions() {
            files
                .iter()
                .try_for_each(|path| remove(&numbered_beside(path, session)))?;
        }
        remove(&self.evaluation())?;
        remove(&files[2])
    }

    /// Writes `run.toml`, with this directory as `output-dir`.
    pub fn write_run_toml(&self, config: &TrainConfig) -> Result<()> {
        let config = config.clone().in_directory(&self.path);
        write_atomically(&self.run_toml(), config.to_toml().as_bytes())
    }
}

/// What a run writes in `directory`.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let run = OutputDirectory {
        path: directory.to_owned(),
    };
    let records = [
        run.run_toml(),
        run.manifest(),
        run.metrics(),
        run.progress(),
        run.hashes(),
        run.evaluation(),
        run.summary(),
    ];
    [run.log(), run.checkpoints(), directory.join(LOCK_FILE)]
        .into_iter()
        .chain(records)
        .collect()
}

/// `runs/name`, `runs/name-2`, …
fn nth(first: &Path, number: u32) -> PathBuf {
    match number {
        1 => first.to_owned(),
        _ => PathBuf::from(format!("{}-{number}", first.display())),
    }
}

/// The highest number of [`nth`] that is there and `counts`, whatever is missing below it; 0 if there is none.
fn last_number(first: &Path, counts: impl Fn(&Path) -> bool) -> Result<u32> {
    let folder = first.parent().unwrap_or(Path::new("."));
    let context = || format!("cannot read {}", folder.display());
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        entries => entries.with_context(context)?,
    };
    let mut last = 0;
    for entry in entries {
        let path = folder.join(entry.with_context(context)?.file_name());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let number = name
            .rsplit_once('-')
            .and_then(|(_, number)| number.parse().ok())
            .filter(|&number| number > 1);
        let number = number
            .filter(|&number| path == nth(first, number))
            .unwrap_or(u32::from(path == first));
        if number > last && counts(&path) {
            last = number;
        }
    }
    Ok(last)
}

/// The name that a session's file has once another has begun: `run-1.toml` of `run.toml`.
pub(crate) fn numbered_beside(path: &Path, session: u32) -> PathBuf {
    let text =
        |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!(
        "{}-{session}.{}",
        text(path.file_stem()),
        text(path.extension())
    ))
}

/// Whether a summary tells of steps; one that cannot be read may.
fn made_steps(summary: &Path) -> bool {
    let Ok(text) = records::file::read(summary) else {
        return summary.exists();
    };
    serde_json::from_slice(&text).map_or(true, |summary: records::Summary| summary.steps > 0)
}

/// Whether a directory has anything in it beside the file that is locked.
fn has_files(directory: &Path) -> Result<bool> {
    let context = || format!("cannot read {}", directory.display());
    for entry in fs::read_dir(directory).with_context(context)? {
        if entry.with_context(context)?.file_name() != LOCK_FILE {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a directory is an image folder, and no run has begun there.
fn holds_data(directory: &Path) -> bool {
    !directory.join(RUN_TOML).exists()
        && ["train", "test", "val"]
            .iter()
            .any(|name| directory.join(name).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::cli::TrainArgs;

    fn config(output_dir: Option<&Path>, resume: bool) -> TrainConfig {
        let mut args = TrainArgs {
            resume,
            ..TrainArgs::default()
        };
        args.run.output_dir = output_dir.map(Path::to_owned);
        TrainConfig::resolve(&args, 1).unwrap()
    }

    fn name(directory: &OutputDirectory) -> String {
        directory
            .path()
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn default_directories_are_numbered_and_resume_takes_the_last() {
        let runs = tempfile::tempdir().unwrap();
        let prepare = |resume| {
            name(&OutputDirectory::prepare_below(runs.path(), &config(None, resume)).unwrap())
        };
        assert_eq!(prepare(true), "resnet20-shapes-seed0");
        assert_eq!(prepare(false), "resnet20-shapes-seed0-2");
        assert_eq!(prepare(false), "resnet20-shapes-seed0-3");
        assert_eq!(prepare(true), "resnet20-shapes-seed0-3");
        fs::remove_dir(runs.path().join("resnet20-shapes-seed0-2")).unwrap();
        assert_eq!(prepare(true), "resnet20-shapes-seed0-3", "a gap below it");
        assert_eq!(prepare(false), "resnet20-shapes-seed0-4");
        fs::create_dir(runs.path().join("resnet20-shapes-seed0-9-b")).unwrap();
        fs::create_dir(runs.path().join("resnet20-shapes-seed0-05")).unwrap();
        assert_eq!(prepare(true), "resnet20-shapes-seed0-4", "names of others");
        fs::write(runs.path().join("resnet20-shapes-seed0-7"), "").unwrap();
        assert_eq!(prepare(true), "resnet20-shapes-seed0-4", "a file");
        assert_eq!(prepare(false), "resnet20-shapes-seed0-8");
    }

    #[test]
    fn a_directory_with_files_is_refused_unless_resumed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        OutputDirectory::prepare(&config(Some(path), false)).expect("an empty directory is fine");
        fs::write(path.join("run.toml"), "").unwrap();
        let error = OutputDirectory::prepare(&config(Some(path), false)).unwrap_err();
        assert!(error.downcast_ref::<ConfigError>().is_some());
        assert!(error.to_string().contains("--resume"), "{error}");
        OutputDirectory::prepare(&config(Some(path), true)).expect("resuming is allowed");
    }

    #[test]
    fn run_toml_names_the_directory_and_resolves_again() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(Some(&directory.path().join("run")), false);
        let output = OutputDirectory::prepare(&config).unwrap();
        output.write_run_toml(&config).unwrap();
        let text = fs::read_to_string(output.run_toml()).unwrap();
        assert_eq!(TrainConfig::from_toml(&text, 1).unwrap(), config);
    }

    #[test]
    fn a_session_in_another_folder_finds_the_files_that_the_run_names() {
        let directory = tempfile::tempdir().unwrap();
        let mut args = TrainArgs::default();
        args.run.output_dir = Some(directory.path().to_owned());
        args.run.tensorboard = Some(PathBuf::from("events"));
        args.run.weights = Some(PathBuf::from("begun.safetensors"));
        let config = TrainConfig::resolve(&args, 1).unwrap();
        let output = OutputDirectory::prepare(&config).unwrap();
        output.write_run_toml(&config).unwrap();
        let saved =
            TrainConfig::from_toml(&fs::read_to_string(output.run_toml()).unwrap(), 1).unwrap();
        let absolute = |name| Some(std::env::current_dir().unwrap().join(name));
        assert_eq!(
            (saved.run.tensorboard.clone(), saved.run.weights.clone()),
            (absolute("events"), absolute("begun.safetensors"))
        );
    }
}
