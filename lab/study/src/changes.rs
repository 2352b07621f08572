//! Changes of a study file from the command line.
//!
//! In: the text of `--set`. Out: keys and values in the file's table.
//! Invariant: a key is changed wherever the file has it; other keys become flags of all cells.

use toml::{Table, Value};

use cluster::failure::{Outcome, usage};

/// Keys of the file itself.
const OF_THE_FILE: [&str; 9] = [
    "name",
    "title",
    "about",
    "repetitions",
    "attempts",
    "quiet_cores",
    "quiet_patience_s",
    "limit_s",
    "target_accuracy",
];

/// Sets the value wherever the key stands, otherwise among the flags of all cells.
pub(crate) fn apply(table: &mut Table, key: &str, value: &Value) {
    let is_key = |candidate: &str| candidate.replace('-', "_") == key.replace('-', "_");
    let place = |table: &mut Table| -> bool {
        let found = table.keys().find(|candidate| is_key(candidate)).cloned();
        found.is_some_and(|found| table.insert(found, value.clone()).is_some())
    };
    if OF_THE_FILE.iter().any(|own| is_key(own)) {
        table.insert(key.replace('-', "_"), value.clone());
        // A matrix may have its own repetitions.
        for matrix in matrices(table) {
            place(matrix);
        }
        return;
    }
    let mut has_placed = false;
    for name in ["base", "bench", "train", "netbench", "slurm"] {
        let below = table.get_mut(name).and_then(Value::as_table_mut);
        has_placed |= below.is_some_and(place);
    }
    matrices(table).for_each(|matrix| has_placed |= place(matrix));
    let shared = table
        .entry("base")
        .or_insert_with(|| Value::Table(Table::new()));
    if let Value::Table(shared) = shared
        && !has_placed
    {
        shared.insert(key.to_owned(), value.clone());
    }
}

/// Returns each `[[matrix]]`.
fn matrices(table: &mut Table) -> impl Iterator<Item = &mut Table> {
    let all = table.get_mut("matrix").and_then(Value::as_array_mut);
    all.into_iter().flatten().filter_map(Value::as_table_mut)
}

/// Reads `key=value,key=value`. A value that is not TOML is a text; commas in brackets or quotes do
/// not separate.
pub(crate) fn read(text: Option<&str>) -> Outcome<Table> {
    let mut table = Table::new();
    for pair in text.map(separated).unwrap_or_default() {
        let (key, value) = pair.split_once('=').filter(|(key, _)| !key.trim().is_empty()).ok_or_else(|| {
            usage!("--set: expected KEY=VALUE, several by commas, got `{pair}`: write --set steps=5")
        })?;
        let read: Option<Value> = format!("value = {value}")
            .parse::<Table>()
            .ok()
            .and_then(|mut table| table.remove("value"));
        let value = read.unwrap_or_else(|| Value::String(value.to_owned()));
        if table.insert(key.trim().to_owned(), value).is_some() {
            return Err(usage!("--set: {key} is given twice: keep one"));
        }
    }
    Ok(table)
}

fn separated(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    let mut is_quoted = false;
    for c in text.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            '[' | '{' if !is_quoted => depth += 1,
            ']' | '}' if !is_quoted => depth -= 1,
            _ => {}
        }
        if c == ',' && depth == 0 && !is_quoted {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_with_lists_and_bare_words() {
        let table = read(Some("data_dir=/d/x,ranks=[1,2],rate=0.1,title=\"a, b\"")).unwrap();
        assert_eq!(table["data_dir"].as_str(), Some("/d/x"));
        assert_eq!(table["ranks"].as_array().map(Vec::len), Some(2));
        assert_eq!(
            (table["rate"].as_float(), table["title"].as_str()),
            (Some(0.1), Some("a, b"))
        );
        assert_eq!(read(Some("steps")).unwrap_err().exit_code(), 2);
        assert!(
            read(Some("a=1,a=2"))
                .unwrap_err()
                .to_string()
                .contains("given twice")
        );
        assert!(read(None).unwrap().is_empty());
    }
}
