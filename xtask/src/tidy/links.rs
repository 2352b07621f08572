//! Rules about pages: their links lead to files and headings, and the book has all of them.
//!
//! In: every `.md` file. Out: broken links, and pages of `docs/` outside the book's contents.
//! Invariant: code and links into the web are not checked.

use std::path::{Component, Path, PathBuf};

use super::Finding;
use super::text::File;

const BOOK: &str = "docs/";
const CONTENTS: &str = "docs/SUMMARY.md";

/// Finds broken links of a page.
pub(super) fn broken_links(page: &File, files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, target) in links(page) {
        let mut add = |text: &str| {
            findings.push(Finding::at(index, format!("link to `{target}`: {text}")));
        };
        let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
        let folder = Path::new(&page.path).parent().unwrap_or(Path::new(""));
        let path = match path {
            "" => Some(PathBuf::from(&page.path)),
            path => joined(folder, path),
        };
        let exists = |path: &PathBuf| {
            files
                .iter()
                .any(|file| Path::new(&file.path).starts_with(path))
        };
        let Some(path) = path.filter(exists) else {
            add("no such file in the repository");
            continue;
        };
        let linked = files.iter().find(|other| Path::new(&other.path) == path);
        if let Some(other) = linked
            && !anchor.is_empty()
            && !anchors(other).iter().any(|found| found == anchor)
        {
            add(&format!("no heading in {} with this anchor", other.path));
        }
    }
    findings
}

/// Checks that the contents of the book link to a page of `docs/`.
pub(super) fn is_in_the_book(page: &File, files: &[File]) -> Vec<Finding> {
    let name = page.path.strip_prefix(BOOK);
    let name = name.filter(|name| page.path != CONTENTS && name.ends_with(".md"));
    let contents = files.iter().find(|page| page.path == CONTENTS);
    let links = contents.map(links).unwrap_or_default();
    let is_linked = |name: &str| links.iter().any(|(_, target)| target == name);
    let outside = name.filter(|name| !is_linked(name));
    let finding =
        outside.map(|_| Finding::at(0, format!("no chapter of {CONTENTS}: add it there")));
    finding.into_iter().collect()
}

/// Returns the targets of all links within the repository, with the index of their lines.
fn links(page: &File) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (number, line) in lines(page) {
        let prose: String = line.split('`').step_by(2).collect();
        for after in prose.split("](").skip(1) {
            let target = after.split([')', ' ']).next().unwrap_or_default();
            if !target.contains(':') {
                links.push((number - 1, target.to_owned()));
            }
        }
    }
    links
}

/// Returns the lines of a page outside of fenced code.
fn lines(page: &File) -> impl Iterator<Item = &(usize, String)> {
    let passages = page.passages.iter().filter(|_| page.path.ends_with(".md"));
    passages.flat_map(|passage| &passage.lines)
}

/// Returns the anchors that GitHub and mdBook make of a page's headings.
fn anchors(page: &File) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in lines(page) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || ['-', '_', ' '].contains(c);
        let anchor: String = heading.trim().to_lowercase().chars().filter(kept).collect();
        let anchor = anchor.replace(' ', "-");
        let earlier = anchors.iter().filter(|earlier| **earlier == anchor).count();
        anchors.push(match earlier {
            0 => anchor,
            number => format!("{anchor}-{number}"),
        });
    }
    anchors
}

/// Returns `path` as seen from `folder`, without `..`; none above the root.
fn joined(folder: &Path, path: &str) -> Option<PathBuf> {
    let mut joined = PathBuf::new();
    for component in folder.join(path).components() {
        match component {
            Component::ParentDir if !joined.pop() => return None,
            Component::ParentDir | Component::CurDir => {}
            component => joined.push(component),
        }
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_no_file_or_no_heading_is_found_and_others_are_not() {
        let pages = [
            File::new(
                "README.md",
                "[a](docs/a.md) [b](docs/b.md)\n\n```\n[c](no.md)\n```\n`[d](no.md)` [e](https://e.org/x#y)\n",
            ),
            File::new(
                "docs/a.md",
                "# A `b` c, d\n[x](#a-b-c-d) [y](#e)\n![p](figures/p.svg) [r](../README.md) [s](../src/s.rs)\n[t](../../README.md)\n",
            ),
            File::new("src/s.rs", ""),
        ];
        let found = |page| -> Vec<(usize, String)> {
            broken_links(page, &pages)
                .into_iter()
                .map(|finding| (finding.line, finding.message))
                .collect()
        };
        assert_eq!(
            found(&pages[0]),
            [(
                1,
                "link to `docs/b.md`: no such file in the repository".to_owned()
            )]
        );
        let of_a = found(&pages[1]);
        assert_eq!(
            of_a.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
            [2, 3, 4],
            "{of_a:?}"
        );
        assert!(
            of_a[0].1.contains("`#e`") && of_a[1].1.contains("figures/p.svg"),
            "{of_a:?}"
        );
    }

    #[test]
    fn a_page_that_is_no_chapter_is_found() {
        let pages = [
            File::new(CONTENTS, "- [a](a.md)\n"),
            File::new("docs/a.md", ""),
            File::new("docs/b/c.md", ""),
            File::new("x.md", ""),
        ];
        let is_found = |page| !is_in_the_book(page, &pages).is_empty();
        let found: Vec<&File> = pages.iter().filter(|page| is_found(page)).collect();
        assert_eq!((found.len(), &found[0].path[..]), (1, "docs/b/c.md"));
    }

    #[test]
    fn equal_headings_have_different_anchors() {
        assert_eq!(
            anchors(&File::new(
                "a.md",
                "# A\n## What, now?\n```\n# no\n```\n# A\n"
            )),
            ["a", "what-now", "a-1"]
        );
    }
}
