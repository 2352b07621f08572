//! The directory of a run: where it is, which process may write to it, and the files of its
//! sessions.
//!
//! In: [`TrainConfig`]. Out: [`RunDirectory`], locked for this process; root alone has one.
//! Invariant: one process writes to a directory, and no run writes to the directory of another run
//! by accident. A run that was killed leaves no lock. A reader never sees half a file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use distributed::Communicator;
use distributed::communicator::scheduler_job;
use records::{Manifest, Summary, file};
use serde::de::DeserializeOwned;

use crate::config::{ConfigError, TrainConfig, invalid};

/// The parent of directories that are named after their run.
const RUNS: &str = "runs";

/// Options of the run.
pub const RUN_TOML: &str = "run.toml";
/// Program, data and launch of the present session.
pub const MANIFEST: &str = "manifest.json";
/// A line for each epoch.
pub const METRICS: &str = "metrics.jsonl";
/// Position of a run that trains.
pub const PROGRESS: &str = "progress.json";
/// Hashes of the first steps.
pub const HASHES: &str = "hashes.jsonl";
/// A line for each step, with `--log-steps`.
pub const STEPS: &str = "steps.csv";
/// Scores of each class in the best evaluation or the final test.
pub const EVALUATION: &str = "evaluation.json";
/// Results of the session that ended last.
pub const SUMMARY: &str = "summary.json";
/// Text of the console.
pub const LOG: &str = "train.log";
/// Folder of the checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// The file that is locked. It stays, with the process and the machine that locked it last;
/// `trainer watch` tries the lock.
const LOCK: &str = ".lock";

/// Everything that a run writes in its directory.
pub const FILES: [&str; 11] = [
    RUN_TOML,
    MANIFEST,
    METRICS,
    PROGRESS,
    HASHES,
    STEPS,
    EVALUATION,
    SUMMARY,
    LOG,
    CHECKPOINTS,
    LOCK,
];

/// Time that a start waits for an earlier process, which may have been killed and not have exited
/// yet.
const PATIENCE: Duration = Duration::from_secs(3);

/// The directory of one run.
#[derive(Debug)]
pub struct RunDirectory {
    path: PathBuf,
    /// Absent if the file system has no locks.
    lock: Option<Lock>,
}

#[derive(Debug)]
struct Lock {
    directory: File,
    _file: File,
}

impl RunDirectory {
    /// Locks the directory of `--output-dir` or, without it, a new one below `runs/`, named after
    /// the run and numbered. With `--resume` the directory must exist. `holder` is shown to
    /// competing processes.
    ///
    /// # Errors
    /// [`ConfigError`] if the directory has files and `--resume` is absent, does not exist
    /// with `--resume`, holds a data set, or is locked by another process; I/O errors.
    pub fn lock(config: &TrainConfig, holder: &str) -> Result<Self> {
        Self::lock_below(Path::new(RUNS), config, holder)
    }

    fn lock_below(runs: &Path, config: &TrainConfig, holder: &str) -> Result<Self> {
        let path = match Self::find_below(runs, config)? {
            Some(path) => path,
            None => create(runs, config)?,
        };
        Self::lock_existing(path, config.resume, holder)
    }

    /// Locks the directory `path`, which is created if necessary, for a run without a
    /// [`TrainConfig`]. With `resume` it may have files.
    ///
    /// # Errors
    /// As [`lock`](Self::lock).
    pub fn lock_at(path: &Path, resume: bool, holder: &str) -> Result<Self> {
        if resume && !path.exists() {
            reject_misspelling(path)?;
        }
        file::create_folder(path)?;
        Self::lock_existing(path.to_owned(), resume, holder)
    }

    fn lock_existing(path: PathBuf, resume: bool, holder: &str) -> Result<Self> {
        if !resume && has_files(&path)? {
            return Err(in_use(&path).into());
        }
        if holds_data(&path) {
            let got = format!("{}, which holds the folders of a data set", path.display());
            return Err(invalid("--output-dir", "the directory of a run", got).into());
        }
        file::sync_parent(&path)?;
        let lock = Lock::take(&path, holder)?;
        // Another process may have started a run here before this one had the lock.
        if !resume && has_files(&path)? {
            return Err(in_use(&path).into());
        }
        Ok(Self { path, lock })
    }

    /// Returns the directory that `config` resumes, or `None` without `--resume` and for a run that
    /// has none yet.
    ///
    /// # Errors
    /// [`ConfigError`] if `--output-dir` looks misspelled or several runs have the name; I/O
    /// errors.
    pub fn to_resume(config: &TrainConfig) -> Result<Option<PathBuf>> {
        if config.resume {
            Self::find_below(Path::new(RUNS), config)
        } else {
            Ok(None)
        }
    }

    /// Checks that the run of `--resume` without other options exists.
    ///
    /// # Errors
    /// [`ConfigError`] with the newest run, if there is no such run; as
    /// [`to_resume`](Self::to_resume).
    pub fn expect_default(config: &TrainConfig) -> Result<()> {
        match Self::to_resume(config)? {
            Some(_) => Ok(()),
            None => Err(no_run(None, &newest_run(Path::new(RUNS))?).into()),
        }
    }

    fn find_below(runs: &Path, config: &TrainConfig) -> Result<Option<PathBuf>> {
        if let Some(path) = &config.run.output_dir {
            if config.resume && !path.exists() {
                reject_misspelling(path)?;
            }
            return Ok(path.is_dir().then(|| path.clone()));
        }
        if !config.resume {
            return Ok(None);
        }
        let mut paths = numbered(&runs.join(config.run_name()))?;
        paths.retain(|_, path| path.is_dir());
        if paths.len() > 1 {
            let names = paths.values().map(|path| path.display().to_string());
            let names: Vec<String> = names.collect();
            let expected = "the --output-dir of one run, since several have this name";
            return Err(invalid("--resume", expected, names.join(", ")).into());
        }
        Ok(paths.into_values().next())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of one of [`FILES`].
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns true if other processes can write to the directory, since its file system has no
    /// locks.
    pub fn is_unlocked(&self) -> bool {
        self.lock.is_none()
    }

    /// Checks that the directory is still at its path: one in its place would belong to no run and
    /// have no lock.
    ///
    /// # Errors
    /// [`ConfigError`] if it is not.
    pub fn expect_in_place(&self) -> Result<(), ConfigError> {
        match &self.lock {
            Some(lock) if file::is_replaced(&lock.directory, &self.path) => {
                Err(ConfigError(format!(
                    "output directory {} was moved or removed while the run wrote to it: put it back and give --resume, or start again",
                    self.path.display()
                )))
            }
            _ => Ok(()),
        }
    }

    /// Writes the options and the manifest of a session. If it `continues` an earlier session, the
    /// files of that session stay under its number; otherwise the files of all earlier sessions are
    /// removed.
    pub fn begin(&self, config: &TrainConfig, manifest: &Manifest, continues: bool) -> Result<()> {
        let options = config.clone().in_directory(&self.path).to_toml();
        self.begin_with(&options, manifest, continues)
    }

    /// As [`begin`](Self::begin), with options in TOML.
    pub fn begin_with(&self, options: &str, manifest: &Manifest, continues: bool) -> Result<()> {
        let earlier = if continues {
            self.keep_session()?
        } else {
            None
        };
        file::replace_json(&self.file(MANIFEST), manifest)?;
        file::replace(&self.file(RUN_TOML), options.as_bytes())?;
        let Some(session) = earlier else {
            return self.remove_sessions();
        };
        let summary = self.file(SUMMARY);
        match fs::rename(&summary, session_path(&summary, session)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result.with_context(|| format!("cannot rename {}", summary.display())),
        }
    }

    /// Copies the options and the manifest of the last session to `run-1.toml` and
    /// `manifest-1.json`, and returns its number. The present files stay: the disk may be too full
    /// for new ones.
    fn keep_session(&self) -> Result<Option<u32>> {
        let manifest = self.file(MANIFEST);
        if !manifest.exists() {
            return Ok(None);
        }
        let read = |path: &Path| {
            file::read(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let last = self.kept_sessions().last().unwrap_or(0);
        // A start that failed may have kept it already.
        if last > 0 && read(&session_path(&manifest, last))? == read(&manifest)? {
            return Ok(Some(last));
        }
        for path in [self.file(RUN_TOML), manifest] {
            if path.exists() {
                file::replace(&session_path(&path, last + 1), &read(&path)?)?;
            }
        }
        Ok(Some(last + 1))
    }

    fn kept_sessions(&self) -> impl Iterator<Item = u32> {
        let manifest = self.file(MANIFEST);
        (1..).take_while(move |&session| session_path(&manifest, session).exists())
    }

    fn remove_sessions(&self) -> Result<()> {
        let mut paths = vec![self.file(EVALUATION), self.file(SUMMARY)];
        for session in self.kept_sessions() {
            for name in [RUN_TOML, MANIFEST, SUMMARY] {
                paths.push(session_path(&self.file(name), session));
            }
        }
        for path in paths {
            match fs::remove_file(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                result => result.with_context(|| format!("cannot remove {}", path.display()))?,
            }
        }
        Ok(())
    }

    /// Rejects a run without checkpoints whose last session has ended.
    ///
    /// # Errors
    /// If it has.
    pub fn expect_unfinished(&self) -> Result<()> {
        ensure!(
            !self.has_ended(),
            "resume: the run in {} has finished but has no checkpoint; restore its checkpoints, or choose another --output-dir",
            self.path.display()
        );
        Ok(())
    }

    /// Returns true if a session that ran steps has ended, after which the run has a checkpoint.
    fn has_ended(&self) -> bool {
        let summary = self.file(SUMMARY);
        let earlier = self
            .kept_sessions()
            .map(|session| session_path(&summary, session));
        earlier.chain([summary.clone()]).any(|path| {
            let steps = read_json(&path).map(|summary: Summary| summary.steps);
            path.exists() && steps != Some(0)
        })
    }

    /// Returns the content of one of [`FILES`], if it can be read.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        read_json(&self.file(name))
    }

    /// Writes the summary.
    ///
    /// # Errors
    /// As [`expect_in_place`](Self::expect_in_place); I/O errors.
    pub fn finish(&self, summary: &Summary) -> Result<()> {
        self.expect_in_place()?;
        Ok(file::replace_json(&self.file(SUMMARY), summary)?)
    }
}

/// Returns a description of this process for others that want its output directory.
pub fn holder(communicator: &dyn Communicator) -> String {
    let job = scheduler_job().map_or(String::new(), |job| format!(" ({job})"));
    format!(
        "process {} on {}{job}",
        std::process::id(),
        communicator.topology().node
    )
}

fn in_use(path: &Path) -> ConfigError {
    let remedy = if path.join(RUN_TOML).exists() || path.join(CHECKPOINTS).exists() {
        "give --resume to continue its run, or another --output-dir"
    } else {
        "it has no run; give another --output-dir"
    };
    ConfigError(format!(
        "output directory {} is not empty: {remedy}",
        path.display()
    ))
}

impl Lock {
    fn take(directory: &Path, holder: &str) -> Result<Option<Self>> {
        let path = directory.join(LOCK);
        let mut locked = match file::lock(&path, PATIENCE)? {
            file::Lock::Taken(locked) => locked,
            file::Lock::Unsupported(_) => return Ok(None),
            file::Lock::Busy(text) => {
                let holder = text.lines().next().unwrap_or("another process");
                return Err(ConfigError(format!(
                    "output directory {} is in use by {holder}: wait until that run has ended, or give another --output-dir",
                    directory.display()
                ))
                .into());
            }
        };
        let since = humantime::format_rfc3339_seconds(SystemTime::now());
        let boot = records::boot_id().map_or_else(String::new, |id| format!("\nboot {id}"));
        locked
            .set_len(0)
            .and_then(|()| write!(locked, "{holder} since {since}{boot}"))
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Some(Self {
            directory: File::open(directory)?,
            _file: locked,
        }))
    }
}

/// Creates the directory of a new run.
fn create(runs: &Path, config: &TrainConfig) -> Result<PathBuf> {
    if let Some(path) = &config.run.output_dir {
        file::create_folder(path)?;
        return Ok(path.clone());
    }
    file::create_folder(runs)?;
    let first = runs.join(config.run_name());
    let taken = numbered(&first)?;
    let mut number = taken.last_key_value().map_or(1, |(last, _)| last + 1);
    loop {
        let path = numbered_path(&first, number);
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create {}", path.display()));
            }
        }
    }
}

/// Returns `runs/name`, `runs/name-2`, …
fn numbered_path(first: &Path, number: u32) -> PathBuf {
    match number {
        1 => first.to_owned(),
        _ => PathBuf::from(format!("{}-{number}", first.display())),
    }
}

/// Returns the paths of [`numbered_path`] that exist.
fn numbered(first: &Path) -> Result<BTreeMap<u32, PathBuf>> {
    let mut paths = BTreeMap::new();
    for name in names(first.parent().unwrap_or(Path::new(".")))? {
        let path = first.with_file_name(&name);
        let number = match name.rsplit_once('-') {
            _ if path == first => Some(1),
            Some((_, number)) => number.parse().ok(),
            None => None,
        };
        if let Some(number) = number
            && path == numbered_path(first, number)
        {
            paths.insert(number, path);
        }
    }
    Ok(paths)
}

/// Returns the names in a folder; none if it does not exist.
fn names(folder: &Path) -> Result<Vec<String>> {
    let context = || format!("cannot read {}", folder.display());
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(context)?,
    };
    let name = |entry: std::io::Result<fs::DirEntry>| {
        Ok(entry
            .with_context(context)?
            .file_name()
            .to_string_lossy()
            .into_owned())
    };
    entries.map(name).collect()
}

/// Checks that no run has nearly the name of a directory that does not exist. A script may start
/// and resume a run with one command, so another missing directory is a new run. Names that differ
/// only in digits belong to a series.
fn reject_misspelling(path: &Path) -> Result<(), ConfigError> {
    let letters = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.replace(|c: char| c.is_ascii_digit(), "")
    };
    let mut similar = similar_runs(path);
    similar.retain(|other| letters(other) != letters(path));
    match similar.is_empty() {
        true => Ok(()),
        false => Err(no_run(Some(path), &similar)),
    }
}

/// Checks that the directory of a run exists.
pub fn expect_run(path: &Path) -> Result<(), ConfigError> {
    match path.exists() {
        true => Ok(()),
        false => Err(no_run(Some(path), &similar_runs(path))),
    }
}

/// Returns the runs with nearly the name of a directory that does not exist.
fn similar_runs(path: &Path) -> Vec<PathBuf> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut similar = names(if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    })
    .unwrap_or_default();
    similar.retain(|other| {
        strsim::damerau_levenshtein(other, &name) <= 2 && folder.join(other).join(RUN_TOML).exists()
    });
    similar.sort();
    similar.iter().map(|other| folder.join(other)).collect()
}

/// Returns the run in a folder that began last, if there is one.
fn newest_run(runs: &Path) -> Result<Vec<PathBuf>> {
    let began = |path: &PathBuf| fs::metadata(path.join(RUN_TOML)).ok()?.modified().ok();
    let paths = names(runs)?.into_iter().map(|name| runs.join(name));
    let newest = paths.filter_map(|path| Some((began(&path)?, path))).max();
    Ok(newest.map(|(_, path)| path).into_iter().collect())
}

/// Returns the error for a run to resume that does not exist. `path` is that of `--output-dir`.
fn no_run(path: Option<&Path>, others: &[PathBuf]) -> ConfigError {
    let hint: String = others
        .iter()
        .map(|other| format!(", such as {}", other.display()))
        .collect();
    let expected = format!("the directory of the run to resume{hint}");
    let got = match path {
        Some(path) => format!(
            "{}, which does not exist. Correct the name, or remove --resume to start a run there",
            path.display()
        ),
        None => "none. Name the run, or remove --resume to start one".to_owned(),
    };
    invalid("--output-dir", expected, got)
}

/// Returns the path of a session's file after the next session has begun: `run-1.toml` for
/// `run.toml`.
pub(crate) fn session_path(path: &Path, session: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!("{stem}-{session}.{extension}"))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_slice(&file::read(path).ok()?).ok()
}

/// Returns true if the directory has anything but the file that is locked.
fn has_files(directory: &Path) -> Result<bool> {
    Ok(names(directory)?.iter().any(|name| name != LOCK))
}

/// Returns true if the directory is an image folder without a run.
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

    fn lock(config: &TrainConfig) -> Result<RunDirectory> {
        RunDirectory::lock(config, "process 7 on n1")
    }

    #[test]
    fn new_directories_are_numbered_and_resume_rejects_an_ambiguous_name() {
        let runs = tempfile::tempdir().unwrap();
        let locked = |resume| {
            RunDirectory::lock_below(runs.path(), &config(None, resume), "process 7").map(
                |directory| {
                    let name = directory.path().file_name().unwrap();
                    name.to_string_lossy().into_owned()
                },
            )
        };
        assert_eq!(locked(true).unwrap(), "resnet20-shapes-seed0");
        assert_eq!(locked(true).unwrap(), "resnet20-shapes-seed0");
        assert_eq!(locked(false).unwrap(), "resnet20-shapes-seed0-2");
        assert_eq!(locked(false).unwrap(), "resnet20-shapes-seed0-3");
        let error = locked(true).unwrap_err();
        assert!(error.is::<ConfigError>());
        assert!(
            error.to_string().contains("several have this name")
                && error.to_string().ends_with("resnet20-shapes-seed0-3"),
            "{error}"
        );
        for number in ["", "-2"] {
            let name = format!("resnet20-shapes-seed0{number}");
            fs::remove_dir_all(runs.path().join(name)).unwrap();
        }
        fs::create_dir(runs.path().join("resnet20-shapes-seed0-9-b")).unwrap();
        fs::create_dir(runs.path().join("resnet20-shapes-seed0-05")).unwrap();
        fs::write(runs.path().join("resnet20-shapes-seed0-7"), "").unwrap();
        assert_eq!(
            locked(true).unwrap(),
            "resnet20-shapes-seed0-3",
            "other names and files do not count"
        );
        assert_eq!(locked(false).unwrap(), "resnet20-shapes-seed0-8");
    }

    #[test]
    fn a_resume_of_a_missing_directory_is_rejected_only_if_a_run_has_a_similar_name() {
        let runs = tempfile::tempdir().unwrap();
        let night = runs.path().join("night");
        fs::create_dir(&night).unwrap();
        fs::write(night.join(RUN_TOML), "").unwrap();
        fs::create_dir(runs.path().join("nigth2")).unwrap();
        let config = config(Some(&runs.path().join("nigth")), true);
        let error = lock(&config).unwrap_err();
        assert!(error.is::<ConfigError>());
        let expected = format!("such as {}, got ", night.display());
        assert!(error.to_string().contains(&expected), "{error}");
        assert!(!runs.path().join("nigth").exists());
        assert!(RunDirectory::to_resume(&config).is_err());

        let series = runs.path().join("seed-1");
        fs::create_dir(&series).unwrap();
        fs::write(series.join(RUN_TOML), "").unwrap();
        let error = expect_run(&runs.path().join("seed-2")).unwrap_err();
        assert!(
            error.to_string().contains("which does not exist"),
            "{error}"
        );
        for new in ["seed-2", "other"] {
            let new = self::config(Some(&runs.path().join(new)), true);
            assert_eq!(RunDirectory::to_resume(&new).unwrap(), None);
            lock(&new).expect("one command starts and resumes a run");
        }
    }

    #[test]
    fn a_directory_with_files_is_refused_unless_resumed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        lock(&config(Some(path), false)).expect("an empty directory is fine");
        fs::write(path.join("notes.txt"), "").unwrap();
        let error = lock(&config(Some(path), false)).unwrap_err().to_string();
        assert!(error.contains("it has no run"), "{error}");
        fs::write(path.join(RUN_TOML), "").unwrap();
        let error = lock(&config(Some(path), false)).unwrap_err();
        assert!(error.is::<ConfigError>());
        assert!(error.to_string().contains("--resume"), "{error}");
        lock(&config(Some(path), true)).expect("resuming is allowed");
    }

    #[test]
    fn a_second_process_is_refused_with_the_holder_of_the_directory() {
        let directory = tempfile::tempdir().unwrap();
        let config = config(Some(directory.path()), false);
        let first = lock(&config).unwrap();
        let error = RunDirectory::lock(&config, "process 8 on n2").unwrap_err();
        assert!(error.is::<ConfigError>());
        let text = error.to_string();
        assert!(
            text.contains("in use by process 7 on n1 since ") && !text.contains("boot"),
            "{text}"
        );
        drop(first);
        let second = RunDirectory::lock(&config, "process 8 on n2").unwrap();
        let text = fs::read_to_string(second.file(LOCK)).unwrap();
        assert!(
            text.starts_with("process 8 on n2 since ") && text.matches("since").count() == 1,
            "{text}"
        );
    }

    #[test]
    fn run_toml_has_absolute_paths_and_resolves_to_the_same_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let mut args = TrainArgs::default();
        args.run.output_dir = Some(folder.path().join("run"));
        args.run.tensorboard = Some(PathBuf::from("events"));
        args.run.weights = Some(PathBuf::from("begun.safetensors"));
        let config = TrainConfig::resolve(&args, 1).unwrap();
        let directory = lock(&config).unwrap();
        directory
            .begin(&config, &Manifest::default(), false)
            .unwrap();
        let text = fs::read_to_string(directory.file(RUN_TOML)).unwrap();
        let here = std::env::current_dir().unwrap();
        args.run.tensorboard = Some(here.join("events"));
        args.run.weights = Some(here.join("begun.safetensors"));
        assert_eq!(
            TrainConfig::from_toml(&text, 1).unwrap(),
            TrainConfig::resolve(&args, 1).unwrap()
        );
    }
}
