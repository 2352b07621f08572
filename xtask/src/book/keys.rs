//! The page of every key, out of the structs by which files are written and their comments.
//!
//! In: sources. Out: Markdown, a table for each struct that is serialized, a list for each enum.
//! Invariant: a type that is not serialized, or stands among tests, is not told; no key is told but as its source has it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::at::at;
use cluster::failure::Outcome;

const HEAD: &str = "# Every key of every file

`cargo xtask book` writes this page from the structs by which the program writes its files; [files](files.md) says which file lies
where. What is not known is `null`, or left out. Seconds, bytes and shares from 0 to 1, unless the key or its line says otherwise.
";

/// What is written, and the sources of its structs; the other sources of `records` follow.
const FILES: [(&str, &[&str]); 13] = [
    (
        "A run: manifest.json, metrics.jsonl",
        &["lab/records/src/run.rs"],
    ),
    (
        "The end of a run: summary.json",
        &["lab/records/src/summary.rs"],
    ),
    (
        "An evaluation: evaluation.json, eval --json",
        &["lab/records/src/evaluation.rs"],
    ),
    (
        "A checkpoint: state.json",
        &[
            "trainer/src/run/checkpoint/state.rs",
            "trainer/src/measure/metrics/mod.rs",
            "trainer/src/step/loss_scale.rs",
        ],
    ),
    (
        "A measured step: bench --json",
        &["lab/records/src/bench.rs"],
    ),
    ("A trace: --trace", &["lab/records/src/trace.rs"]),
    (
        "A step to predict from: bench --profile-output",
        &["lab/records/src/profile.rs"],
    ),
    (
        "A network: netbench --output",
        &["lab/records/src/network.rs"],
    ),
    (
        "A prediction: predict-scaling --output",
        &["lab/records/src/prediction.rs"],
    ),
    (
        "A study: study.json, records.jsonl",
        &["lab/records/src/study.rs"],
    ),
    (
        "A comparison: comparison.json, rank-0.json",
        &["lab/records/src/comparison.rs"],
    ),
    (
        "A quantity measured several times",
        &["lab/records/src/estimate.rs"],
    ),
    (
        "A job for other programs: job.json",
        &["lab/records/src/job.rs"],
    ),
];

/// A struct or an enum.
struct Type {
    name: String,
    about: String,
    is_enum: bool,
    /// Name, type (empty in an enum) and comment.
    keys: Vec<(String, String, String)>,
}

/// The whole page.
pub(super) fn page(root: &Path) -> Outcome<String> {
    let mut files = Vec::new();
    for (title, sources) in FILES {
        let mut types = Vec::new();
        for source in sources {
            types.extend(serialized(&read(&root.join(source))?));
        }
        files.push((title.to_owned(), types));
    }
    for path in others(root)? {
        let text = read(&path)?;
        let title = text
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("//! ")
            .trim_end_matches('.');
        files.push((title.replace('`', ""), serialized(&text)));
    }
    files.retain(|(_, types)| !types.is_empty());
    let names: Vec<String> = files
        .iter()
        .flat_map(|(_, types)| types)
        .map(|told| told.name.clone())
        .collect();
    let mut page = HEAD.to_owned();
    for (title, types) in &files {
        page.push_str(&format!("\n## {title}\n"));
        types
            .iter()
            .for_each(|told| page.push_str(&section(told, &names)));
    }
    Ok(page)
}

/// The sources of `records` that [`FILES`] does not name, in order.
fn others(root: &Path) -> Outcome<Vec<PathBuf>> {
    let folder = root.join("lab/records/src");
    let mut paths = Vec::new();
    for entry in fs::read_dir(&folder).map_err(at(&folder))? {
        let path = entry.map_err(at(&folder))?.path();
        if !FILES
            .iter()
            .flat_map(|(_, sources)| *sources)
            .any(|source| root.join(source) == path)
        {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(at(path))
}

fn section(told: &Type, names: &[String]) -> String {
    let Type {
        name,
        about,
        is_enum,
        keys,
    } = told;
    let columns = if *is_enum {
        "| value | means |\n|---|---|"
    } else {
        "| key | holds | means |\n|---|---|---|"
    };
    let mut section = format!("\n### {name}\n\n{about}\n\n{columns}\n");
    for (key, holds, about) in keys {
        let about = about.replace('|', "\\|");
        section.push_str(&match is_enum {
            true => format!("| `{key}` | {about} |\n"),
            false => format!("| `{key}` | {} | {about} |\n", in_json(holds, names)),
        });
    }
    section
}

/// What JSON holds where Rust has this type.
fn in_json(holds: &str, names: &[String]) -> String {
    let inside = |start: &str, end: &str| {
        holds
            .strip_prefix(start)
            .and_then(|rest| rest.strip_suffix(end))
    };
    if let Some(inner) = inside("Option<", ">") {
        return format!("{} or null", in_json(inner, names));
    }
    if let Some(inner) = inside("Vec<", ">") {
        return format!("list: {}", in_json(inner, names));
    }
    if let Some((inner, length)) = inside("[", "]").and_then(|inner| inner.split_once("; ")) {
        return format!("list of {length}: {}", in_json(inner, names));
    }
    if let Some((_, inner)) = inside("BTreeMap<", ">")
        .or(inside("Map<", ">"))
        .and_then(|inner| inner.split_once(", "))
    {
        return format!("by name: {}", in_json(inner, names));
    }
    match holds {
        "f32" | "f64" => "number".to_owned(),
        "u32" | "u64" | "usize" | "i64" => "whole number".to_owned(),
        "String" => "text".to_owned(),
        "bool" => "true or false".to_owned(),
        "Value" | "serde_json::Value" => "anything".to_owned(),
        name if names.iter().any(|known| known == name) => {
            format!("[{name}](#{})", name.to_lowercase())
        }
        name => name.to_owned(),
    }
}

/// The types of a source that serde writes.
fn serialized(text: &str) -> Vec<Type> {
    let mut types: Vec<Type> = Vec::new();
    let (mut comment, mut attributes) = (Vec::new(), String::new());
    let (mut is_open, mut casing) = (false, String::new());
    for line in text.lines().take_while(|line| *line != "#[cfg(test)]") {
        let trimmed = line.trim();
        if let Some(words) = trimmed.strip_prefix("///") {
            comment.push(words.trim().to_owned());
        } else if trimmed.starts_with("#[") {
            attributes.push_str(trimmed);
        } else {
            let code = trimmed.trim_start_matches("pub ");
            let about = resolved(&std::mem::take(&mut comment).join(" "), text);
            let attributes = std::mem::take(&mut attributes);
            let declared = code.strip_prefix("struct ").or(code.strip_prefix("enum "));
            if line == "}" {
                is_open = false;
            } else if let Some(name) = declared
                .filter(|_| attributes.contains("Serialize"))
                .and_then(name_of_type)
            {
                casing = quoted_after(&attributes, "rename_all = ").unwrap_or_default();
                is_open = true;
                types.push(Type {
                    name,
                    about,
                    is_enum: code.starts_with("enum "),
                    keys: Vec::new(),
                });
            } else if let Some(told) = types.last_mut().filter(|_| is_open)
                && let Some(key) = code.strip_suffix(',')
            {
                let (key, holds) = key.split_once(": ").unwrap_or((key, ""));
                let key = match attributes.contains("flatten") {
                    true => "…".to_owned(),
                    false => quoted_after(&attributes, "rename = ")
                        .unwrap_or_else(|| cased(key, &casing)),
                };
                told.keys.push((key, holds.to_owned(), about));
            }
        }
    }
    types
}

fn name_of_type(declared: &str) -> Option<String> {
    declared.strip_suffix(" {").map(str::to_owned)
}

fn quoted_after(attributes: &str, start: &str) -> Option<String> {
    let (_, after) = attributes.split_once(start)?;
    after.split('"').nth(1).map(str::to_owned)
}

/// A name as serde's `rename_all` writes it.
fn cased(name: &str, casing: &str) -> String {
    match casing {
        "lowercase" => name.to_lowercase(),
        "kebab-case" => {
            let parts = name.char_indices().map(|(at, c)| {
                let dash = if at > 0 && c.is_uppercase() { "-" } else { "" };
                format!("{dash}{}", c.to_lowercase())
            });
            parts.collect()
        }
        _ => name.to_owned(),
    }
}

/// A comment whose links to constants are their values, and whose links to types are the types' names.
fn resolved(comment: &str, text: &str) -> String {
    let mut resolved = String::new();
    for (place, part) in comment.split("[`").enumerate() {
        let Some((name, rest)) = part.split_once("`]").filter(|_| place > 0) else {
            resolved.push_str(part);
            continue;
        };
        let name = name.rsplit("::").next().unwrap_or(name);
        let value = quoted_after(text, &format!("const {name}: &str = "))
            .unwrap_or_else(|| name.to_owned());
        resolved.push_str(&format!("`{value}`{rest}"));
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
/// Said of itself.
pub const A_SCHEMA: &str = \"a/1\";
/// Not written.
#[derive(Debug)]
pub struct Hidden {
    /// Nothing.
    pub key: u64,
}
/// A file.
#[derive(Debug, Serialize)]
pub struct File {
    /// [`A_SCHEMA`].
    pub schema: String,
    /// How it
    /// ended.
    #[serde(rename = \"end\")]
    pub status: Option<HowEnded>,
    pub numbers: BTreeMap<String, [f64; 2]>,
}
impl File {
    /// No key.
    pub fn new() -> Self { Self { schema: 1, } }
}
/// An end.
#[derive(Serialize)]
#[serde(rename_all = \"kebab-case\")]
pub enum HowEnded {
    /// Well.
    AllWell,
}
";

    #[test]
    fn keys_are_told_as_serde_writes_them_and_nothing_else() {
        let types = serialized(SOURCE);
        let names: Vec<String> = types.iter().map(|told| told.name.clone()).collect();
        assert_eq!(names, ["File", "HowEnded"]);
        let file = section(&types[0], &names);
        assert!(
            file.contains("| `schema` | text | `a/1`. |\n| `end` | [HowEnded](#howended) or null | How it ended. |\n"),
            "{file}"
        );
        assert!(
            file.ends_with("| `numbers` | by name: list of 2: number |  |\n"),
            "{file}"
        );
        assert!(section(&types[1], &names).ends_with("| `all-well` | Well. |\n"));
    }
}
