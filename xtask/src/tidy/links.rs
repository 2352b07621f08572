//! Rules about pages: their links lead to files and headings, and the book has all of them.
//!
//! In: every `.md` file. Out: broken links, and pages of `docs/` outside the book's contents.
//! Invariant: code and links into the web are not checked.

use std::path::{Component, Path, PathBuf};

use super::{File, Finding};

const BOOK: &str = "docs/";
const CONTENTS: &str = "docs/SUMMARY.md";

/// Returns the broken links of a page; other files have none.
pub(super) fn broken_links(page: &File, files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !page.path.ends_with(".md") {
        return findings;
    }
    let exists = |path: &Path| {
        files
            .iter()
            .any(|file| Path::new(&file.path).starts_with(path))
    };
    for (index, target) in links(&page.text) {
        let mut add = |text: &str| {
            findings.push(Finding::at(index, format!("link to `{target}`: {text}")));
        };
        let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
        let path = match path {
            "" => Some(PathBuf::from(&page.path)),
            path => joined(
                Path::new(&page.path).parent().unwrap_or(Path::new("")),
                path,
            ),
        };
        let Some(path) = path.filter(|path| exists(path)) else {
            add("no such file in the repository");
            continue;
        };
        let linked = files.iter().find(|other| Path::new(&other.path) == path);
        if let Some(other) = linked
            && !anchor.is_empty()
            && !anchors(&other.text).iter().any(|found| found == anchor)
        {
            add(&format!("no heading in {} with this anchor", other.path));
        }
    }
    findings
}

/// Returns the pages of `docs/` that the contents do not link to.
pub(super) fn pages_outside_the_book(files: &[File]) -> Vec<&str> {
    let contents = files.iter().find(|page| page.path == CONTENTS);
    let links = contents.map(|page| links(&page.text)).unwrap_or_default();
    let is_outside = |path: &&str| {
        let name = path.strip_prefix(BOOK);
        let is_page = *path != CONTENTS && name.is_some() && path.ends_with(".md");
        is_page
            && !links
                .iter()
                .any(|(_, target)| Some(target.as_str()) == name)
    };
    let paths = files.iter().map(|page| page.path.as_str());
    paths.filter(is_outside).collect()
}

/// Returns the targets of all links within the repository, with the index of their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (index, line) in prose(text) {
        let prose: String = line.split('`').step_by(2).collect();
        for after in prose.split("](").skip(1) {
            let target = after.split([')', ' ']).next().unwrap_or_default();
            if !target.contains(':') {
                links.push((index, target.to_owned()));
            }
        }
    }
    links
}

/// Returns the lines outside of fenced code.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// Returns the anchors that GitHub and mdBook make of a page's headings.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    for (_, line) in prose(text) {
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

    fn page(path: &str, text: &str) -> File {
        File {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_link_to_no_file_or_no_heading_is_found_and_others_are_not() {
        let pages = [
            page(
                "README.md",
                "[a](docs/a.md) [b](docs/b.md)\n\n```\n[c](no.md)\n```\n`[d](no.md)` [e](https://e.org/x#y)\n",
            ),
            page(
                "docs/a.md",
                "# A `b` c, d\n[x](#a-b-c-d) [y](#e)\n![p](figures/p.svg) [r](../README.md) [s](../src/s.rs)\n[t](../../README.md)\n",
            ),
            page("src/s.rs", ""),
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
            page(CONTENTS, "- [a](a.md)\n"),
            page("docs/a.md", ""),
            page("docs/b/c.md", ""),
            page("x.md", ""),
        ];
        assert_eq!(pages_outside_the_book(&pages), ["docs/b/c.md"]);
    }

    #[test]
    fn equal_headings_have_different_anchors() {
        assert_eq!(
            anchors("# A\n## What, now?\n```\n# no\n```\n# A\n"),
            ["a", "what-now", "a-1"]
        );
    }
}
