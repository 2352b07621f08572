//! The page of all keys, made from the structs of the files and their comments.
//!
//! In: sources. Out: Markdown with a table for each serialized struct or enum.
//! Invariant: the page omits types of tests and types that are not serialized.

use std::fs;
use std::path::Path;

use cluster::failure::Outcome;

use crate::{at, entries};

const HEAD: &str = "# Keys of all files

`cargo xtask book` writes this page from the structs of the files. [Files](files.md) names the place
of each file. An unknown value is `null` or absent. Unless a row has another unit, times are in
seconds, sizes in bytes, and shares from 0 to 1.
";

/// Sources of the files that other programs read. The first line of each is its title.
const RECORDS: &str = "lab/records/src";
const CHECKPOINT: [&str; 5] = [
    "trainer/src/run/checkpoint/state.rs",
    "trainer/src/task/input.rs",
    "trainer/src/measure/metrics.rs",
    "trainer/src/model/schedule.rs",
    "trainer/src/step/loss_scale.rs",
];

/// A struct or an enum.
struct Type {
    name: String,
    about: String,
    is_enum: bool,
    keys: Vec<Key>,
}

/// A field, or a variant without a type.
struct Key {
    name: String,
    holds: String,
    about: String,
}

/// Returns the whole page.
pub(super) fn page(root: &Path) -> Outcome<String> {
    let mut paths = entries(&root.join(RECORDS))?;
    paths.retain(|path| path.is_file());
    let mut sections = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(at(&path))?;
        let title = text.lines().next().unwrap_or_default();
        let title = title.trim_start_matches("//! ").trim_end_matches('.');
        sections.push((title.replace('`', ""), serialized(&text)));
    }
    let mut of_checkpoint: Vec<Type> = Vec::new();
    for path in CHECKPOINT.map(|source| root.join(source)) {
        let text = fs::read_to_string(&path).map_err(at(&path))?;
        let mut types = serialized(&text);
        // A later file has also types of other files.
        let keys = of_checkpoint.iter().flat_map(|found| &found.keys);
        let held: String = keys.map(|key| key.holds.as_str()).collect();
        types.retain(|found| held.is_empty() || held.contains(&found.name));
        of_checkpoint.extend(types);
    }
    sections.push(("A checkpoint: state.json".to_owned(), of_checkpoint));
    let types = sections.iter().flat_map(|(_, types)| types);
    let names: Vec<String> = types.map(|found| found.name.clone()).collect();
    let mut page = HEAD.to_owned();
    for (title, types) in sections {
        if !types.is_empty() {
            page.push_str(&format!("\n## {title}\n"));
        }
        page.extend(types.iter().map(|found| section(found, &names)));
    }
    Ok(page)
}

fn section(found: &Type, names: &[String]) -> String {
    let columns = match found.is_enum {
        true => "| value | meaning |\n|---|---|",
        false => "| key | type | meaning |\n|---|---|---|",
    };
    let mut section = format!("\n### {}\n\n{}\n\n{columns}\n", found.name, found.about);
    for Key { name, holds, about } in &found.keys {
        let about = about.replace('|', "\\|");
        section.push_str(&match found.is_enum {
            true => format!("| `{name}` | {about} |\n"),
            false => format!("| `{name}` | {} | {about} |\n", in_json(holds, names)),
        });
    }
    section
}

/// Returns the JSON type for a type of Rust.
fn in_json(holds: &str, names: &[String]) -> String {
    let generic = holds
        .strip_suffix('>')
        .and_then(|rest| rest.split_once('<'));
    match generic {
        Some(("Option", inner)) => return format!("{} or null", in_json(inner, names)),
        Some(("Vec", inner)) => return format!("list: {}", in_json(inner, names)),
        Some(("BTreeMap" | "Map", inner)) => {
            let value = inner.split_once(", ").map_or(inner, |(_, value)| value);
            return format!("by name: {}", in_json(value, names));
        }
        _ => {}
    }
    let array = holds
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    if let Some((inner, length)) = array.and_then(|inner| inner.split_once("; ")) {
        return format!("list of {length}: {}", in_json(inner, names));
    }
    let name = match holds {
        "f32" | "f64" => "number",
        "u32" | "u64" | "usize" | "i64" => "whole number",
        "String" => "text",
        "bool" => "true or false",
        "Value" | "serde_json::Value" => "any value",
        name if names.iter().any(|known| known == name) => {
            return format!("[{name}](#{})", name.to_lowercase());
        }
        name => name,
    };
    name.to_owned()
}

/// Returns the types of a source that serde writes.
fn serialized(text: &str) -> Vec<Type> {
    let mut types: Vec<Type> = Vec::new();
    let mut comment = Vec::new();
    let mut attributes = String::new();
    let mut casing = String::new();
    let mut is_open = false;
    let mut is_attribute = false;
    for line in text.lines().take_while(|line| *line != "#[cfg(test)]") {
        let trimmed = line.trim();
        if let Some(words) = trimmed.strip_prefix("///") {
            comment.push(words.trim());
            continue;
        }
        if is_attribute || trimmed.starts_with("#[") {
            attributes.push_str(trimmed);
            is_attribute = !trimmed.ends_with(']');
            continue;
        }
        let code = trimmed.trim_start_matches("pub ");
        // A section of the comment, such as `# Errors`, is not for this page.
        let lines = comment.split(|line: &&str| line.starts_with("# ")).next();
        let about = resolved(lines.unwrap_or_default().join("\n").trim_end(), text);
        let declared = code.strip_prefix("struct ").or(code.strip_prefix("enum "));
        let declared = declared.and_then(|name| name.strip_suffix(" {"));
        if line == "}" {
            is_open = false;
        } else if let Some(name) = declared
            && attributes.contains("Serialize")
        {
            casing = quoted_after(&attributes, "rename_all = ").unwrap_or_default();
            is_open = true;
            types.push(Type {
                name: name.to_owned(),
                about,
                is_enum: code.starts_with("enum "),
                keys: Vec::new(),
            });
        } else if let Some(found) = types.last_mut()
            && is_open
            && let Some(key) = code.strip_suffix(',')
        {
            let (key, holds) = key.split_once(": ").unwrap_or((key, ""));
            let renamed = quoted_after(&attributes, "rename = ");
            let name = match attributes.contains("flatten") {
                true => "…".to_owned(),
                false => renamed.unwrap_or_else(|| cased(key, &casing)),
            };
            let holds = holds.to_owned();
            let about = about.replace('\n', " ");
            found.keys.push(Key { name, holds, about });
        }
        comment.clear();
        attributes.clear();
    }
    types
}

fn quoted_after(text: &str, start: &str) -> Option<String> {
    let (_, after) = text.split_once(start)?;
    after.split('"').nth(1).map(str::to_owned)
}

/// Returns a name as serde's `rename_all` writes it.
fn cased(name: &str, casing: &str) -> String {
    let mut cased = String::new();
    for c in name.chars() {
        if casing == "kebab-case" && c.is_uppercase() && !cased.is_empty() {
            cased.push('-');
        }
        match casing {
            "" => cased.push(c),
            _ => cased.extend(c.to_lowercase()),
        }
    }
    cased
}

/// Replaces links to constants by their values, and links to types by their names.
fn resolved(comment: &str, text: &str) -> String {
    let mut parts = comment.split("[`");
    let mut resolved = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (path, rest) = part.split_once("`]").unwrap_or((part, ""));
        let name = path.rsplit("::").next().unwrap_or(path);
        let value = quoted_after(text, &format!("const {name}: &str = "));
        resolved.push_str(&format!("`{}`{rest}", value.as_deref().unwrap_or(name)));
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
    fn the_page_has_the_keys_that_serde_writes_and_nothing_else() {
        let types = serialized(SOURCE);
        let names: Vec<String> = types.iter().map(|found| found.name.clone()).collect();
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
