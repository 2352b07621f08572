//! Tests of reading study files.

use super::*;

const SMALL: &str =
    "name = \"a\"\ntitle = \"A\"\nabout = \"a\"\n[base]\nsteps = 5\n[[matrix]]\nranks = [1, 2]\n";

fn refusal(text: &str) -> String {
    let failure = StudyFile::read("s.toml", text, &Table::new()).unwrap_err();
    assert_eq!(failure.exit_code(), 2);
    failure.to_string()
}

#[test]
fn what_is_unsaid_has_its_default() {
    let file = StudyFile::read("s.toml", SMALL, &Table::new()).unwrap();
    assert_eq!(
        (file.repetitions, file.attempts, file.quiet_cores),
        (3, 3, 0.2)
    );
    assert_eq!(
        (file.matrices[0].kind, file.matrices[0].scaling),
        (Kind::Bench, Scaling::None)
    );
    assert_eq!(file.flags[&Kind::Bench]["steps"].as_integer(), Some(5));
    assert!(file.flags[&Kind::Netbench].is_empty() && file.profile.is_none());
}

#[test]
fn wrong_files_are_refused_with_their_key() {
    for (text, expected) in [
        ("name = ", "s.toml: not TOML"),
        ("title = \"A\"", "s.toml: name: expected a text"),
        (&SMALL.replace("\"a\"", "\"a/b\""), "got `a/b`"),
        (
            &format!("colour = 1\n{SMALL}"),
            "colour: unknown key, expected only name, title",
        ),
        (
            &format!("target_accuracy = 80\n{SMALL}"),
            "s.toml: target_accuracy: expected a share, such as 0.8, got 80",
        ),
        (
            &SMALL.replace("steps = 5", "steps = [5]"),
            "steps: expected one value outside [[matrix]], got [5]",
        ),
        (
            &SMALL.replace("ranks = [1, 2]", "kind = \"bake\""),
            "[[matrix]] 1: kind: expected one of bench, train",
        ),
        (
            &SMALL.replace("ranks", "overrides = [{ when = {} }]\nranks"),
            "expected both tables",
        ),
        (
            &format!("{SMALL}[predict]\nhow = 1\n"),
            "[predict]: how: unknown key",
        ),
        (
            "name = \"a\"\ntitle = \"A\"\nabout = \"a\"\n",
            "matrix: expected at least one",
        ),
    ] {
        let got = refusal(text);
        assert!(got.contains(expected), "{got}\nfor\n{text}");
    }
}

#[test]
fn a_change_lands_where_its_key_stands_and_else_among_all_cells_flags() {
    let table = changes::read(Some("ranks=4,steps=2,data-dir=/d,repetitions=1")).unwrap();
    let file = StudyFile::read("s.toml", SMALL, &table).unwrap();
    assert_eq!(file.matrices[0].axes["ranks"].as_integer(), Some(4));
    assert_eq!(file.flags[&Kind::Bench]["steps"].as_integer(), Some(2));
    assert_eq!(file.flags[&Kind::Train]["data_dir"].as_str(), Some("/d"));
    assert_eq!(file.repetitions, 1);
}

#[test]
fn a_change_of_repetitions_reaches_a_matrix_that_has_its_own() {
    let text = SMALL.replace("ranks", "repetitions = 5\nranks") + "[[matrix]]\nranks = 3\n";
    let file = StudyFile::read(
        "s.toml",
        &text,
        &changes::read(Some("repetitions=1")).unwrap(),
    )
    .unwrap();
    let of_matrices: Vec<_> = file
        .matrices
        .iter()
        .map(|matrix| matrix.repetitions)
        .collect();
    assert_eq!((file.repetitions, of_matrices), (1, vec![Some(1), None]));
}
