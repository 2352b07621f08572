//! Maps labels from one list of classes to another list by class names.
//!
//! In: labels, their class names, and the names of the other list. Out: labels of the other list,
//! and notes.
//! Invariant: a class with images must be in both lists. Otherwise the result is an error. Nothing
//! depends on a rank or on the order of folders.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;

use unicode_normalization::UnicodeNormalization;

use crate::decode::EXTENSIONS;
use crate::error::{DatasetError, list};

/// Returns a class name in the Unicode form for comparisons.
///
/// macOS and Linux use different forms of the same name.
#[must_use]
pub fn normal_form(name: &str) -> String {
    name.nfc().collect()
}

/// Maps labels of `own` classes to `expected` classes with the same name. Notes describe
/// differences from the training.
///
/// If the data name no classes, `own` is `None`, and labels are positions in `expected`.
///
/// # Errors
/// Returns an error if a class with images is not in `expected`.
pub(crate) fn map_labels(
    split: &str,
    labels: &mut [u16],
    own: Option<&[String]>,
    expected: &[String],
) -> Result<Vec<String>, DatasetError> {
    let mut notes = Vec::new();
    if own != Some(expected) {
        let num_own = labels
            .iter()
            .max()
            .map_or(0, |label| usize::from(*label) + 1);
        let map = match own {
            Some(own) => {
                notes.extend(other_forms(own, expected));
                by_name(own, expected)
            }
            None => (0..num_own)
                .map(|class| (class < expected.len()).then_some(class as u16))
                .collect(),
        };
        if own.is_none() && !are_numbers(expected) {
            notes.push(
                "no class names here: labels are positions in the list of classes".to_owned(),
            );
        }
        let mut is_unknown = vec![false; num_own];
        labels
            .iter()
            .for_each(|label| is_unknown[usize::from(*label)] = map[usize::from(*label)].is_none());
        let unknown: Vec<String> = (0..num_own)
            .filter(|class| is_unknown[*class])
            .map(|class| own.map_or_else(|| class.to_string(), |own| own[class].clone()))
            .collect();
        if !unknown.is_empty() {
            return Err(DatasetError::UnknownClasses {
                split: split.to_owned(),
                unknown: list(unknown.iter()),
                expected: list(expected.iter()),
            });
        }
        labels
            .iter_mut()
            .for_each(|label| *label = map[usize::from(*label)].unwrap_or_default());
    }
    notes.extend(empty_classes(labels, expected));
    Ok(notes)
}

/// Returns a note on classes without images, if there are any.
pub(crate) fn empty_classes(labels: &[u16], class_names: &[String]) -> Option<String> {
    let mut has_image = vec![false; class_names.len()];
    labels
        .iter()
        .for_each(|label| has_image[usize::from(*label)] = true);
    let empty: Vec<&String> = class_names
        .iter()
        .zip(has_image)
        .filter(|(_, has)| !has)
        .map(|(name, _)| name)
        .collect();
    let said = || {
        format!(
            "{} of {} classes without an image: {}",
            empty.len(),
            class_names.len(),
            list(empty.iter())
        )
    };
    (!empty.is_empty()).then(said)
}

/// Returns the error of a class without images. `found` describes the content of its folder.
pub(crate) fn empty_class(path: PathBuf, found: &str) -> DatasetError {
    let extensions = EXTENSIONS.join(", ");
    let found = if found.is_empty() {
        String::new()
    } else {
        format!(" ({found})")
    };
    let problem = format!(
        "expected at least one image ({extensions}) of this class, got none{found}. \
         Add images or remove the class"
    );
    DatasetError::invalid(path, problem)
}

/// Returns names for classes without names: 0, 1 and so on, at least two.
pub(crate) fn numbers(num_classes: usize) -> Vec<String> {
    (0..num_classes.max(2))
        .map(|class| class.to_string())
        .collect()
}

/// Returns true if the names are numbers 0, 1 and so on, because the classes have no names.
pub(crate) fn are_numbers(names: &[String]) -> bool {
    names == numbers(names.len())
}

/// Returns the class of `expected` with the same name, for each of `own`.
///
/// If a name occurs several times, as `crane` in ImageNet, the first occurrences match, and so on.
pub(crate) fn by_name(own: &[String], expected: &[String]) -> Vec<Option<u16>> {
    let mut found = vec![None; own.len()];
    let mut is_taken = vec![false; expected.len()];
    // An exact match has priority over a match in the normal form.
    for form in [str::to_owned, normal_form] as [fn(&str) -> String; 2] {
        let mut places = HashMap::<String, VecDeque<usize>>::new();
        for (place, name) in expected
            .iter()
            .enumerate()
            .filter(|(place, _)| !is_taken[*place])
        {
            places.entry(form(name)).or_default().push_back(place);
        }
        for (class, name) in own.iter().enumerate() {
            if found[class].is_none()
                && let Some(place) = places.get_mut(&form(name)).and_then(VecDeque::pop_front)
            {
                found[class] = Some(place as u16);
                is_taken[place] = true;
            }
        }
    }
    found
}

/// Returns a note on class names of one split that differ only in their Unicode form.
pub(crate) fn twins(names: &[String]) -> Option<String> {
    let mut before = HashSet::new();
    let twins: Vec<&String> = names
        .iter()
        .filter(|name| !before.insert(normal_form(name)))
        .collect();
    let said = || {
        format!(
            "class names that equal another one in another Unicode form, and are separate classes: {}",
            list(twins.iter())
        )
    };
    (!twins.is_empty()).then(said)
}

/// Returns a note on classes whose names are the expected ones in another Unicode form.
fn other_forms(own: &[String], expected: &[String]) -> Option<String> {
    let map = by_name(own, expected);
    let other: Vec<&String> = (0..own.len())
        .filter(|&class| map[class].is_some_and(|place| expected[usize::from(place)] != own[class]))
        .map(|class| &own[class])
        .collect();
    let said = || {
        format!(
            "class names in another Unicode form than in training (macOS writes NFD, Linux NFC), taken as the same: {}",
            list(other.iter())
        )
    };
    (!other.is_empty()).then(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn mapped(
        own: Option<&[&str]>,
        labels: &[u16],
        expected: &[&str],
    ) -> Result<(Vec<u16>, Vec<String>), String> {
        let mut labels = labels.to_vec();
        let own = own.map(names);
        let notes = map_labels("val", &mut labels, own.as_deref(), &names(expected))
            .map_err(|error| error.to_string())?;
        Ok((labels, notes))
    }

    #[test]
    fn labels_are_mapped_by_the_names_of_their_classes() {
        let three = ["cat", "dog", "owl"];
        let lack = |what: &str| vec![format!("1 of 3 classes without an image: {what}")];
        for (own, labels, expected, notes) in [
            (
                &["cat", "dog", "owl"][..],
                &[0, 1, 2][..],
                &[0, 1, 2][..],
                vec![],
            ),
            (&["cat", "owl"], &[0, 1], &[0, 2], lack("dog")),
            (&["owl", "dog", "cat"], &[0, 1, 1], &[2, 1, 1], lack("cat")),
            // A class without images may have any name.
            (
                &["cat", "emu", "dog", "owl"],
                &[3, 2, 0],
                &[2, 1, 0],
                vec![],
            ),
        ] {
            assert_eq!(
                mapped(Some(own), labels, &three),
                Ok((expected.to_vec(), notes)),
                "{own:?}"
            );
        }
        let text = mapped(Some(&["cat", "emu"]), &[0, 1], &three).unwrap_err();
        assert!(
            text.contains("val: ") && text.contains("emu") && text.contains("cat; dog; owl"),
            "{text}"
        );
    }

    #[test]
    fn names_in_two_unicode_forms_are_one_class_and_twins_keep_their_order() {
        let composed = "caf\u{e9}";
        let decomposed = "cafe\u{301}";
        let (labels, notes) =
            mapped(Some(&[decomposed, "dog"]), &[0, 1], &[composed, "dog"]).unwrap();
        assert!(
            labels == [0, 1] && notes.len() == 1 && notes[0].contains("Unicode"),
            "{notes:?}"
        );
        // The exact name has priority.
        let map = |own: &[&str], expected: &[&str]| by_name(&names(own), &names(expected));
        assert_eq!(
            map(&[decomposed, composed], &[composed, decomposed]),
            [Some(1), Some(0)]
        );
        assert_eq!(
            map(&["crane", "dog", "crane"], &["dog", "crane", "crane"]),
            [Some(1), Some(0), Some(2)]
        );
    }

    #[test]
    fn labels_of_data_that_name_no_classes_are_positions() {
        let (labels, notes) = mapped(None, &[1, 0], &["cat", "dog"]).unwrap();
        assert!(
            labels == [1, 0] && notes[0].contains("positions"),
            "{notes:?}"
        );
        assert!(
            mapped(None, &[2], &["cat", "dog"])
                .unwrap_err()
                .contains("others: 2")
        );
        assert_eq!(mapped(None, &[1, 0], &["0", "1"]), Ok((vec![1, 0], vec![])));
    }
}
