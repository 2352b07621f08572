//! The tasks of a job array.
//!
//! In: a specification for sbatch (`0-3`, `0,2,8-16:4`, each with or without `%LIMIT`). Out:
//! [`Array`].
//! Invariant: Slurm reads the specification in the same way; anything else is refused before the
//! submission.
//! Source: sbatch(1), `--array`.

use std::collections::BTreeSet;

/// Placeholder of a task's number in the trainer's words.
pub(crate) const TASK: &str = "{task}";
/// Above the default limit of clusters; each task gets a directory.
const MOST_TASKS: usize = 100_000;

/// A job array.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Array {
    /// Specification as given.
    pub(crate) specification: String,
    pub(crate) tasks: BTreeSet<usize>,
}

impl Array {
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let tasks = tasks(text).filter(|tasks| !tasks.is_empty());
        let tasks = tasks
            .ok_or("expected tasks such as 0-3, 1,5,7 or 0-30:10, perhaps with %LIMIT at a time")?;
        Ok(Array {
            specification: text.to_owned(),
            tasks,
        })
    }
}

fn tasks(text: &str) -> Option<BTreeSet<usize>> {
    let list = match text.split_once('%') {
        Some((list, limit)) => {
            limit.parse::<usize>().ok().filter(|limit| *limit > 0)?;
            list
        }
        None => text,
    };
    let mut tasks = BTreeSet::new();
    for part in list.split(',') {
        let (range, stride) = match part.split_once(':') {
            Some((range, stride)) if range.contains('-') => {
                (range, stride.parse().ok().filter(|stride| *stride > 0)?)
            }
            Some(_) => return None,
            None => (part, 1),
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: usize = first.parse().ok()?;
        let last: usize = last.parse().ok()?;
        if last < first || (last - first) / stride >= MOST_TASKS {
            return None;
        }
        tasks.extend((first..=last).step_by(stride));
    }
    Some(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<usize> {
        Array::read(text).unwrap().tasks.into_iter().collect()
    }

    #[test]
    fn every_notation_of_sbatch_names_its_tasks() {
        assert_eq!(read("0-3"), [0, 1, 2, 3]);
        assert_eq!(read("7"), [7]);
        assert_eq!(read("1,5,2"), [1, 2, 5]);
        assert_eq!(read("0-8:4,9%2"), [0, 4, 8, 9]);
    }

    #[test]
    fn what_names_no_tasks_is_refused() {
        for text in [
            "",
            "a",
            "3-1",
            "1-",
            "1:2",
            "0-4:0",
            "0-3%0",
            "0-3%",
            "1 2",
            "0-99999999",
        ] {
            assert!(Array::read(text).is_err(), "{text}");
        }
    }
}
