//! Stage book: runs the commands of the pages as a reader would.
//!
//! In: pages, the trainer. Out: one line for each page. Invariant: the blocks of a page run in
//! order, in one shell and an empty folder; a block may use files of earlier blocks of its page.
//!
//! A block runs if its fence says so: "```sh runnable". More words are what the block needs: `mpi`
//! is a launcher, any other word is a module of Python, and `python` is Python itself.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cluster::guard::Guarded;
use cluster::mpirun::{self, Mpirun};
use cluster::process;

use super::pages;
use crate::suite::{Checked, Stop};
use crate::{at, cargo};

/// Longest time of a page.
const LIMIT: Duration = Duration::from_secs(180);

/// Lines of the output that a failure shows.
const SHOWN_LINES: usize = 40;

/// A block of commands.
#[derive(Debug, PartialEq)]
struct Block<'a> {
    /// Number of its first line.
    line: usize,
    language: &'a str,
    needs: Vec<&'a str>,
    text: String,
}

/// Runs the blocks of all pages with `only` in their names.
pub(crate) fn run(trainer: &Path, mpirun: Option<&Mpirun>, only: Option<&str>) -> Checked {
    let folder = cargo::target_folder().join("book-suite");
    let _ = fs::remove_dir_all(&folder);
    let mut failed = Vec::new();
    for page in pages()? {
        let name = page.file_stem().unwrap_or_default().to_string_lossy();
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let text = fs::read_to_string(&page).map_err(at(&page))?;
        let blocks: Vec<Block<'_>> = blocks(&text);
        let is_ready = |block: &&Block<'_>| {
            let absent = block.needs.iter().find(|need| !is_there(need, mpirun));
            if let Some(need) = absent {
                println!("skipped: no {need}: {name}.md:{}", block.line);
            }
            absent.is_none()
        };
        let ready: Vec<&Block<'_>> = blocks.iter().filter(is_ready).collect();
        if ready.is_empty() {
            continue;
        }
        let start = Instant::now();
        let folder = folder.join(&*name);
        let result = run_page(&folder, &script(&ready), trainer);
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => println!(
                "ok      {seconds:>6.1} s  {} blocks of {name}.md",
                ready.len()
            ),
            Err(Stop::Failed(text)) => {
                println!("FAILED  {seconds:>6.1} s  {name}.md\n{text}");
                failed.push(format!("{name}.md"));
            }
            Err(skipped) => return Err(skipped),
        }
    }
    if failed.is_empty() {
        let _ = fs::remove_dir_all(&folder);
        return Ok(());
    }
    let (failed, folder) = (failed.join(", "), folder.display());
    Err(Stop::Failed(format!("{failed}; files in {folder}")))
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(_) if is_code => {
                blocks.extend(open.take());
                is_code = false;
            }
            Some(fence) => {
                is_code = true;
                let mut words = fence.split(' ');
                let language = words.next().unwrap_or_default();
                open = (words.next() == Some("runnable")).then(|| Block {
                    line: index + 2,
                    language,
                    needs: words.collect(),
                    text: String::new(),
                });
            }
            None => {
                if let Some(block) = &mut open {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
            }
        }
    }
    blocks
}

/// Returns one script of all blocks, which prints each block before it runs.
fn script(blocks: &[&Block<'_>]) -> String {
    let mut script = "set -euo pipefail\n".to_owned();
    for Block {
        line,
        language,
        text,
        ..
    } in blocks
    {
        script.push_str(&format!("echo '== line {line} =='\n"));
        match *language {
            "python" => {
                script.push_str(&format!("python3 - <<'END_OF_BLOCK'\n{text}END_OF_BLOCK\n"))
            }
            _ => script.push_str(text),
        }
    }
    script
}

fn is_there(need: &str, mpirun: Option<&Mpirun>) -> bool {
    match need {
        "mpi" => mpirun.is_some(),
        "python" => process::answer("python3", &["-c", ""]).is_some(),
        module => {
            let own = cargo::target_folder().join("guide-python/bin/python3");
            let mut import = Command::new(if own.exists() { own } else { "python3".into() });
            import.args(["-c", &format!("import {module}")]);
            import.env("PYTHONPATH", stand_ins());
            matches!(process::ask(&mut import), Ok(Ok(_)))
        }
    }
}

/// Returns the folder with replacements of modules that need a network.
fn stand_ins() -> PathBuf {
    cargo::root().join("xtask/src/book/python")
}

fn run_page(folder: &Path, script: &str, trainer: &Path) -> Checked {
    fs::create_dir_all(folder).map_err(at(folder))?;
    let file = folder.with_extension("sh");
    fs::write(&file, script).map_err(at(&file))?;
    let mut command = Command::new("bash");
    command.arg(&file).current_dir(folder);
    mpirun::forget_surrounding_job(&mut command);
    cargo::forget_this_package(&mut command);
    command
        .env("PATH", path(trainer))
        .env("LOCKSTEP", cargo::root());
    command.env("PYTHONPATH", stand_ins());
    let log = folder.with_extension("txt");
    let code = Guarded::start(&command, &log)?.finish(LIMIT)?;
    if code == Some(0) {
        return Ok(());
    }
    let text = fs::read_to_string(&log).map_err(at(&log))?;
    let lines: Vec<&str> = text.lines().collect();
    let end = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
    let limit = LIMIT.as_secs();
    Err(Stop::Failed(format!(
        "expected exit code 0 within {limit} s, got {code:?}; end of the output:\n{end}"
    )))
}

/// Returns the search path of a reader: the folders of the programs come first.
fn path(trainer: &Path) -> OsString {
    let examples = cargo::target_folder().join("debug/examples");
    let python = cargo::target_folder().join("guide-python/bin");
    let mut folders = vec![
        trainer.parent().unwrap_or(trainer).to_owned(),
        examples,
        python,
    ];
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    env::join_paths(folders).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST_WORDS: usize = 1200;

    #[test]
    fn runnable_blocks_are_found_with_their_needs() {
        let text = "a\n```sh runnable mpi\nb\n```\n```sh\nc\n```\n```python runnable torch x\nd\n\ne\n```\n";
        let found = blocks(text);
        let parts: Vec<_> = found
            .iter()
            .map(|block| (block.line, block.language, &block.text[..]))
            .collect();
        assert_eq!(parts, [(3, "sh", "b\n"), (9, "python", "d\n\ne\n")]);
        assert_eq!(found[1].needs, ["torch", "x"]);
        assert!(blocks("```sh runnable\nopen").is_empty());
    }

    #[test]
    fn a_script_stops_at_the_first_failure_and_runs_python_blocks() {
        let found = blocks("```sh runnable\nfalse\n```\n```python runnable\nprint(1)\n```\n");
        let script = script(&found.iter().collect::<Vec<_>>());
        assert!(script.starts_with("set -euo pipefail\necho '== line 2 =='\nfalse\n"));
        assert!(script.ends_with("python3 - <<'END_OF_BLOCK'\nprint(1)\nEND_OF_BLOCK\n"));
    }

    #[test]
    fn a_guide_page_is_short_and_begins_with_its_goal() {
        let docs = cargo::root().join("docs");
        let contents = fs::read_to_string(docs.join("SUMMARY.md")).unwrap();
        let (_, guide) = contents.split_once("# Guide").unwrap();
        let (guide, _) = guide.split_once("\n# ").unwrap();
        let names = guide
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap());
        for name in names.chain(["start.md"]) {
            let text = fs::read_to_string(docs.join(name)).unwrap();
            let num_words = text.split_whitespace().count();
            assert!(
                num_words <= MOST_WORDS,
                "docs/{name}: {num_words} words, expected at most {MOST_WORDS}"
            );
            let first = text.lines().nth(2).unwrap_or_default();
            assert!(
                first.starts_with("After this page you "),
                "docs/{name}: begins with `{first}`"
            );
        }
    }
}
