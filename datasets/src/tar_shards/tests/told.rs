//! Tests of the notes and errors of shards: omitted samples, wrong labels and wrong classes.

use super::*;

fn notes(root: &Path) -> Vec<String> {
    open(root, &config(OnBadImage::Skip))
        .unwrap()
        .train
        .notes()
        .to_vec()
}

/// Returns two samples of classes 1 and 0.
fn good() -> Vec<u8> {
    tar(&[
        ("1.png", &png(10)),
        ("1.cls", b"1"),
        ("2.png", &png(12)),
        ("2.cls", b"0"),
    ])
}

#[test]
fn a_json_member_that_tells_no_label_is_a_problem_where_no_number_came() {
    for json in [
        "[1]",
        "{\"score\": }",
        "{\"label\": true}",
        "\"a cat\"",
        &format!("\"{}\"", "a".repeat(1 << 20)),
    ] {
        let image = png(10);
        let json = json.as_bytes();
        let with_number = folder(&tar(&[
            ("1.png", &image),
            ("1.json", json),
            ("1.cls", b"0"),
        ]));
        assert_eq!(opened(with_number.path())[0], (0, 10));
        let without = folder(&tar(&[("1.png", &image), ("1.json", json)]));
        let text = refusal(without.path(), OnBadImage::Fail);
        assert!(
            text.contains("train-0.tar: 1: ") && text.contains(".json"),
            "{text}"
        );
    }
}

#[test]
fn a_label_counts_whatever_other_keys_hold_and_none_that_is_told_twice() {
    let deep = format!(
        "{{\"label\": 1, \"x\": {}{}}}",
        "[".repeat(200),
        "]".repeat(200)
    );
    for json in [
        r#"{"label": 1, "caption": "cut \ud83d"}"#,
        r#" {"label": 1, "score": 1e999}"#,
        &deep,
    ] {
        let root = folder(&tar(&[("1.png", &png(10)), ("1.json", json.as_bytes())]));
        assert_eq!(opened(root.path())[0], (1, 10), "{json}");
    }
    let root = folder(&tar(&[
        ("1.png", &png(10)),
        ("1.json", br#"{"label": 1, "label": 2}"#),
    ]));
    assert!(refusal(root.path(), OnBadImage::Fail).contains("duplicate field `label`"));
}

#[test]
fn a_shard_that_is_cut_is_told_apart_from_a_sample_that_is_skipped() {
    let cut = good()[..512 * 5 + 30].to_vec();
    let root = folder(&cut);
    let said = notes(root.path());
    assert!(
        said.iter()
            .any(|note| note.starts_with("the rest of 1 of 2 shards is lost: train-0.tar: ")),
        "{said:?}"
    );
    assert!(
        !said.iter().any(|note| note.contains("skipped")),
        "{said:?}"
    );
    assert!(refusal(root.path(), OnBadImage::Fail).ends_with(", or skip bad samples"));
    // Nothing is left of the split, so skipping does not help.
    for name in ["train-0.tar", "train-1.tar"] {
        fs::write(root.path().join(name), &cut[..600]).unwrap();
    }
    for on_bad_image in [OnBadImage::Fail, OnBadImage::Skip] {
        let text = refusal(root.path(), on_bad_image);
        assert!(
            text.contains("expected an image with a label, got none (train-0.tar: "),
            "{text}"
        );
        assert!(
            text.contains("truncated") && !text.contains("skip"),
            "{text}"
        );
    }
}

#[test]
fn shards_that_are_not_read_are_noted() {
    let root = folder(&good());
    fs::write(root.path().join("test-0.tar"), good()).unwrap();
    fs::write(root.path().join("train-2.tar.gz"), "").unwrap();
    let name_of_compressed = |notes: &[String]| -> Option<String> {
        let note = notes
            .iter()
            .find(|note| note.starts_with("ignored 1 file"))?;
        note.rsplit_once(' ').map(|(_, name)| name.to_owned())
    };
    let splits = strict(root.path());
    assert_eq!(
        name_of_compressed(splits.train.notes()),
        Some("train-2.tar.gz".to_owned())
    );
    // A split that has only compressed shards is not silently ignored.
    fs::rename(
        root.path().join("test-0.tar"),
        root.path().join("test-0.tar.gz"),
    )
    .unwrap();
    let splits = strict(root.path());
    assert!(
        splits.test.is_none() && splits.notes[0].contains("test-0.tar.gz"),
        "{:?}",
        splits.notes
    );
}

#[test]
fn a_key_with_dots_is_named_and_further_images_of_a_sample_are_none() {
    let image = png(10);
    let further = [
        ("1.left.png", &image[..]),
        ("1.png", &image),
        ("1.cls", b"1"),
        ("._1.png", b""),
    ];
    let root = folder(&tar(&further));
    assert_eq!(opened(root.path())[0], (1, 10));
    let with_dots = [
        &further[..],
        &[("2.v1.0001.png", &image[..]), ("2.v1.0001.cls", b"0")],
    ]
    .concat();
    fs::write(root.path().join("train-0.tar"), tar(&with_dots)).unwrap();
    assert!(
        refusal(root.path(), OnBadImage::Fail)
            .contains("2: expected an image and a label, got 2.v1.0001.png")
    );
    assert!(
        notes(root.path())
            .iter()
            .any(|note| note.contains("got 2.v1.0001.png"))
    );
}

#[test]
fn each_line_of_class_names_is_a_class_and_those_without_images_are_noted() {
    let root = folder(&tar(&[("1.png", &png(10)), ("1.cls", b"3")]));
    assert!(notes(root.path()).contains(&"1 of 4 classes without an image: 2".to_owned()));
    let with = |text: &str| {
        fs::write(root.path().join(CLASSES), text).unwrap();
        open(root.path(), &config(OnBadImage::Fail))
    };
    let splits = with("\u{feff}cat\r\ndog\nelk\nfox\n\n \n").unwrap();
    assert_eq!(splits.train.class_names(), ["cat", "dog", "elk", "fox"]);
    assert!(
        splits
            .train
            .notes()
            .contains(&"1 of 4 classes without an image: elk".to_owned())
    );
    let text = with("cat\n\nelk\nfox\n").unwrap_err().to_string();
    assert!(
        text.contains("classes.txt: line 2: expected the name of a class"),
        "{text}"
    );
    // ImageNet has two classes named crane.
    let splits = with("crane\ndog\nelk\ncrane").unwrap();
    let of_val = open_split(root.path(), "val", None, &config(OnBadImage::Fail)).unwrap();
    for (opened, notes) in [
        (&splits.train, &splits.notes[..]),
        (&of_val, of_val.notes()),
    ] {
        assert_eq!(opened.class_names(), ["crane", "dog", "elk", "crane"]);
        assert!(notes.contains(&"classes.txt repeats 1 name: crane".to_owned()));
    }
}

#[test]
fn a_split_opens_alone_with_the_classes_that_are_known() {
    let root = folder(&tar(&[("1.png", &png(10)), ("1.cls", b"3")]));
    let opened = |classes: Option<&[String]>| {
        open_split(root.path(), "val", classes, &config(OnBadImage::Fail))
    };
    let num = |classes| opened(classes).unwrap().class_names().len();
    let known = ["a", "b", "c", "d", "e"].map(str::to_owned);
    assert_eq!(
        [num(None), num(Some(&known)), num(Some(&known[..2]))],
        [4, 5, 2]
    );
    assert!(
        opened(Some(&known[..1]))
            .unwrap_err()
            .to_string()
            .contains("got images of others: 1")
    );
    // The index keeps its entries of the other shards.
    fs::write(root.path().join("val-1.tar"), good()).unwrap();
    assert_eq!(num(Some(&known)), 5);
    assert!(
        fs::read_to_string(root.path().join(INDEX))
            .unwrap()
            .contains("train-0.tar")
    );
    ["train-0.tar", "train-1.tar"]
        .iter()
        .for_each(|name| fs::remove_file(root.path().join(name)).unwrap());
    assert_eq!([num(None), num(Some(&known[..4]))], [2, 4]);
    // The names map labels. Without names a label is a position.
    fs::write(root.path().join(CLASSES), "d\nb\n").unwrap();
    let mapped = opened(Some(&known)).unwrap();
    let labels: Vec<usize> = (0..mapped.len()).map(|index| mapped.label(index)).collect();
    assert_eq!(labels, [1, 3, 1, 3]);
    assert!(
        opened(Some(&known[..2]))
            .unwrap_err()
            .to_string()
            .contains("got images of others: d")
    );
}

#[test]
fn a_label_is_a_whole_number_however_it_is_written() {
    for (name, text, expected) in [
        ("1.json", r#"{"label": "1"}"#, 1),
        ("1.json", r#"{"label": 1.0}"#, 1),
        (
            "1.json",
            r#"{"score": NaN, "label": 1, "a": [-Infinity, "NaN \" Infinity"]}"#,
            1,
        ),
        ("1.cls", "\u{feff} 1.0\n", 1),
        ("1.cls", "0", 0),
    ] {
        let root = folder(&tar(&[("1.png", &png(10)), (name, text.as_bytes())]));
        assert_eq!(opened(root.path())[0], (expected, 10), "{text}");
    }
    for (name, text) in [
        ("1.json", r#"{"label": "a cat"}"#),
        ("1.json", r#"{"label": 1.5}"#),
        ("1.cls", "NaN"),
    ] {
        let root = folder(&tar(&[("1.png", &png(10)), (name, text.as_bytes())]));
        let refused = refusal(root.path(), OnBadImage::Fail);
        assert!(
            refused.contains("expected a label from 0 to 65535, got "),
            "{text}: {refused}"
        );
    }
}

#[test]
fn archives_that_follow_one_another_are_all_read_and_other_bytes_behind_the_end_are_noted() {
    let image = png(10);
    let one = good();
    let other = tar(&[
        ("1.png", &image[..]),
        ("1.cls", b"0"),
        ("a/1.png", &image),
        ("a/1.cls", b"1"),
    ]);
    let own = [(1, 10), (0, 12)];
    for (train, expected, note) in [
        (
            [&one[..], &other].concat(),
            &[(1, 10), (0, 12), (0, 10), (1, 10)][..],
            "2 archives, one after the other",
        ),
        (
            [&one[..], &[0; 4096], &other].concat(),
            &[(1, 10), (0, 12), (0, 10), (1, 10)],
            "2 archives",
        ),
        (
            [&one[..], b"some bytes"].concat(),
            &own,
            "bytes after the end of the archive",
        ),
        (
            [&one[..], &[7; 2048]].concat(),
            &own,
            "bytes after the end of the archive",
        ),
        (
            one[..one.len() - 1024].to_vec(),
            &own,
            "the archive has no end",
        ),
        (one[..one.len() - 512].to_vec(), &own, ""),
    ] {
        let root = folder(&train);
        for _ in 0..2 {
            let train = strict(root.path()).train;
            assert_eq!(samples(&*train)[..expected.len()], *expected, "{note}");
            assert_eq!(train.len(), expected.len() + 2);
            let is_noted = |text: &String| text.starts_with("train-0.tar: ") && text.contains(note);
            assert_eq!(
                train.notes().iter().any(is_noted),
                !note.is_empty(),
                "{note}: {:?}",
                train.notes()
            );
        }
    }
}

#[test]
fn a_split_without_labels_is_not_opened_and_blocks_no_other() {
    let image = png(10);
    for label in [
        &[][..],
        &[("1.cls", &b"-1"[..])],
        &[("1.json", b"{\"label\": null}")],
        &[("1.json", b"{}")],
    ] {
        let root = folder(&good());
        fs::write(
            root.path().join("test-0.tar"),
            tar(&[&[("1.png", &image[..])], label].concat()),
        )
        .unwrap();
        for _ in 0..2 {
            let splits = strict(root.path());
            assert!(splits.test.is_none() && splits.val.is_some());
            let note = &splits.notes[0];
            assert!(note.contains("none of 1 images has a label"), "{note}");
            let alone =
                open_split(root.path(), "test", None, &config(OnBadImage::Fail)).unwrap_err();
            assert_eq!(alone.to_string(), *note);
        }
    }
    // One label makes the images without one bad samples, because training needs labels.
    let root = folder(&tar(&[
        ("1.png", &image),
        ("1.cls", b"-1"),
        ("2.png", &image),
        ("2.cls", b"1"),
    ]));
    assert!(
        refusal(root.path(), OnBadImage::Fail)
            .contains("1: expected a label, in 1.cls or a number under label in 1.json, got -1")
    );
    for name in ["train-0.tar", "train-1.tar"] {
        fs::write(
            root.path().join(name),
            tar(&[("1.png", &image), ("1.cls", b"-1")]),
        )
        .unwrap();
    }
    assert!(refusal(root.path(), OnBadImage::Skip).contains("none of 2 images has a label"));
}

#[test]
fn a_compressed_file_that_is_called_a_shard_is_named_with_its_remedy() {
    let root = folder(&[&[0x1f, 0x8b, 8], &good()[..]].concat());
    let text = refusal(root.path(), OnBadImage::Fail);
    assert!(
        text.contains("train-0.tar: expected a tar file, got one compressed with gzip"),
        "{text}"
    );
}
