//! Files that TensorBoard reads: TFRecords of protocol buffers of the type `Event`.
//!
//! In: scalars, histograms and images, each with a tag and a step. Out: one file per session, to
//! which records are appended.
//! Invariant: a record is appended in one write, so only the last record may be torn. The file of
//! a session sorts after earlier files. Its first events discard earlier events of steps that
//! will be repeated.
//! Source: tensorflow/core/lib/io/record_writer.h, tensorboard/compat/proto/{event,summary}.proto.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use datasets::Picture;

use crate::measure::timer::seconds_since_1970;

/// Start of an event file's name. TensorBoard reads the files of a directory in the order of their
/// names.
const NAME: &str = "events.out.tfevents.";

/// First record, which makes TensorBoard honour `SessionLog`'s START.
const FILE_VERSION: &[u8] = b"brain.Event:2";

/// Number of bars of a histogram; TensorBoard draws 30.
const NUM_BARS: usize = 60;

/// A value under a tag.
#[derive(Debug, Clone)]
pub enum EventValue {
    /// Point of a curve.
    Scalar(f64),
    /// Distribution of numbers.
    Histogram(Histogram),
    /// Image.
    Picture(Picture),
}

/// Number of values in each of several bars of equal width.
///
/// The bars lie between the smallest and the largest value.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    least: f64,
    largest: f64,
    number: f64,
    sum: f64,
    sum_of_squares: f64,
    /// Right end of each bar.
    limits: Vec<f64>,
    counts: Vec<f64>,
}

impl Histogram {
    /// Returns the histogram of `values`; `None` if there are no values, or one is not finite.
    pub fn of(values: &[f32]) -> Option<Self> {
        let mut least = f64::INFINITY;
        let mut largest = f64::NEG_INFINITY;
        let mut sum = 0.0;
        let mut sum_of_squares = 0.0;
        for value in values.iter().map(|value| f64::from(*value)) {
            least = least.min(value);
            largest = largest.max(value);
            sum += value;
            sum_of_squares += value * value;
        }
        if values.is_empty() || !sum.is_finite() {
            return None;
        }
        let num_bars = if least < largest { NUM_BARS } else { 1 };
        let width = (largest - least) / num_bars as f64;
        let mut counts = vec![0.0; num_bars];
        for value in values {
            let bar = ((f64::from(*value) - least) / width) as usize;
            counts[bar.min(num_bars - 1)] += 1.0;
        }
        let limits = (1..=num_bars)
            .map(|bar| least + bar as f64 * width)
            .collect();
        Some(Self {
            least,
            largest,
            number: values.len() as f64,
            sum,
            sum_of_squares,
            limits,
            counts,
        })
    }
}

/// Event file of this session.
#[derive(Debug)]
pub struct EventFile {
    file: File,
}

impl EventFile {
    /// Creates the file in `directory` for a session of this process on `node`.
    ///
    /// The file discards earlier events of `first_step` and later steps.
    pub fn create(directory: &Path, node: &str, first_step: u64) -> Result<Self> {
        records::file::create_folder(directory)?;
        // The clock may have been set back since an earlier session.
        let second = (seconds_since_1970() as u64)
            .max(last_second(directory)?.map_or(0, |second| second.saturating_add(1)));
        let path = directory.join(format!("{NAME}{second:010}.{node}.{}", std::process::id()));
        let file = File::options().append(true).create_new(true).open(&path);
        let mut events = Self {
            file: file.with_context(|| format!("cannot create {}", path.display()))?,
        };
        events.append(&event(seconds_since_1970(), 0, 3, FILE_VERSION))?;
        events.append(&start_of_session(seconds_since_1970(), first_step))?;
        Ok(events)
    }

    /// Returns true if `directory` contains event files.
    ///
    /// # Errors
    /// If the directory exists and cannot be read.
    pub fn is_any_in(directory: &Path) -> Result<bool> {
        Ok(last_second(directory)?.is_some())
    }

    /// Appends the values of a step.
    pub fn add(&mut self, step: u64, values: &[(String, EventValue)]) -> Result<()> {
        self.append(&event(seconds_since_1970(), step, 5, &summary(values).0))
    }

    fn append(&mut self, event: &Message) -> Result<()> {
        self.file
            .write_all(&record(&event.0))
            .context("cannot write an event")
    }
}

/// Returns the second in the name of the last event file of a directory.
fn last_second(directory: &Path) -> Result<Option<u64>> {
    if !directory.exists() {
        return Ok(None);
    }
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let second = |name: String| name.strip_prefix(NAME)?.split('.').next()?.parse().ok();
    Ok(entries
        .flatten()
        .filter_map(|entry| second(entry.file_name().to_string_lossy().into_owned()))
        .max())
}

/// Returns an event as a TFRecord: its length and its bytes, each with a checksum.
fn record(event: &[u8]) -> Vec<u8> {
    let length = (event.len() as u64).to_le_bytes();
    let mut bytes = length.to_vec();
    bytes.extend(masked_checksum(&length));
    bytes.extend(event);
    bytes.extend(masked_checksum(event));
    bytes
}

/// Returns TensorFlow's masked checksum.
fn masked_checksum(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
        .to_le_bytes()
}

fn event(wall_time: f64, step: u64, field: u32, what: &[u8]) -> Message {
    Message::default()
        .double(1, wall_time)
        .integer(2, step)
        .bytes(field, what)
}

/// Returns the event that makes TensorBoard discard earlier events of `first_step` and later steps.
fn start_of_session(wall_time: f64, first_step: u64) -> Message {
    const START: u64 = 1;
    event(
        wall_time,
        first_step,
        7,
        &Message::default().integer(1, START).0,
    )
}

fn summary(values: &[(String, EventValue)]) -> Message {
    values
        .iter()
        .fold(Message::default(), |summary, (tag, value)| {
            let tagged = Message::default().bytes(1, tag.as_bytes());
            let tagged = match value {
                EventValue::Scalar(value) => tagged.float(2, *value as f32),
                EventValue::Picture(picture) => tagged.bytes(4, &image(picture).0),
                EventValue::Histogram(histogram) => {
                    tagged.bytes(5, &histogram_message(histogram).0)
                }
            };
            summary.bytes(1, &tagged.0)
        })
}

fn image(Picture { png, shape }: &Picture) -> Message {
    Message::default()
        .integer(1, shape.height as u64)
        .integer(2, shape.width as u64)
        .integer(3, shape.channels as u64)
        .bytes(4, png)
}

fn histogram_message(histogram: &Histogram) -> Message {
    Message::default()
        .double(1, histogram.least)
        .double(2, histogram.largest)
        .double(3, histogram.number)
        .double(4, histogram.sum)
        .double(5, histogram.sum_of_squares)
        .doubles(6, &histogram.limits)
        .doubles(7, &histogram.counts)
}

/// A protocol buffer, written field by field. A number 0 is omitted, because 0 is the default.
#[derive(Debug, Default)]
struct Message(Vec<u8>);

impl Message {
    fn integer(self, field: u32, value: u64) -> Self {
        if value == 0 {
            self
        } else {
            self.key(field, 0).varint(value)
        }
    }

    fn double(self, field: u32, value: f64) -> Self {
        if value == 0.0 {
            self
        } else {
            self.key(field, 1).raw(&value.to_le_bytes())
        }
    }

    /// Writes a number, even 0: one of several alternative fields must be present.
    fn float(self, field: u32, value: f32) -> Self {
        self.key(field, 5).raw(&value.to_le_bytes())
    }

    fn bytes(self, field: u32, value: &[u8]) -> Self {
        self.key(field, 2).varint(value.len() as u64).raw(value)
    }

    fn doubles(self, field: u32, values: &[f64]) -> Self {
        let packed: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        self.bytes(field, &packed)
    }

    fn key(self, field: u32, wire_type: u32) -> Self {
        self.varint(u64::from((field << 3) | wire_type))
    }

    fn varint(mut self, mut value: u64) -> Self {
        while value > 0x7f {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
        self
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datasets::ImageShape;

    fn hexadecimal(event: &Message) -> String {
        record(&event.0)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }

    fn of_values(step: u64, values: &[(&str, EventValue)]) -> Message {
        let values: Vec<_> = values
            .iter()
            .map(|(tag, value)| ((*tag).to_owned(), value.clone()))
            .collect();
        event(1.5, step, 5, &summary(&values).0)
    }

    /// The expected bytes were written by TensorBoard 2.21.0:
    /// `RecordWriter(file).write(event.SerializeToString())` of
    /// tensorboard.summary.writer.record_writer. `event` is an `Event` of
    /// tensorboard.compat.proto.event_pb2 with wall_time 1.5.
    #[test]
    fn records_are_those_of_tensorboards_own_writer() {
        assert_eq!(
            hexadecimal(&event(1.5, 0, 3, FILE_VERSION)),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c"
        );
        assert_eq!(
            hexadecimal(&start_of_session(1.5, 301)),
            "100000000000000095fbfe1809000000000000f83f10ad023a020801d17949d4"
        );
        let scalars = [
            ("train/loss", EventValue::Scalar(0.25)),
            ("zero", EventValue::Scalar(0.0)),
        ];
        assert_eq!(
            hexadecimal(&of_values(300, &scalars)),
            "2e00000000000000c5cb57fa09000000000000f83f10ac022a200a110a0a747261696e2f6c6f7373150000803e0a0b0a047a65726f15\
             00000000f9441703"
        );
        let shape = ImageShape {
            height: 1,
            width: 2,
            channels: 3,
        };
        let picture = EventValue::Picture(Picture {
            png: b"\x89PNG".to_vec(),
            shape,
        });
        assert_eq!(
            hexadecimal(&of_values(0, &[("batch", picture)])),
            "220000000000000078113dfd09000000000000f83f2a170a150a056261746368220c080110021803220489504e47fcd992a0"
        );
        let histogram = Histogram {
            least: -1.0,
            largest: 3.0,
            number: 3.0,
            sum: 2.0,
            sum_of_squares: 10.0,
            limits: vec![0.0, 1.0, 2.0, 3.0],
            counts: vec![2.0, 0.0, 0.0, 1.0],
        };
        assert_eq!(
            hexadecimal(&of_values(300, &[("w", EventValue::Histogram(histogram))])),
            "860000000000000070011d5c09000000000000f83f10ac022a780a760a01772a7109000000000000f0bf110000000000000840190000\
             00000000084021000000000000004029000000000000244032200000000000000000000000000000f03f000000000000004000000000\
             000008403a20000000000000004000000000000000000000000000000000000000000000f03f3b5beb00"
        );
    }

    #[test]
    fn a_histogram_counts_every_number_and_nothing_that_is_none() {
        let histogram = Histogram::of(&[-1.0, 0.0, 0.0, 2.0]).unwrap();
        assert_eq!(
            (histogram.least, histogram.largest, histogram.sum),
            (-1.0, 2.0, 1.0)
        );
        assert_eq!(histogram.counts.iter().sum::<f64>(), 4.0);
        assert_eq!((histogram.counts[20], histogram.counts[59]), (2.0, 1.0));
        assert_eq!(Histogram::of(&[3.0, 3.0]).unwrap().counts, [2.0]);
        assert_eq!(
            (Histogram::of(&[]), Histogram::of(&[1.0, f32::NAN])),
            (None, None)
        );
    }

    #[test]
    fn a_sessions_file_is_read_after_those_before_it() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!EventFile::is_any_in(&folder.path().join("none")).unwrap());
        let later = format!("{NAME}9000000000.other.7");
        fs::write(folder.path().join(&later), "").unwrap();
        EventFile::create(folder.path(), "n1", 0).unwrap();
        let mut names: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names[0], *later);
        assert!(
            names[1]
                .to_string_lossy()
                .starts_with("events.out.tfevents.9000000001.n1."),
            "{names:?}"
        );
    }

    #[test]
    fn a_foreign_file_of_the_last_second_there_is_does_not_keep_a_session_from_its_own() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join(format!("{NAME}{}.other.1", u64::MAX)),
            "",
        )
        .unwrap();
        EventFile::create(folder.path(), "node", 0).unwrap();
        assert_eq!(last_second(folder.path()).unwrap(), Some(u64::MAX));
    }
}
