//! Tests of downloads from a small server on 127.0.0.1.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use tar::EntryType;
use tempfile::TempDir;

use super::unpack::tests::{entry, tar};
use super::*;
use crate::memory::to_hex;
use sha2::{Digest, Sha256};

/// Behaviour of the server.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    /// Sends the requested range.
    Whole,
    /// Ignores ranges.
    WithoutRanges,
    /// Ends the connection after this many bytes of the body.
    CutAfter(usize),
    NotFound,
}

/// A server that gives one answer to each request in turn.
struct Server {
    url: String,
    /// Value of each request's Range header. Empty without a header.
    ranges: Arc<Mutex<Vec<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(content: Vec<u8>, answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/archive.tar.gz", listener.local_addr().unwrap());
        let ranges = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&ranges);
        let thread = thread::spawn(move || {
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let range = respond(stream, &content, answer);
                seen.lock().unwrap().push(range);
            }
        });
        Self {
            url,
            ranges,
            thread: Some(thread),
        }
    }

    /// Waits until all answers are sent, and returns the requested ranges.
    fn finish(mut self) -> Vec<String> {
        self.thread.take().unwrap().join().unwrap();
        self.ranges.lock().unwrap().clone()
    }
}

fn respond(mut stream: TcpStream, content: &[u8], answer: Answer) -> String {
    let mut range = String::new();
    for line in BufReader::new(&stream).lines() {
        let line = line.unwrap();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(": ")
            && name.eq_ignore_ascii_case("range")
        {
            range = value.into();
        }
    }
    let start: usize = range
        .strip_prefix("bytes=")
        .and_then(|range| range.strip_suffix('-'))
        .map_or(0, |start| start.parse().unwrap());
    let start = if answer == Answer::WithoutRanges {
        0
    } else {
        start
    };
    let (status, extra) = match answer {
        Answer::NotFound => ("404 Not Found", String::new()),
        _ if start >= content.len() => ("416 Range Not Satisfiable", String::new()),
        _ if start > 0 => {
            let last = content.len() - 1;
            let len = content.len();
            (
                "206 Partial Content",
                format!("Content-Range: bytes {start}-{last}/{len}\r\n"),
            )
        }
        _ => ("200 OK", String::new()),
    };
    let body = if status.starts_with('2') {
        &content[start..]
    } else {
        &[]
    };
    let len = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\n{extra}Connection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let sent = match answer {
        Answer::CutAfter(len) => &body[..len],
        _ => body,
    };
    stream.write_all(sent).unwrap();
    range
}

/// Returns a gzipped archive with these paths and contents.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let entries = files
        .iter()
        .map(|(path, content)| entry(path, EntryType::Regular, content));
    tar(&entries.collect::<Vec<_>>())
}

/// Returns a small CIFAR-100 with one record per file.
fn cifar_100() -> Vec<u8> {
    // The bytes differ, because the compressed archive of equal bytes would be too short.
    let record: Vec<u8> = (0..3074u32)
        .map(|i| if i < 2 { 7 } else { (i * i / 7) as u8 })
        .collect();
    archive(&[
        ("cifar-100-binary/train.bin", &record),
        ("./cifar-100-binary/test.bin", &record),
    ])
}

fn agent() -> Agent {
    // The test uses no proxy, independent of the environment.
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None);
    config.build().new_agent()
}

fn source(url: &str, content: &[u8]) -> Source {
    Source {
        url: url.into(),
        sha256: to_hex(&Sha256::digest(content)),
        cifar: Cifar::Hundred,
    }
}

fn run(source: &Source, dir: &TempDir) -> Result<PathBuf, DatasetError> {
    obtain(&agent(), source, dir.path(), &mut |_, _| {})
}

/// Returns the names in a folder, sorted.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn an_archive_is_fetched_checked_and_unpacked() {
    let content = cifar_100();
    let server = Server::start(content.clone(), vec![Answer::Whole]);
    let dir = tempfile::tempdir().unwrap();
    let mut calls = Vec::new();
    let source = source(&server.url, &content);
    let folder = obtain(&agent(), &source, dir.path(), &mut |done, total| {
        calls.push((done, total));
    })
    .unwrap();
    assert_eq!(folder, dir.path().join("cifar-100-binary"));
    assert_eq!(names(dir.path()), ["cifar-100-binary"]);
    let splits = crate::cifar::open(dir.path(), Cifar::Hundred).unwrap();
    assert_eq!(
        (splits.train.len(), splits.evaluated().unwrap().label(0)),
        (1, 7)
    );
    let len = content.len() as u64;
    assert_eq!(calls.first(), Some(&(0, Some(len))));
    assert_eq!(calls.last(), Some(&(len, Some(len))));
    // The server ends after one answer, so an existing file is not downloaded again.
    assert_eq!(server.finish(), [""]);
    assert_eq!(run(&source, &dir).unwrap(), folder);
}

#[test]
fn an_interrupted_download_continues_where_it_stopped() {
    let content = cifar_100();
    let server = Server::start(content.clone(), vec![Answer::CutAfter(100), Answer::Whole]);
    let dir = tempfile::tempdir().unwrap();
    let source = source(&server.url, &content);
    let text = run(&source, &dir).unwrap_err().to_string();
    assert!(
        text.contains("Run it again to continue after 100 bytes"),
        "{text}"
    );
    run(&source, &dir).unwrap();
    assert_eq!(server.finish(), ["", "bytes=100-"]);
    assert_eq!(names(dir.path()), ["cifar-100-binary"]);
}

#[test]
fn a_server_without_ranges_sends_all_again() {
    let content = cifar_100();
    let answers = vec![Answer::CutAfter(100), Answer::WithoutRanges];
    let server = Server::start(content.clone(), answers);
    let dir = tempfile::tempdir().unwrap();
    let source = source(&server.url, &content);
    run(&source, &dir).unwrap_err();
    run(&source, &dir).unwrap();
    assert_eq!(server.finish(), ["", "bytes=100-"]);
}

#[test]
fn a_whole_file_from_an_earlier_try_is_used() {
    let content = cifar_100();
    let server = Server::start(content.clone(), vec![Answer::Whole]);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("cifar-100-binary.tar.gz.part"), &content).unwrap();
    run(&source(&server.url, &content), &dir).unwrap();
    assert_eq!(server.finish(), [format!("bytes={}-", content.len())]);
}

#[test]
fn other_bytes_than_the_published_ones_are_refused_and_removed() {
    let content = cifar_100();
    let server = Server::start(content, vec![Answer::Whole]);
    let dir = tempfile::tempdir().unwrap();
    let text = run(&source(&server.url, b"other"), &dir)
        .unwrap_err()
        .to_string();
    assert!(text.contains("expected sha256 "), "{text}");
    assert!(names(dir.path()).is_empty());
    server.finish();
    let server = Server::start(cifar_100(), vec![Answer::Whole]);
    let new = dir.path().join("new");
    obtain(
        &agent(),
        &source(&server.url, b"other"),
        &new,
        &mut |_, _| {},
    )
    .unwrap_err();
    assert!(
        !new.exists(),
        "a folder that is empty and new does not stay"
    );
    server.finish();
}

#[test]
fn archives_that_escape_or_lack_files_leave_nothing() {
    let record = [0; 3074];
    let train: (&str, &[u8]) = ("cifar-100-binary/train.bin", &record);
    for (files, text) in [
        (vec![train, ("../evil.bin", &record[..])], "got ../evil.bin"),
        (
            vec![train, ("cifar-100-binary/../evil.bin", &record[..])],
            "evil.bin",
        ),
        (vec![train, ("/evil.bin", &record[..])], "got /evil.bin"),
        (vec![train], "expected test.bin"),
    ] {
        let content = archive(&files);
        let server = Server::start(content.clone(), vec![Answer::Whole]);
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        let error = obtain(
            &agent(),
            &source(&server.url, &content),
            &dir,
            &mut |_, _| {},
        );
        let message = error.unwrap_err().to_string();
        assert!(message.contains(text), "{message}");
        assert_eq!(names(root.path()), ["data"]);
        assert_eq!(names(&dir), ["cifar-100-binary.tar.gz.part"]);
        server.finish();
    }
}

#[test]
fn failures_of_the_network_name_the_address_and_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(Vec::new(), vec![Answer::NotFound]);
    let text = run(&source(&server.url, b""), &dir)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("the server answered with status 404"),
        "{text}"
    );
    let url = server.url.clone();
    server.finish();
    // The server no longer listens at this address.
    let text = run(&source(&url, b""), &dir).unwrap_err().to_string();
    assert!(
        text.contains(&url) && text.contains("Check the network"),
        "{text}"
    );
    let new = dir.path().join("new");
    obtain(&agent(), &source(&url, b""), &new, &mut |_, _| {}).unwrap_err();
    assert!(
        !new.exists() && dir.path().exists(),
        "a folder that is empty and new does not stay"
    );
}

#[test]
fn more_bytes_than_an_archive_has_are_not_fetched() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/archive.tar.gz", listener.local_addr().unwrap());
    let thread = thread::spawn(move || {
        for head in ["Content-Length: 1000000000000\r\n", ""] {
            let (mut stream, _) = listener.accept().unwrap();
            stream
                .write_all(format!("HTTP/1.1 200 OK\r\n{head}Connection: close\r\n\r\n").as_bytes())
                .unwrap();
            // Without a length the body continues until the reader closes the connection.
            while head.is_empty() && stream.write_all(&[0; 1 << 16]).is_ok() {}
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let source = source(&url, b"");
    let text = run(&source, &dir).unwrap_err().to_string();
    assert!(
        text.contains("expected at most 200000000 bytes, got 1000000000000"),
        "{text}"
    );
    let text = run(&source, &dir).unwrap_err().to_string();
    assert!(
        text.contains("expected at most 200000000 bytes, got 2000"),
        "{text}"
    );
    assert!(names(dir.path()).is_empty());
    thread.join().unwrap();
}
