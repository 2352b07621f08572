//! What shards say of that which they leave out, and of labels and classes that are not as they should be.

use super::*;

fn notes(root: &Path) -> Vec<String> {
    open(root, &config(OnBadImage::Skip)).unwrap().train.notes().to_vec()
}

fn refusal(root: &Path, on_bad_image: OnBadImage) -> String {
    open(root, &config(on_bad_image)).unwrap_err().to_string()
}

/// Two samples of classes 1 and 0.
fn good() -> Vec<u8> {
    tar(&[("1.png", &png(10)), ("1.cls", b"1"), ("2.png", &png(12)), ("2.cls", b"0")])
}

#[test]
fn a_json_member_that_tells_no_label_is_a_problem_where_no_number_came() {
    for json in ["[1]", "{\"score\": NaN}", "\"a cat\"", &format!("\"{}\"", "a".repeat(1 << 20))] {
        let (image, json) = (png(10), json.as_bytes());
        let with_number = folder(&tar(&[("1.png", &image), ("1.json", json), ("1.cls", b"0")]));
        assert_eq!(opened(with_number.path())[0], (0, 10));
        let without = folder(&tar(&[("1.png", &image), ("1.json", json)]));
        let text = refusal(without.path(), OnBadImage::Fail);
        assert!(text.contains("train-0.tar: 1: ") && text.contains(".json"), "{text}");
    }
}

#[test]
fn a_label_counts_whatever_other_keys_hold_and_none_that_is_told_twice() {
    let deep = format!("{{\"label\": 1, \"x\": {}{}}}", "[".repeat(200), "]".repeat(200));
    for json in [r#"{"label": 1, "caption": "cut \ud83d"}"#, r#" {"label": 1, "score": 1e999}"#, &deep] {
        let root = folder(&tar(&[("1.png", &png(10)), ("1.json", json.as_bytes())]));
        assert_eq!(opened(root.path())[0], (1, 10), "{json}");
    }
    let root = folder(&tar(&[("1.png", &png(10)), ("1.json", br#"{"label": 1, "label": 2}"#)]));
    assert!(refusal(root.path(), OnBadImage::Fail).contains("duplicate field `label`"));
}

#[test]
fn a_shard_that_is_cut_is_told_apart_from_a_sample_that_is_skipped() {
    let cut = good()[..512 * 5 + 30].to_vec();
    let root = folder(&cut);
    let said = notes(root.path());
    assert!(said.iter().any(|note| note.starts_with("the rest of 1 of 2 shards is lost: train-0.tar: ")), "{said:?}");
    assert!(!said.iter().any(|note| note.contains("samples were skipped")), "{said:?}");
    assert!(refusal(root.path(), OnBadImage::Fail).ends_with(", or skip what is bad"));
    // Nothing is left of the split, so that skipping does not help.
    for name in ["train-0.tar", "train-1.tar"] {
        fs::write(root.path().join(name), &cut[..600]).unwrap();
    }
    for on_bad_image in [OnBadImage::Fail, OnBadImage::Skip] {
        let text = refusal(root.path(), on_bad_image);
        assert!(text.contains("expected an image with a label, got none (train-0.tar: "), "{text}");
        assert!(text.contains("truncated") && !text.contains("skip"), "{text}");
    }
}

#[test]
fn shards_that_are_not_read_are_noted() {
    let root = folder(&good());
    fs::write(root.path().join("test-0.tar"), good()).unwrap();
    fs::write(root.path().join("train-2.tar.gz"), "").unwrap();
    let name_of_compressed = |notes: &[String]| -> Option<String> {
        let note = notes.iter().find(|note| note.starts_with("1 files that are no shards"))?;
        note.rsplit_once(' ').map(|(_, name)| name.to_owned())
    };
    let splits = open(root.path(), &config(OnBadImage::Fail)).unwrap();
    assert_eq!(splits.test.name(), "shards test");
    assert!(splits.test.notes().contains(&"test-*.tar is used, val-*.tar is not".to_owned()));
    assert_eq!(name_of_compressed(splits.train.notes()), Some("train-2.tar.gz".to_owned()));
    // Of a split that is not the one used.
    fs::rename(root.path().join("test-0.tar"), root.path().join("test-0.tar.gz")).unwrap();
    let test = open(root.path(), &config(OnBadImage::Fail)).unwrap().test;
    assert_eq!(test.name(), "shards val");
    assert_eq!(name_of_compressed(test.notes()), Some("test-0.tar.gz".to_owned()));
}

#[test]
fn a_key_with_dots_is_named_and_further_images_of_a_sample_are_none() {
    let image = png(10);
    let further = [("1.left.png", &image[..]), ("1.png", &image), ("1.cls", b"1"), ("._1.png", b"")];
    let root = folder(&tar(&further));
    assert_eq!(opened(root.path())[0], (1, 10));
    let with_dots = [&further[..], &[("2.v1.0001.png", &image[..]), ("2.v1.0001.cls", b"0")]].concat();
    fs::write(root.path().join("train-0.tar"), tar(&with_dots)).unwrap();
    assert!(refusal(root.path(), OnBadImage::Fail).contains("2: expected an image and a label, got 2.v1.0001.png"));
    assert!(notes(root.path()).iter().any(|note| note.contains("got 2.v1.0001.png")));
}

#[test]
fn each_line_of_class_names_is_a_class_and_those_without_images_are_noted() {
    let root = folder(&tar(&[("1.png", &png(10)), ("1.cls", b"3")]));
    assert!(notes(root.path()).contains(&"1 of 4 classes have no image: 2".to_owned()));
    let with = |text: &str| {
        fs::write(root.path().join(CLASSES), text).unwrap();
        open(root.path(), &config(OnBadImage::Fail))
    };
    let splits = with("\u{feff}cat\r\ndog\nelk\nfox\n\n \n").unwrap();
    assert_eq!(splits.train.class_names(), ["cat", "dog", "elk", "fox"]);
    assert!(splits.train.notes().contains(&"1 of 4 classes have no image: elk".to_owned()));
    let text = with("cat\n\nelk\nfox\n").unwrap_err().to_string();
    assert!(text.contains("classes.txt: line 2: expected the name of a class"), "{text}");
    // ImageNet has two kinds of crane.
    let splits = with("crane\ndog\nelk\ncrane").unwrap();
    let of_test = open_test(root.path(), &config(OnBadImage::Fail), 0).unwrap();
    for opened in [splits.train, of_test] {
        assert_eq!(opened.class_names(), ["crane", "dog", "elk", "crane"]);
        assert!(opened.notes().contains(&"1 lines of classes.txt have the name of a line before: crane".to_owned()));
    }
}

#[test]
fn shards_to_test_with_open_alone_with_the_classes_that_are_known() {
    let root = folder(&tar(&[("1.png", &png(10)), ("1.cls", b"3")]));
    let names =
        |num_classes| open_test(root.path(), &config(OnBadImage::Fail), num_classes).unwrap().class_names().len();
    assert_eq!([names(0), names(3)], [4, 3]);
    // The index keeps what it knows of the others.
    fs::write(root.path().join("val-1.tar"), good()).unwrap();
    assert_eq!(names(5), 5);
    assert!(fs::read_to_string(root.path().join(INDEX)).unwrap().contains(" train-0.tar"));
    ["train-0.tar", "train-1.tar"].iter().for_each(|name| fs::remove_file(root.path().join(name)).unwrap());
    assert_eq!([names(0), names(4)], [2, 4]);
}
