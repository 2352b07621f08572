//! `cargo xtask book`: the pages of the book that are made of the program, then the book itself.
//!
//! In: the trainer's flags, the structs of the files it writes. Out: `docs/reference/flags.md` and `keys.md`; with mdbook `book/`.
//! Invariant: what is committed is what this writes: tests compare both pages.

mod keys;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::at::at;
use crate::cargo::{self, Mpi};
use crate::probe::Found;
use cluster::failure::{Failure, Outcome};
use cluster::{probe, process};

/// Below the root.
const REFERENCE: &str = "docs/reference";
const KEYS_PAGE: &str = "docs/reference/keys.md";

/// Writes the pages and builds the book.
pub(crate) fn run() -> Outcome {
    fs::write(cargo::root().join(KEYS_PAGE), keys::page(cargo::root())?)
        .map_err(|error| Failure::Failed(format!("{KEYS_PAGE}: {error}")))?;
    let mut flags = Command::new(cargo::trainer(Mpi::of(&Found::look()), "dev")?);
    flags
        .args(["man", "--markdown", REFERENCE])
        .current_dir(cargo::root());
    process::run(flags)?;
    let Some(mdbook) = probe::program("mdbook") else {
        println!(
            "the book itself was not built: there is no mdbook; `cargo install mdbook --locked` brings it"
        );
        return Ok(());
    };
    let mut build = Command::new(mdbook);
    build.arg("build").current_dir(cargo::root());
    process::run(build)?;
    link_pages_outside(&cargo::root().join("book"))
}

/// mdbook takes every link to a `.md` file for one to a page of the book; those to pages beside it lead to the files again.
fn link_pages_outside(book: &Path) -> Outcome {
    for entry in fs::read_dir(book).map_err(at(book))? {
        let path = entry.map_err(at(book))?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            let text = fs::read_to_string(&path).map_err(at(&path))?;
            let linked = with_pages_outside(&text, |file| book.join(file).exists());
            fs::write(&path, linked).map_err(at(&path))?;
        }
    }
    Ok(())
}

fn with_pages_outside(text: &str, exists: impl Fn(&str) -> bool) -> String {
    const LINK: &str = "href=\"../";
    let mut linked = String::new();
    for (place, part) in text.split(LINK).enumerate() {
        if place > 0 {
            linked.push_str(LINK);
        }
        match part
            .split_once(".html")
            .filter(|(file, _)| place > 0 && exists(&format!("../{file}.md")))
        {
            Some((file, rest)) => linked.push_str(&format!("{file}.md{rest}")),
            None => linked.push_str(part),
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
        let linked = with_pages_outside(text, |file| file == "../B.md");
        assert_eq!(linked, text.replace("B.html", "B.md"));
    }

    #[test]
    fn the_page_of_keys_is_that_of_the_structs() {
        let committed = fs::read_to_string(cargo::root().join(KEYS_PAGE)).unwrap();
        assert!(
            committed == keys::page(cargo::root()).unwrap(),
            "{KEYS_PAGE} is of other structs: run `cargo xtask book`"
        );
    }
}
