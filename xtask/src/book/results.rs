//! Speeds of programs in pages, made from `docs/results`.
//!
//! In: `bench.csv`, the records of studies. Out: `steps.csv`, the text of a block.
//! Invariant: a ratio of two programs compares their runs of one source only.

use std::path::{Path, PathBuf};

use cluster::failure::{Outcome, failed};
use cluster::json;
use records::{AttemptRecord, Comparison, ComparisonRow, Spread, Study, decimal, median, rate};

use super::table::{Filter, Row, Table};
use crate::{at, entries};

pub(super) const FOLDER: &str = "docs/results";
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
/// Programs in the order of columns.
const PROGRAMS: [&str; 7] = [
    records::OURS,
    "PyTorch default",
    "PyTorch best",
    "Horovod",
    "TensorFlow",
    "MXNet",
    "JAX",
];

/// Returns one row for each program and setting: those of `bench.csv`, then those of studies.
pub(super) fn steps(root: &Path) -> Outcome<Table> {
    let folder = root.join(FOLDER);
    let mut table = Table::read(&folder.join("bench.csv"))?;
    for study in studies(&folder)? {
        let source = study.strip_prefix(&folder).unwrap_or(&study);
        let source = source.display().to_string();
        let rows = of_study(&study, &source, &table.head)?;
        table.rows.extend(rows);
    }
    Ok(table)
}

fn studies(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in entries(folder)? {
        if path.join("study.json").exists() {
            found.push(path);
        } else if path.is_dir() {
            found.extend(studies(&path)?);
        }
    }
    Ok(found)
}

/// Returns the programs of a comparison. `source` is `DATE-MACHINE/STUDY`.
fn of_study(study: &Path, source: &str, head: &[String]) -> Outcome<Vec<Vec<String>>> {
    let plan: Study = json::read(&study.join("study.json"))?;
    let lines = study.join("records.jsonl");
    let lines = records::read_lines::<AttemptRecord>(&lines).map_err(at(&lines))?;
    let attempts: Vec<AttemptRecord> = lines
        .into_iter()
        .filter_map(|line| line.record.ok())
        .collect();
    let Some(comparison) = Comparison::of(&plan, &attempts) else {
        return Ok(Vec::new());
    };
    let (date, machine) = source.split_at("2026-11-24".len());
    let machine = machine.split('/').next().unwrap_or_default();
    let mut job = comparison.job.iter();
    let batch = job.find(|(name, _)| name == "batch_size_per_rank");
    let rounds = comparison.rows.iter();
    let rounds: Vec<_> = rounds
        .filter(|row| row.counts && row.rounds.len() > 1)
        .collect();
    if rounds.is_empty() {
        return Ok(Vec::new());
    }
    let programs = rounds.into_iter().map(|row| match row.framework.as_str() {
        "PyTorch DDP" => ("PyTorch best", row),
        framework => (framework, row),
    });
    // Each search of a setting has a run of the default.
    let is_default = |row: &&ComparisonRow| {
        row.framework == "PyTorch DDP" && row.setting.is_empty() && row.ranks == 1
    };
    let defaults = comparison.sweep.iter().filter(is_default);
    let defaults = defaults.map(|row| ("PyTorch default", row));
    let row = |(program, row): (&str, &ComparisonRow)| -> Vec<String> {
        let setting = row.setting.iter();
        let setting: Vec<String> = setting
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let speeds = row
            .rounds
            .iter()
            .filter_map(AttemptRecord::images_per_second);
        let speeds: Vec<String> = speeds.map(|speed| format!("{speed:.1}")).collect();
        let mib = row.peak_memory_bytes().map(|bytes| bytes >> 20);
        let cell = |column: &String| match column.as_str() {
            "model" => row.model.clone(),
            "pixels" => "32".to_owned(),
            "batch" => batch.map(|(_, batch)| batch.clone()).unwrap_or_default(),
            "ranks" => row.ranks.to_string(),
            "link" => row.job().3.to_owned(),
            "machine" => machine.trim_start_matches('-').to_owned(),
            "precision" => row.dtype.clone(),
            "program" => program.to_owned(),
            "settings" => setting.join("; "),
            "images/s" => speeds.join(" "),
            "MiB" => mib.map(|mib| mib.to_string()).unwrap_or_default(),
            "date" => date.to_owned(),
            "commit" => comparison.commit.chars().take(7).collect(),
            "source" => source.to_owned(),
            _ => String::new(),
        };
        head.iter().map(cell).collect()
    };
    let mut rows: Vec<Vec<String>> = defaults.chain(programs).map(row).collect();
    rows.sort();
    Ok(rows)
}

/// Rows of programs that did the same job on the same machine.
pub(super) struct Job<'a>(Vec<Row<'a>>);

impl Job<'_> {
    /// Returns what all programs share.
    pub(super) fn key(&self, name: &str) -> &str {
        self.0[0].cell(name)
    }

    /// Returns the numbers of a program in a column.
    pub(super) fn numbers(&self, program: &str, column: &str) -> Vec<f64> {
        let rows = self.0.iter().filter(|row| row.cell("program") == program);
        let words = rows.flat_map(|row| row.cell(column).split_whitespace());
        words.filter_map(|word| word.parse().ok()).collect()
    }

    /// Returns the speed of Lockstep over that of another program round by round, or that of the
    /// medians if the numbers of rounds differ.
    pub(super) fn ratio(&self, program: &str) -> Option<Spread> {
        let [mut ours, mut theirs] =
            [records::OURS, program].map(|name| self.numbers(name, "images/s"));
        let typed = self.numbers(program, "ratio");
        let has_both = !ours.is_empty() && !theirs.is_empty();
        match ours.len() == theirs.len() {
            _ if !typed.is_empty() => Spread::of(typed),
            true => Spread::of(ours.iter().zip(&theirs).map(|(a, b)| a / b)),
            false => Spread::of(has_both.then(|| median(&mut ours) / median(&mut theirs))),
        }
    }
}

/// Returns the jobs of rows that pass a filter, in the order of the file.
pub(super) fn jobs<'a>(steps: &'a Table, filter: &Filter) -> Outcome<Vec<Job<'a>>> {
    let mut jobs: Vec<Job> = Vec::new();
    for row in steps.rows(filter)? {
        let is_same = |job: &&mut Job| KEYS.iter().all(|key| job.key(key) == row.cell(key));
        match jobs.iter_mut().find(is_same) {
            Some(job) => job.0.push(row),
            None => jobs.push(Job(vec![row])),
        }
    }
    Ok(jobs)
}

/// Returns a table with a row for each job that Lockstep and another program did, and a column for
/// each program.
pub(super) fn speeds(steps: &Table, filter: &Filter) -> Outcome<String> {
    let mut jobs = jobs(steps, filter)?;
    jobs.retain(|job| job.0.iter().any(|row| row.cell("program") != records::OURS));
    let rows = jobs.iter().flat_map(|job| &job.0);
    let mut names: Vec<&str> = rows.map(|row| row.cell("program")).collect();
    names.sort_by_key(|name| PROGRAMS.iter().position(|program| program == name));
    names.dedup();
    let is_shown = |key: &&&str| {
        let some = jobs.iter().any(|job| !job.key(key).is_empty());
        **key != "source" && some && !filter.fixes(key)
    };
    let keys: Vec<&str> = KEYS.iter().filter(is_shown).copied().collect();
    let mib = |job: &Job, name: &str| job.numbers(name, "MiB").first().copied();
    let measured = names
        .iter()
        .filter(|name| jobs.iter().any(|job| mib(job, name).is_some()));
    let measured: Vec<&str> = measured.copied().collect();
    let own = |text: &&str| (*text).to_owned();
    let mut head: Vec<String> = keys.iter().chain(&names).map(own).collect();
    head.extend(measured.iter().map(|name| format!("{name}, MiB")));
    head.push("date, commit".to_owned());
    let row = |job: &Job| {
        let mut row: Vec<String> = keys.iter().map(|key| job.key(key).to_owned()).collect();
        row.extend(names.iter().map(|name| cell(job, name)));
        let shown = |name: &&str| mib(job, name).map_or(dash(), |mib| decimal(mib, 0));
        row.extend(measured.iter().map(shown));
        row.push(format!("{}, {}", job.key("date"), job.key("commit")));
        row
    };
    let rows = jobs.iter().map(row).collect();
    Ok(Table { head, rows }.markdown())
}

fn dash() -> String {
    "–".to_owned()
}

/// Returns the speed of a program, and Lockstep's ratio to the program.
fn cell(job: &Job, name: &str) -> String {
    let speed = Spread::of(job.numbers(name, "images/s")).map(|speed| rate(speed.median));
    let ratio = job.ratio(name).filter(|_| name != records::OURS);
    let ratio = ratio.map(|ratio| {
        let ends = format!("{:.2} to {:.2}", ratio.least, ratio.most);
        match ratio.count {
            1 => format!("{:.2}", ratio.median),
            2 => ends,
            _ => format!("{:.2} ({ends})", ratio.median),
        }
    });
    let parts: Vec<String> = speed.into_iter().chain(ratio).collect();
    match parts.is_empty() {
        true => dash(),
        false => parts.join("; "),
    }
}

/// Returns the least and the largest ratio of all jobs, as in `2.2 to 2.6`.
pub(super) fn range(steps: &Table, filter: &Filter, program: &str) -> Outcome<String> {
    let jobs = jobs(steps, filter)?;
    let ratios = jobs.iter().filter_map(|job| job.ratio(program));
    // Of two numbers only the ends are known.
    let ends = ratios.flat_map(|ratio| match ratio.count {
        2 => [ratio.least, ratio.most],
        _ => [ratio.median; 2],
    });
    let Some(all) = Spread::of(ends) else {
        return Err(failed!(
            "{STEPS}: no ratio to `{program}` in these rows. Change the filter."
        ));
    };
    let (least, most) = (format!("{:.1}", all.least), format!("{:.1}", all.most));
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
            "| a | 8 | m | f32 | 1,300 | 600; 2.00 (2.00 to 2.60) | 100 | 250 | 2026-01-01, abc |";
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
