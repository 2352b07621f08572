//! The keys of one table of a study file, taken one after the other.
//!
//! In: a TOML table and where it stands. Out: values of the expected kind.
//! Invariant: a value of another kind and a key that nobody took are refused with the file, the key, what was expected and what
//! was there.

use toml::{Table, Value};

use cluster::failure::{Failure, Outcome};

/// A table whose keys are taken out as they are understood.
pub(super) struct Keys {
    /// The file and the table in it, as a person would name it.
    place: String,
    table: Table,
    known: Vec<&'static str>,
}

impl Keys {
    pub(super) fn new(place: impl Into<String>, table: Table) -> Self {
        Keys {
            place: place.into(),
            table,
            known: Vec::new(),
        }
    }

    /// A refusal about one key.
    pub(super) fn refusal(&self, key: &str, text: &str) -> Failure {
        Failure::Usage(format!("{}: {key}: {text}", self.place))
    }

    fn take<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Outcome<Option<T>> {
        self.known.push(key);
        let Some(value) = self.table.remove(key) else {
            return Ok(None);
        };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.refusal(key, &format!("expected {expected}, got {}", shown(&value)))),
        }
    }

    pub(super) fn text(&mut self, key: &'static str) -> Outcome<Option<String>> {
        self.take(key, "a text in quotes", |value| {
            value
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        })
    }

    pub(super) fn required_text(&mut self, key: &'static str) -> Outcome<String> {
        let text = self.text(key)?;
        text.ok_or_else(|| {
            self.refusal(
                key,
                &format!("expected a text, got nothing: write {key} = \"…\""),
            )
        })
    }

    /// A whole number from 1.
    pub(super) fn count(&mut self, key: &'static str) -> Outcome<Option<usize>> {
        self.take(key, "a whole number from 1", |value| {
            value
                .as_integer()
                .and_then(|count| usize::try_from(count).ok())
                .filter(|count| *count > 0)
        })
    }

    /// A number above 0.
    pub(super) fn number(&mut self, key: &'static str) -> Outcome<Option<f64>> {
        self.take(key, "a number above 0", |value| {
            let number = value
                .as_float()
                .or_else(|| value.as_integer().map(|number| number as f64));
            number.filter(|number| *number > 0.0)
        })
    }

    /// A number above 0 and at most 1.
    pub(super) fn share(&mut self, key: &'static str) -> Outcome<Option<f64>> {
        let share = self.number(key)?;
        match share.filter(|share| *share > 1.0) {
            None => Ok(share),
            Some(more) => {
                Err(self.refusal(key, &format!("expected a share, such as 0.8, got {more}")))
            }
        }
    }

    /// One of these words.
    pub(super) fn choice(&mut self, key: &'static str, words: &[&str]) -> Outcome<Option<String>> {
        let expected = format!("one of {}", words.join(", "));
        self.take(key, &expected, |value| {
            value
                .as_str()
                .filter(|word| words.contains(word))
                .map(str::to_owned)
        })
    }

    pub(super) fn table(&mut self, key: &'static str) -> Outcome<Option<Table>> {
        self.take(key, "a table", |value| value.as_table().cloned())
    }

    pub(super) fn tables(&mut self, key: &'static str) -> Outcome<Vec<Table>> {
        let read = |value: &Value| {
            value
                .as_array()?
                .iter()
                .map(|value| value.as_table().cloned())
                .collect()
        };
        Ok(self
            .take(key, "a list of tables", read)?
            .unwrap_or_default())
    }

    /// What was not taken.
    pub(super) fn rest(self) -> Table {
        self.table
    }

    /// Refuses what was not taken.
    pub(super) fn end(self) -> Outcome {
        match self.table.keys().next() {
            None => Ok(()),
            Some(key) => Err(self.refusal(
                key,
                &format!(
                    "unknown key, expected only {}: remove it",
                    self.known.join(", ")
                ),
            )),
        }
    }
}

/// A value in one line.
pub(super) fn shown(value: &Value) -> String {
    value.to_string().replace('\n', " ")
}

/// A single value as a word of a command line.
pub(super) fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Some(value.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Keys {
        Keys::new("study.toml", text.parse().unwrap())
    }

    #[test]
    fn values_of_the_expected_kind_are_taken_and_the_rest_is_refused() {
        let mut all = keys("name = \"a\"\nn = 3\nlimit = 0.5\nlimits = 2\nother = 1\n");
        assert_eq!(all.required_text("name").unwrap(), "a");
        assert_eq!(
            (all.count("n").unwrap(), all.count("m").unwrap()),
            (Some(3), None)
        );
        assert_eq!(
            (all.number("limit").unwrap(), all.number("limits").unwrap()),
            (Some(0.5), Some(2.0))
        );
        assert_eq!(keys("share = 1").share("share").unwrap(), Some(1.0));
        let text = all.end().unwrap_err().to_string();
        assert!(
            text.contains("study.toml: other: unknown key")
                && text.contains("name, n, m, limit, limits"),
            "{text}"
        );
    }

    #[test]
    fn a_value_of_another_kind_is_refused_with_what_was_there() {
        let refused = |text: &str, read: &dyn Fn(&mut Keys) -> Option<Failure>| {
            let failure = read(&mut keys(text)).unwrap();
            assert_eq!(failure.exit_code(), 2);
            failure.to_string()
        };
        assert!(
            refused("n = 0", &|keys| keys.count("n").err())
                .contains("n: expected a whole number from 1, got 0")
        );
        assert!(refused("n = \"3\"", &|keys| keys.count("n").err()).contains("got \"3\""));
        assert!(refused("a = -1.0", &|keys| keys.number("a").err()).contains("above 0"));
        assert!(
            refused("a = 80", &|keys| keys.share("a").err())
                .contains("a: expected a share, such as 0.8, got 80")
        );
        assert!(refused("", &|keys| keys.required_text("name").err()).contains("write name = "));
        assert!(
            refused("k = \"x\"", &|keys| keys.choice("k", &["a", "b"]).err())
                .contains("one of a, b")
        );
        assert!(refused("k = [1]", &|keys| keys.tables("k").err()).contains("a list of tables"));
    }
}
