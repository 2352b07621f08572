//! `cargo xtask book`: pages of the book that are made from the program, then the book itself.
//!
//! In: the trainer's flags, the structs of its files, `docs/results`. Out: the pages `flags.md` and
//! `keys.md`, blocks of other pages, charts; with mdbook also `book/`.
//! Invariant: tests compare the committed pages with those written here.

mod blocks;
mod chart;
pub(crate) mod commands;
mod keys;
mod results;
mod table;

pub(crate) use blocks::{BEGIN, END};

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use cluster::failure::{Outcome, failed};
use cluster::{probe, process};

use crate::cargo::{self, Mpi};
use crate::report_suite::{self, BROWSER_FLAGS};
use crate::setup::Found;
use crate::{at, entries};

const REFERENCE: &str = "docs/reference";
const KEYS_PAGE: &str = "docs/reference/keys.md";

/// Flags of `cargo xtask book`.
#[derive(Debug, Args)]
pub(crate) struct BookArgs {
    /// Make the pictures in docs/figures again, with Chromium and TensorBoard
    #[arg(long)]
    pictures: bool,
}

impl BookArgs {
    pub(crate) fn run(&self) -> Outcome {
        run(self.pictures)
    }
}

/// Writes the pages and builds the book.
fn run(with_pictures: bool) -> Outcome {
    let page = cargo::root().join(KEYS_PAGE);
    fs::write(&page, keys::page(cargo::root())?).map_err(at(&page))?;
    for (file, text) in blocks::files(cargo::root())? {
        fs::write(&file, text).map_err(at(&file))?;
    }
    let trainer = cargo::trainer(Mpi::of(&Found::look()))?;
    if with_pictures {
        pictures(&trainer)?;
    }
    let mut flags = Command::new(trainer);
    flags.args(["man", "--markdown", REFERENCE]);
    flags.current_dir(cargo::root());
    process::run(flags)?;
    let Some(mdbook) = probe::program("mdbook") else {
        println!("no mdbook: `cargo install mdbook --locked`, then repeat to build the book");
        return Ok(());
    };
    let mut build = Command::new(mdbook);
    build.arg("build").current_dir(cargo::root());
    process::run(build)?;
    link_pages_outside()
}

/// Returns the README and the pages of the book's first level, which are the guide.
fn pages() -> Outcome<Vec<PathBuf>> {
    let mut pages = entries(&cargo::root().join("docs"))?;
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));
    pages.push(cargo::root().join("README.md"));
    Ok(pages)
}

/// Makes the pictures that need other programs. They are committed, so the book builds without
/// these programs.
fn pictures(trainer: &Path) -> Outcome {
    let browser = report_suite::browser()
        .ok_or_else(|| failed!("no Chromium. Install it with `cargo xtask test --only report`."))?;
    let python = report_suite::python(true).map_err(|stop| failed!("{stop:?}"))?;
    let folder = cargo::target_folder().join("pictures");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let mut script = Command::new("bash");
    script.arg(cargo::root().join("xtask/src/book/pictures.sh"));
    script.current_dir(&folder).env("ROOT", cargo::root());
    script.env("TRAINER", trainer).env("PYTHON", python);
    script.env("BROWSER", format!("{} {BROWSER_FLAGS}", browser.display()));
    process::run(script)
}

/// mdbook takes every link to a `.md` file for a page of the book. Links to other pages lead to
/// their files again.
fn link_pages_outside() -> Outcome {
    let book = cargo::root().join("book");
    for path in entries(&book)? {
        if path.extension().is_some_and(|end| end == "html") {
            let text = fs::read_to_string(&path).map_err(at(&path))?;
            let linked = with_pages_outside(&text, |name| {
                cargo::root().join(format!("{name}.md")).exists()
            });
            fs::write(&path, linked).map_err(at(&path))?;
        }
    }
    Ok(())
}

fn with_pages_outside(text: &str, is_page: impl Fn(&str) -> bool) -> String {
    const LINK: &str = "href=\"../";
    let mut parts = text.split(LINK);
    let mut linked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        linked.push_str(LINK);
        match part.split_once(".html") {
            Some((name, rest)) if is_page(name) => linked.push_str(&format!("{name}.md{rest}")),
            _ => linked.push_str(part),
        }
    }
    linked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_pages_outside_of_the_book_lead_to_their_files() {
        let text =
            r#"<a href="a.html"> <a href="../B.html#c"> <a href="../no.html"> <a href="../d.rs">"#;
        let linked = with_pages_outside(text, |name| name == "B");
        assert_eq!(linked, text.replace("B.html", "B.md"));
    }

    #[test]
    fn figures_of_pages_are_those_of_the_results() {
        for (file, text) in blocks::files(cargo::root()).unwrap() {
            let committed = fs::read_to_string(&file).unwrap_or_default();
            assert!(
                committed == text,
                "{} is out of date: run `cargo xtask book`",
                file.display()
            );
        }
    }

    #[test]
    fn the_page_of_keys_is_that_of_the_structs() {
        let committed = fs::read_to_string(cargo::root().join(KEYS_PAGE)).unwrap();
        assert!(
            committed == keys::page(cargo::root()).unwrap(),
            "{KEYS_PAGE} is out of date: run `cargo xtask book`"
        );
    }
}
