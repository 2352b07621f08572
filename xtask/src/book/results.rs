//! Figures of pages, made from `docs/results`.
//!
//! In: `bench.csv`, the records of studies, tables as CSV. Out: `steps.csv`, the text of a block.
//! Invariant: a ratio of two programs compares their runs of one source only.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cluster::failure::{Outcome, failed};
use cluster::json;
use serde_json::Value;

use super::table::{Filter, Table, grouped};
use crate::at;

pub(super) const RESULTS: &str = "docs/results";
const TYPED: &str = "bench.csv";
pub(super) const STEPS: &str = "steps.csv";

/// Columns that two runs must share to be compared.
const KEYS: [&str; 8] = [
    "model",
    "pixels",
    "batch",
    "ranks",
    "link",
    "machine",
    "precision",
    "source",
];
const LOCKSTEP: &str = "Lockstep";

/// Returns one row for each program and setting: those of `bench.csv`, then those of studies.
pub(super) fn steps(root: &Path) -> Outcome<Table> {
    let folder = root.join(RESULTS);
    let mut table = Table::read(&folder.join(TYPED))?;
    for study in files_named(&folder, "study.json")? {
        table.rows.extend(of_study(&folder, &study, &table.head)?);
    }
    Ok(table)
}

fn files_named(folder: &Path, name: &str) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(at(folder))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_named(&path, name)?);
        } else if path.ends_with(name) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Results of a cell's rounds.
#[derive(Default)]
struct Rounds {
    images_per_second: Vec<f64>,
    mib: Vec<f64>,
}

fn of_study(folder: &Path, study: &Path, head: &[String]) -> Outcome<Vec<Vec<String>>> {
    let records = study.with_file_name("records.jsonl");
    let text = fs::read_to_string(&records).map_err(at(&records))?;
    let mut rounds: BTreeMap<String, Rounds> = BTreeMap::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).map_err(at(&records))?;
        let result = &record["result"];
        if let Some(speed) = result["images_per_second"].as_f64() {
            let cell = rounds.entry(word(&record["cell"])).or_default();
            cell.images_per_second.push(speed);
            let bytes = result["peak_memory_bytes"].as_f64();
            cell.mib
                .extend(bytes.map(|bytes| bytes / f64::from(1 << 20)));
        }
    }
    let plan: Value = json::read(study)?;
    let source = study.parent().unwrap_or(folder);
    let source = source
        .strip_prefix(folder)
        .unwrap_or(source)
        .display()
        .to_string();
    let (date, machine) = source.split_at(source.len().min("2026-11-24".len()));
    let machine = machine
        .trim_start_matches('-')
        .split('/')
        .next()
        .unwrap_or_default();
    let cells = plan["cells"].as_array().into_iter().flatten();
    let mut rows: Vec<Vec<String>> = Vec::new();
    for cell in cells {
        let settings = &cell["settings"];
        let Some(program) = program(cell) else {
            continue;
        };
        let Some(found) = rounds.get(&word(&cell["id"])) else {
            continue;
        };
        let link = word(&settings["network"]);
        let value = |column: &String| match column.as_str() {
            "model" => word(&settings["model"]),
            "pixels" => "32".to_owned(),
            "batch" => word(&settings["batch_size_per_rank"]),
            "ranks" => word(&settings["ranks"]),
            "link" if link != "machine" => link.clone(),
            "machine" => machine.to_owned(),
            "precision" => word(&settings["dtype"]),
            "program" => program.to_owned(),
            "settings" => chosen(&cell["setting"]),
            "images/s" => joined(&found.images_per_second),
            "MiB" => format!("{:.0}", median(&found.mib)),
            "date" => date.to_owned(),
            "commit" => word(&plan["commit"]).chars().take(7).collect(),
            "source" => source.clone(),
            _ => String::new(),
        };
        rows.push(head.iter().map(value).collect());
    }
    rows.sort();
    let is_compared = rows
        .iter()
        .any(|row| row.iter().any(|cell| cell == LOCKSTEP));
    Ok(if is_compared {
        merged(rows, head)
    } else {
        Vec::new()
    })
}

/// Returns the program of a cell; none for a trial of a setting, unless the setting is the default.
fn program(cell: &Value) -> Option<&'static str> {
    let framework = cell["settings"]["framework"].as_str()?;
    let is_trial = !cell["tried"].is_null();
    if is_trial {
        let is_default = cell["setting"].is_null() && cell["settings"]["ranks"] == 1;
        return (framework == "pytorch" && is_default).then_some("PyTorch default");
    }
    if cell["kind"] != "bench" || cell["repetitions"] == 1 {
        return None;
    }
    match framework {
        "lockstep" => Some(LOCKSTEP),
        "pytorch" => Some("PyTorch best"),
        "horovod" => Some("Horovod"),
        "tensorflow" => Some("TensorFlow"),
        "mxnet" => Some("MXNet"),
        "jax" => Some("JAX"),
        _ => None,
    }
}

/// Joins the rounds of rows that are otherwise equal: trials of the default.
fn merged(rows: Vec<Vec<String>>, head: &[String]) -> Vec<Vec<String>> {
    let is_measured = |index: usize| ["images/s", "MiB"].contains(&head[index].as_str());
    let mut merged: Vec<Vec<String>> = Vec::new();
    for row in rows {
        let is_same = |last: &&mut Vec<String>| {
            let mut cells = last.iter().zip(&row).enumerate();
            cells.all(|(index, (a, b))| a == b || is_measured(index))
        };
        match merged.last_mut().filter(is_same) {
            Some(last) => {
                for (index, name) in head.iter().enumerate() {
                    if name == "images/s" {
                        last[index] = format!("{} {}", last[index], row[index]);
                    }
                }
            }
            None => merged.push(row),
        }
    }
    merged
}

fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        value => value.to_string(),
    }
}

fn chosen(setting: &Value) -> String {
    let settings = setting.as_object().into_iter().flatten();
    let settings = settings.map(|(name, value)| format!("{name} {}", word(value)));
    settings.collect::<Vec<_>>().join("; ")
}

fn joined(values: &[f64]) -> String {
    let texts = values.iter().map(|value| format!("{value:.1}"));
    texts.collect::<Vec<_>>().join(" ")
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        len if len % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Speed of Lockstep over that of another program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    /// None if only the range is known.
    median: Option<f64>,
    least: f64,
    most: f64,
}

impl Ratio {
    /// Compares round by round, or the medians if the numbers of rounds differ.
    fn of(lockstep: &[f64], other: &[f64]) -> Option<Self> {
        let ratios: Vec<f64> = match lockstep.len() == other.len() {
            true => lockstep.iter().zip(other).map(|(a, b)| a / b).collect(),
            false => vec![median(lockstep) / median(other)],
        };
        Ratio::from_parts(median(&ratios), &ratios)
    }

    /// Reads `median least most`, `least most` or `median`.
    fn typed(numbers: &[f64]) -> Option<Self> {
        match numbers {
            [least, most] => Some(Ratio {
                median: None,
                least: *least,
                most: *most,
            }),
            numbers => Ratio::from_parts(*numbers.first()?, numbers),
        }
    }

    fn from_parts(median: f64, all: &[f64]) -> Option<Self> {
        let least = all.iter().copied().reduce(f64::min)?;
        let most = all.iter().copied().reduce(f64::max)?;
        let median = median.is_finite().then_some(median)?;
        Some(Ratio {
            median: Some(median),
            least,
            most,
        })
    }

    pub(super) fn middle(self) -> f64 {
        self.median.unwrap_or((self.least + self.most) / 2.0)
    }

    fn text(self) -> String {
        match self.median {
            None => format!("{:.2} to {:.2}", self.least, self.most),
            Some(median) if self.least == self.most => format!("{median:.2}"),
            Some(median) => format!("{median:.2} ({:.2} to {:.2})", self.least, self.most),
        }
    }
}

/// Programs that did the same job on the same machine.
pub(super) struct Job {
    keys: Vec<String>,
    programs: Vec<Program>,
}

pub(super) struct Program {
    pub(super) name: String,
    rounds: Vec<f64>,
    pub(super) mib: Option<f64>,
    /// Ratio without speeds, from `bench.csv`.
    typed: Option<Ratio>,
    date: String,
    commit: String,
}

impl Job {
    pub(super) fn key(&self, name: &str) -> &str {
        let index = KEYS.iter().position(|key| *key == name);
        index.map_or("", |index| &self.keys[index])
    }

    pub(super) fn program(&self, name: &str) -> Option<&Program> {
        self.programs.iter().find(|program| program.name == name)
    }

    pub(super) fn ratio(&self, name: &str) -> Option<Ratio> {
        let other = self.program(name)?;
        let lockstep = self
            .program(LOCKSTEP)
            .map(|program| program.rounds.as_slice());
        let measured = || Ratio::of(lockstep?, &other.rounds);
        other.typed.or_else(measured)
    }
}

/// Returns the jobs of rows that pass a filter, in the order of the file.
pub(super) fn jobs(steps: &Table, filter: &Filter) -> Outcome<Vec<Job>> {
    let mut jobs: Vec<Job> = Vec::new();
    for row in steps.rows(filter)? {
        let keys: Vec<String> = KEYS.iter().map(|key| row.cell(key).to_owned()).collect();
        let numbers = |column: &str| -> Vec<f64> {
            let words = row.cell(column).split_whitespace();
            words.filter_map(|word| word.parse().ok()).collect()
        };
        let program = Program {
            name: row.cell("program").to_owned(),
            rounds: numbers("images/s"),
            mib: numbers("MiB").first().copied(),
            typed: Ratio::typed(&numbers("ratio")),
            date: row.cell("date").to_owned(),
            commit: row.cell("commit").to_owned(),
        };
        match jobs.iter_mut().find(|job| job.keys == keys) {
            Some(job) => job.programs.push(program),
            None => jobs.push(Job {
                keys,
                programs: vec![program],
            }),
        }
    }
    Ok(jobs)
}

/// Returns a table with a row for each job and a column for each program.
pub(super) fn speeds(steps: &Table, filter: &Filter) -> Outcome<String> {
    let mut jobs = jobs(steps, filter)?;
    jobs.retain(|job| job.programs.iter().any(|program| program.name != LOCKSTEP));
    let mut names: Vec<&str> = Vec::new();
    for program in jobs.iter().flat_map(|job| &job.programs) {
        if !names.contains(&program.name.as_str()) {
            names.push(&program.name);
        }
    }
    names.sort_by_key(|name| *name != LOCKSTEP && !name.starts_with("PyTorch"));
    names.sort_by_key(|name| *name != LOCKSTEP);
    let is_shown = |key: &&&str| {
        let some = jobs.iter().any(|job| !job.key(key).is_empty());
        **key != "source" && some && !filter.fixes(key)
    };
    let keys: Vec<&str> = KEYS.iter().filter(is_shown).copied().collect();
    let mut head: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
    head.extend(names.iter().map(|name| (*name).to_owned()));
    head.extend(["MiB", "date, commit"].map(str::to_owned));
    let mut rows = Vec::new();
    for job in &jobs {
        let mut row: Vec<String> = keys.iter().map(|key| job.key(key).to_owned()).collect();
        row.extend(names.iter().map(|name| cell(job, name)));
        let mib = names.iter().map(|name| job.program(name)?.mib);
        let shown =
            |mib: Option<f64>| mib.map_or("–".to_owned(), |mib| grouped(&format!("{mib:.0}")));
        let mib: Vec<String> = mib.map(shown).collect();
        row.push(mib.join(" / "));
        let last = job.programs.last();
        row.push(last.map_or(String::new(), |last| {
            format!("{}, {}", last.date, last.commit)
        }));
        rows.push(row);
    }
    Ok(Table { head, rows }.markdown())
}

fn cell(job: &Job, name: &str) -> String {
    let Some(program) = job.program(name) else {
        return "–".to_owned();
    };
    let speed = median(&program.rounds);
    let speed = match program.rounds.is_empty() {
        true => None,
        false if speed < 100.0 => Some(format!("{speed:.1}")),
        false => Some(grouped(&format!("{speed:.0}"))),
    };
    let ratio = (name != LOCKSTEP).then(|| job.ratio(name)).flatten();
    let parts = [speed, ratio.map(Ratio::text)];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Returns the least and the largest ratio of all jobs, as in `2.2 to 2.6`.
pub(super) fn range(steps: &Table, filter: &Filter, program: &str) -> Outcome<String> {
    let jobs = jobs(steps, filter)?;
    let ratios: Vec<Ratio> = jobs.iter().filter_map(|job| job.ratio(program)).collect();
    let ends = |end: fn(Ratio) -> f64| {
        ratios
            .iter()
            .map(move |ratio| ratio.median.unwrap_or(end(*ratio)))
    };
    let least = ends(|ratio| ratio.least).reduce(f64::min);
    let most = ends(|ratio| ratio.most).reduce(f64::max);
    let (Some(least), Some(most)) = (least, most) else {
        return Err(failed!(
            "{STEPS}: no ratio to `{program}` in these rows. Change the filter."
        ));
    };
    let (least, most) = (format!("{least:.1}"), format!("{most:.1}"));
    Ok(match least == most {
        true => least,
        false => format!("{least} to {most}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
model,pixels,batch,ranks,link,machine,precision,program,settings,images/s,MiB,ratio,date,commit,source
a,32,8,1,,m,f32,Lockstep,,1200 1400 1300,100,,2026-01-01,abc,s
a,32,8,1,,m,f32,PyTorch best,x,600 700 500,250,,2026-01-01,abc,s
b,32,8,1,,m,f32,PyTorch best,,,,1.5 1.7,2026-01-01,abc,s
";

    #[test]
    fn a_ratio_compares_rounds_of_one_job() {
        let steps = Table::parse(TEXT, "t").unwrap();
        let filter = Filter::parse("pixels=32; ranks=1").unwrap();
        let table = speeds(&steps, &filter).unwrap();
        let row =
            "| a | 8 | m | f32 | 1,300 | 600; 2.00 (2.00 to 2.60) | 100 / 250 | 2026-01-01, abc |";
        assert!(table.contains(row), "{table}");
        assert!(
            table.contains("| b | 8 | m | f32 | – | 1.50 to 1.70 |"),
            "{table}"
        );
        assert_eq!(
            range(&steps, &filter, "PyTorch best").unwrap(),
            "1.5 to 2.0"
        );
        assert!(range(&steps, &filter, "JAX").is_err());
    }
}
