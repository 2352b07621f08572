//! Rules about the pages: what they link to is there, and the book has them all.
//!
//! In: every `.md` file. Out: links to no file or to no heading, pages of `docs/` that the book's contents leave out.
//! Invariant: addresses in the web are not looked at, and code is no link.

use std::path::{Component, Path, PathBuf};

use super::Finding;

/// The book's pages, and which of them is its contents.
const BOOK: &str = "docs/";
const CONTENTS: &str = "docs/SUMMARY.md";

/// A page, by its path below the root.
pub(super) struct Page {
    pub(super) path: String,
    pub(super) text: String,
}

/// The broken links of a page among `pages`; `exists` knows all files and folders.
pub(super) fn broken_links(
    page: &Page,
    pages: &[Page],
    exists: impl Fn(&Path) -> bool,
) -> Vec<Finding> {
    let folder = Path::new(&page.path).parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    for (line, target) in links(&page.text) {
        let (path, anchor) = target
            .split_once('#')
            .map_or((target.as_str(), None), |(path, anchor)| {
                (path, Some(anchor))
            });
        let path = if path.is_empty() {
            Some(PathBuf::from(&page.path))
        } else {
            joined(folder, path)
        };
        let Some(path) = path.filter(|path| exists(path)) else {
            findings.push(Finding {
                line,
                message: format!("link to `{target}`: no such file is kept in the repository"),
            });
            continue;
        };
        let linked = pages.iter().find(|other| Path::new(&other.path) == path);
        let message = match (linked, anchor) {
            (Some(other), Some(anchor))
                if !anchors(&other.text).iter().any(|found| found == anchor) =>
            {
                format!(
                    "link to `{target}`: no heading of {} has the anchor `{anchor}`",
                    other.path
                )
            }
            _ => continue,
        };
        findings.push(Finding { line, message });
    }
    findings
}

/// The pages of `docs/` that the contents do not link to.
pub(super) fn pages_outside_the_book(pages: &[Page]) -> Vec<(&str, Finding)> {
    let contents = pages
        .iter()
        .find(|page| page.path == CONTENTS)
        .map(|page| links(&page.text))
        .unwrap_or_default();
    let is_in = |path: &str| {
        contents
            .iter()
            .any(|(_, target)| path.strip_prefix(BOOK) == Some(target.as_str()))
    };
    let of_book = pages
        .iter()
        .filter(|page| page.path.starts_with(BOOK) && page.path != CONTENTS);
    of_book
        .filter(|page| !is_in(&page.path))
        .map(|page| {
            (
                page.path.as_str(),
                Finding {
                    line: 1,
                    message: format!("no chapter of {CONTENTS}: add it there"),
                },
            )
        })
        .collect()
}

/// The targets of all links within the repository, with their lines from 1.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut links = Vec::new();
    for (line, prose) in prose(text) {
        for (_, after) in prose
            .match_indices("](")
            .map(|(at, opening)| prose.split_at(at + opening.len()))
        {
            let target = after.split([')', ' ']).next().unwrap_or_default();
            if !target.contains(':') {
                links.push((line, target.to_owned()));
            }
        }
    }
    links
}

/// The lines outside of fenced code, from 1, without code spans.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_code && !is_fence).then(|| (index + 1, line.split('`').step_by(2).collect()))
    })
}

/// The anchors that GitHub and mdBook make of a page's headings.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if is_code || heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let kept = |c: &char| c.is_alphanumeric() || ['-', '_', ' '].contains(c);
        let anchor: String = heading.trim().to_lowercase().chars().filter(kept).collect();
        let anchor = anchor.replace(' ', "-");
        let earlier = anchors.iter().filter(|earlier| **earlier == anchor).count();
        anchors.push(if earlier == 0 {
            anchor
        } else {
            format!("{anchor}-{earlier}")
        });
    }
    anchors
}

/// `path` as seen from `folder`, without `..`; none above the root.
fn joined(folder: &Path, path: &str) -> Option<PathBuf> {
    let mut joined = PathBuf::new();
    for component in folder.join(path).components() {
        match component {
            Component::ParentDir => {
                if !joined.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            component => joined.push(component),
        }
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(path: &str, text: &str) -> Page {
        Page {
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
        ];
        let exists = |path: &Path| {
            ["README.md", "docs/a.md", "src/s.rs"]
                .iter()
                .any(|file| path == Path::new(file))
        };
        let found = |page| -> Vec<(usize, String)> {
            broken_links(page, &pages, exists)
                .into_iter()
                .map(|finding| (finding.line, finding.message))
                .collect()
        };
        assert_eq!(
            found(&pages[0]),
            [(
                1,
                "link to `docs/b.md`: no such file is kept in the repository".to_owned()
            )]
        );
        let of_a = found(&pages[1]);
        assert_eq!(
            of_a.iter().map(|(line, _)| *line).collect::<Vec<_>>(),
            [2, 3, 4],
            "{of_a:?}"
        );
        assert!(
            of_a[0].1.contains("`e`") && of_a[1].1.contains("figures/p.svg"),
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
        let outside: Vec<&str> = pages_outside_the_book(&pages)
            .iter()
            .map(|(path, _)| *path)
            .collect();
        assert_eq!(outside, ["docs/b/c.md"]);
    }

    #[test]
    fn equal_headings_have_different_anchors() {
        assert_eq!(
            anchors("# A\n## What, now?\n```\n# no\n```\n# A\n"),
            ["a", "what-now", "a-1"]
        );
    }
}
