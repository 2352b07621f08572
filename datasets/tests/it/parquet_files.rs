//! Parquet files that `make.py` wrote as Hugging Face writes them.

use std::fs::{self, File};
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use datasets::image_folder;
use datasets::parquet_files::{is_reading, open, open_split};
use datasets::tar_shards;
use datasets::{DatasetError, DatasetSplits, ImageDataset, OnBadImage, ReadConfig, Sizing};
use parquet::basic::Compression;
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FloatType, Int32Type, Int64Type,
};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

const SIZING: Sizing = Sizing {
    size: 12,
    shorter_side: Some(14),
};

fn images() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images")
}

fn one_thread() -> ReadConfig {
    ReadConfig {
        num_threads: 1,
        ..ReadConfig::new(SIZING)
    }
}

fn opened(dir: &Path) -> Result<DatasetSplits, DatasetError> {
    open(dir, &one_thread())
}

/// Returns the label and the pixels of each sample.
fn samples(dataset: &dyn ImageDataset) -> Vec<(usize, Vec<u8>)> {
    let sample = |index| {
        let mut pixels = vec![0; 12 * 12 * 3];
        dataset.read_image(index, &mut pixels).unwrap();
        (dataset.label(index), pixels)
    };
    (0..dataset.len()).map(sample).collect()
}

#[test]
fn samples_of_all_files_and_row_groups_are_those_of_a_folder_and_of_its_shards() {
    let splits = opened(&images().join("parquet")).unwrap();
    assert_eq!(
        (splits.train.len(), splits.evaluated().unwrap().len()),
        (8, 2)
    );
    assert_eq!(
        (splits.train.name(), splits.evaluated().unwrap().name()),
        ("parquet train", "parquet validation")
    );
    assert_eq!(splits.train.class_names(), ["cat", "dog"]);
    let labels: Vec<usize> = (0..8).map(|index| splits.train.label(index)).collect();
    assert_eq!(labels, [0, 0, 0, 0, 1, 1, 1, 1]);

    let names = [
        "cmyk",
        "grey",
        "progressive",
        "turned",
        "resize/rows_420",
        "resize/rows_444",
        "resize/rows_grey",
        "resize/rows_restarts",
    ];
    let folder = tempfile::tempdir().unwrap();
    let shards = tempfile::tempdir().unwrap();
    for (number, name) in names.iter().enumerate() {
        for split in ["train", "val"] {
            let class = folder.path().join(split).join(["cat", "dog"][number / 4]);
            fs::create_dir_all(&class).unwrap();
            fs::copy(
                images().join(format!("{name}.jpg")),
                class.join(format!("{number}.jpg")),
            )
            .unwrap();
        }
    }
    let expected = samples(&*splits.train);
    let of_folder = image_folder::open(folder.path(), &ReadConfig::new(SIZING))
        .unwrap()
        .train;
    assert_eq!(samples(&*of_folder), expected);
    tar_shards::write(folder.path(), shards.path(), 3, &mut |_| true).unwrap();
    let how = one_thread();
    assert_eq!(
        samples(&*tar_shards::open(shards.path(), &how).unwrap().train),
        expected
    );
}

#[test]
fn samples_are_read_in_any_order() {
    let train = opened(&images().join("parquet")).unwrap().train;
    let expected = samples(&*train);
    for index in [7, 0, 3, 3, 6, 1] {
        let mut pixels = vec![0; 12 * 12 * 3];
        train.read_image(index, &mut pixels).unwrap();
        assert_eq!(pixels, expected[index].1, "{index}");
    }
}

#[test]
fn threads_that_read_one_file_at_once_get_their_own_samples() {
    let train = opened(&images().join("parquet")).unwrap().train;
    let expected = samples(&*train);
    thread::scope(|scope| {
        for first in 0..8 {
            let train = &train;
            let expected = &expected;
            scope.spawn(move || {
                let mut pixels = vec![0; 12 * 12 * 3];
                for index in (0..400).map(|step| (first + 3 * step) % 8) {
                    train.read_image(index, &mut pixels).unwrap();
                    assert_eq!(pixels, expected[index].1, "{index}");
                }
            });
        }
    });
}

#[test]
fn a_split_opens_alone_and_none_is_taken_for_another() {
    let folder = tempfile::tempdir().unwrap();
    for split in ["validation", "test"] {
        let from = images().join("parquet/validation-00000-of-00001.parquet");
        fs::copy(
            from,
            folder
                .path()
                .join(format!("{split}-00000-of-00001.parquet")),
        )
        .unwrap();
    }
    let how = one_thread();
    let expected = samples(
        &**opened(&images().join("parquet"))
            .unwrap()
            .evaluated()
            .unwrap(),
    );
    for (name, called) in [
        ("val", "parquet validation"),
        ("validation", "parquet validation"),
        ("test", "parquet test"),
    ] {
        let split = open_split(folder.path(), name, None, &how).unwrap();
        assert_eq!((split.name(), samples(&*split)), (called, expected.clone()));
        assert_eq!(split.class_names(), ["cat", "dog"]);
    }
}

#[test]
fn damaged_and_missing_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = opened(folder.path()).unwrap_err().to_string();
    assert!(
        text.contains("files of the split train not found"),
        "{text}"
    );
    for name in [
        "train-00000-of-00002",
        "train-00001-of-00002",
        "validation-00000-of-00001",
    ] {
        let name = format!("{name}.parquet");
        fs::copy(
            images().join("parquet").join(&name),
            folder.path().join(&name),
        )
        .unwrap();
    }
    let path = folder.path().join("train-00001-of-00002.parquet");
    let bytes = fs::read(&path).unwrap();
    for len in [0, 3, 100, bytes.len() / 2, bytes.len() - 1] {
        fs::write(&path, &bytes[..len]).unwrap();
        let text = opened(folder.path()).unwrap_err().to_string();
        assert!(text.contains("train-00001"), "{len}: {text}");
    }
    // The footer does not cover the bytes of an image: their damage is found when the image is
    // read.
    let mut changed = bytes.clone();
    changed[200..4000].fill(7);
    fs::write(&path, changed).unwrap();
    let train = opened(folder.path()).unwrap().train;
    let text = train
        .read_image(5, &mut [0; 12 * 12 * 3])
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("train-00001") && text.contains("row group 0 row 0"),
        "{text}"
    );
}

/// Writes the values of a column.
fn put<T: DataType>(column: &mut SerializedColumnWriter<'_>, values: &[T::T]) {
    column.typed::<T>().write_batch(values, None, None).unwrap();
}

/// Writes row groups with the same image in every row. All groups but the first take few bytes.
fn write_alike(path: &Path, num_groups: usize, num_rows: usize) {
    let schema =
        "message m { required group image { required binary bytes; } required int64 label; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, Arc::default()).unwrap();
    for number in 0..num_groups {
        let image = ByteArray::from(vec![7; if number == 0 { num_rows } else { 1 }]);
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        put::<ByteArrayType>(&mut column, &vec![image; num_rows]);
        column.close().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        put::<Int64Type>(&mut column, &vec![0; num_rows]);
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

#[test]
fn files_to_test_with_that_name_no_classes_have_the_names_of_those_to_train_on() {
    let folder = tempfile::tempdir().unwrap();
    write_alike(&folder.path().join("test-0.parquet"), 1, 10);
    let train = folder.path().join("train-0.parquet");
    fs::copy(
        images().join("parquet/train-00000-of-00002.parquet"),
        &train,
    )
    .unwrap();
    let how = one_thread();
    let names = |classes: Option<&[String]>| {
        open_split(folder.path(), "test", classes, &how)
            .unwrap()
            .class_names()
            .to_vec()
    };
    let three = ["dog", "emu", "cat"].map(str::to_owned);
    assert_eq!(
        (names(None), names(Some(&three))),
        (vec!["cat".to_owned(), "dog".to_owned()], three.to_vec())
    );
    assert_eq!(
        open_split(folder.path(), "test", Some(&three), &how)
            .unwrap()
            .label(0),
        2,
        "by the name cat"
    );
    fs::write(train, "no file of columns").unwrap();
    assert_eq!([names(None).len(), names(Some(&three)).len()], [2, 3]);
}

/// A function that writes the column of labels.
type WriteLabels<'a> = &'a dyn Fn(&mut SerializedColumnWriter<'_>);

/// Writes a file with rows of images and labels. `schema` names their columns in this order.
fn write_rows(
    path: &Path,
    schema: &str,
    compression: Compression,
    num_rows: usize,
    write: WriteLabels<'_>,
) {
    let image = fs::read(images().join("grey.jpg")).unwrap();
    let schema = Arc::new(parse_message_type(&format!("message m {{ {schema} }}")).unwrap());
    let properties = Arc::new(
        WriterProperties::builder()
            .set_compression(compression)
            .build(),
    );
    let mut writer =
        SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let images = vec![ByteArray::from(image); num_rows];
    put::<ByteArrayType>(&mut column, &images);
    column.close().unwrap();
    if let Some(mut column) = group.next_column().unwrap() {
        write(&mut column);
        column.close().unwrap();
    }
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn labels_of_any_type_in_columns_of_any_usual_name_and_compression_are_those_of_the_rows() {
    let texts = ["dog", "cat", "dog"].map(ByteArray::from);
    let int64 = |column: &mut SerializedColumnWriter<'_>| {
        put::<Int64Type>(column, &[1, 0, 1]);
    };
    let cases: [(&str, Compression, WriteLabels<'_>); 9] = [
        (
            "required group image { required binary bytes; } required int32 label (INTEGER(8, false));",
            Compression::UNCOMPRESSED,
            &|column| {
                put::<Int32Type>(column, &[1, 0, 1]);
            },
        ),
        (
            "required group img { required binary bytes; } required float labels;",
            Compression::SNAPPY,
            &|column| {
                put::<FloatType>(column, &[1.0, 0.0, 1.0]);
            },
        ),
        (
            "required binary image; required double fine_label;",
            Compression::LZ4_RAW,
            &|column| {
                put::<DoubleType>(column, &[1.0, 0.0, 1.0]);
            },
        ),
        (
            "required binary img; required boolean label;",
            Compression::UNCOMPRESSED,
            &|column| {
                put::<BoolType>(column, &[true, false, true]);
            },
        ),
        (
            "required binary image; required binary label (STRING);",
            Compression::UNCOMPRESSED,
            &|column| {
                put::<ByteArrayType>(column, &texts);
            },
        ),
        (
            "required binary image; required int64 label;",
            Compression::GZIP(Default::default()),
            &int64,
        ),
        (
            "required binary image; required int64 label;",
            Compression::ZSTD(Default::default()),
            &int64,
        ),
        (
            "required binary image; required int64 label;",
            Compression::BROTLI(Default::default()),
            &int64,
        ),
        (
            "required binary image; optional int64 label;",
            Compression::LZ4,
            &|column| {
                column
                    .typed::<Int64Type>()
                    .write_batch(&[1, 0, 1], Some(&[1, 1, 1]), None)
                    .unwrap();
            },
        ),
    ];
    for (schema, compression, write) in cases {
        let folder = tempfile::tempdir().unwrap();
        write_rows(
            &folder.path().join("train-0.parquet"),
            schema,
            compression,
            3,
            write,
        );
        let train = opened(folder.path()).unwrap().train;
        let labels: Vec<usize> = samples(&*train)
            .into_iter()
            .map(|(label, _)| label)
            .collect();
        assert_eq!(labels, [1, 0, 1], "{schema} {compression}");
        let expected = if schema.contains("STRING") {
            ["cat", "dog"]
        } else {
            ["0", "1"]
        };
        assert_eq!(train.class_names(), expected, "{schema}");
    }
}

#[test]
fn rows_without_a_label_are_refused_or_skipped_and_a_split_of_them_is_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let columns = "required binary image; optional int64 label;";
    let write = |name: &str, values: &[i64], present: &[i16]| {
        let column = |column: &mut SerializedColumnWriter<'_>| {
            column
                .typed::<Int64Type>()
                .write_batch(values, Some(present), None)
                .unwrap();
        };
        write_rows(
            &folder.path().join(name),
            columns,
            Compression::UNCOMPRESSED,
            present.len(),
            &column,
        );
    };
    let open_as = |on_bad_image| {
        open(
            folder.path(),
            &ReadConfig {
                on_bad_image,
                ..one_thread()
            },
        )
    };
    write("train-0.parquet", &[1, -1, 0], &[1, 1, 0, 1]);
    write("val-0.parquet", &[0], &[1]);
    let text = open_as(OnBadImage::Fail).unwrap_err().to_string();
    assert!(
        text.contains("row group 0 row 1: no label") && text.contains("row 2: no label"),
        "{text}"
    );
    let train = open_as(OnBadImage::Skip).unwrap().train;
    assert_eq!(
        samples(&*train)
            .iter()
            .map(|(label, _)| *label)
            .collect::<Vec<_>>(),
        [1, 0]
    );
    assert!(
        train.notes()[0].starts_with("skipped 2 samples: train-0.parquet/row group 0 row 1"),
        "{:?}",
        train.notes()
    );
    // The labels may be null, -1 or missing.
    write("train-0.parquet", &[1, 0], &[1, 1]);
    for number in 0..3 {
        match number {
            0 => write("test-0.parquet", &[], &[0, 0]),
            1 => write("test-0.parquet", &[-1, -1], &[1, 1]),
            _ => write_rows(
                &folder.path().join("test-0.parquet"),
                "required binary image;",
                Compression::UNCOMPRESSED,
                2,
                &|_| (),
            ),
        }
        let splits = open_as(OnBadImage::Fail).unwrap();
        assert!(splits.test.is_none() && splits.val.is_some(), "{number}");
        assert!(
            splits.notes[0].contains("none of 2 images has a label"),
            "{:?}",
            splits.notes
        );
    }
}

#[test]
fn row_groups_together_have_no_more_rows_than_the_file_has_bytes() {
    const NUM_ROWS: usize = 5000;
    let folder = tempfile::tempdir().unwrap();
    let train = folder.path().join("train-0.parquet");
    for (num_groups, is_read) in [(1, true), (4, false)] {
        write_alike(&train, num_groups, NUM_ROWS);
        fs::copy(&train, folder.path().join("val-0.parquet")).unwrap();
        let num_bytes = fs::metadata(&train).unwrap().len() as usize;
        assert!(
            (NUM_ROWS..4 * NUM_ROWS).contains(&num_bytes),
            "each group's claim alone is allowed: {num_bytes} bytes"
        );
        match opened(folder.path()) {
            Ok(splits) => assert!(is_read && splits.train.len() == NUM_ROWS),
            Err(error) => assert!(
                !is_read && error.to_string().contains("got 20000"),
                "{error}"
            ),
        }
    }
}

#[test]
fn a_panic_hook_can_tell_the_librarys_panics_from_others() {
    static WAS_TOLD: AtomicBool = AtomicBool::new(false);
    let folder = tempfile::tempdir().unwrap();
    let damaged = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../trainer/fuzz/corpus/parquet/crash-length-beyond-page");
    for name in ["train-0.parquet", "val-0.parquet"] {
        fs::copy(&damaged, folder.path().join(name)).unwrap();
    }
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |panic| match is_reading() {
        true => WAS_TOLD.store(true, Ordering::SeqCst),
        false => hook(panic),
    }));
    let train = opened(folder.path()).unwrap().train;
    let read = |index| {
        train
            .read_image(index, &mut [0; 12 * 12 * 3])
            .unwrap_err()
            .to_string()
    };
    let told: Vec<String> = (0..train.len()).map(read).collect();
    let is_named = |text: &String| text.contains("train-0.parquet") && text.contains("panicked");
    assert!(told.iter().any(is_named), "{told:?}");
    assert!(WAS_TOLD.load(Ordering::SeqCst) && !is_reading());
}
