//! Tests of the JPEG decoder with files of Pillow and `cjpeg`.

mod codes;
mod families;

use sha2::{Digest, Sha256};

use super::header::Colours;
use super::huffman::{Class, Table};
use super::*;
use crate::memory::to_hex;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images/resize");

/// Returns the name, the bytes and the SHA-256 of Pillow's pixels, for each file that the decoder
/// reads.
fn files() -> Vec<(String, Vec<u8>, String)> {
    let digests = std::fs::read_to_string(format!("{FOLDER}/rows.txt")).unwrap();
    let mut files = Vec::new();
    for line in digests.lines() {
        let (name, digest) = line.split_once(' ').unwrap();
        files.push((
            name.to_owned(),
            std::fs::read(format!("{FOLDER}/rows_{name}.jpg")).unwrap(),
            digest.to_owned(),
        ));
    }
    files
}

fn all(header: &Header) -> CropBox {
    let [width, height] = header.size();
    CropBox {
        left: 0,
        top: 0,
        width,
        height,
    }
}

#[test]
fn pixels_are_those_of_pillow_bit_by_bit() {
    let mut num_decoded = 0;
    let mut scratch = Scratch::default();
    for (name, bytes, digest) in files() {
        let header = Header::read(&bytes).unwrap();
        let pixels = header.decode(&bytes, all(&header), &mut scratch).unwrap();
        assert_eq!(to_hex(&Sha256::digest(pixels)), digest, "{name}");
        num_decoded += 1;
    }
    assert_eq!(num_decoded, 19);
}

#[test]
fn a_part_has_the_pixels_of_the_whole_whatever_the_memory_held() {
    for (name, bytes, _) in files() {
        let header = Header::read(&bytes).unwrap();
        let whole = header
            .decode(&bytes, all(&header), &mut Scratch::default())
            .unwrap()
            .to_vec();
        let [width, height] = header.size();
        let mut scratch = Scratch::default();
        for case in 0..200 {
            let left = case * 7 % width;
            let top = case * 11 % height;
            let part = CropBox {
                left,
                top,
                width: case % (width - left) + 1,
                height: case / 3 % (height - top) + 1,
            };
            header.decode(&bytes, all(&header), &mut scratch).unwrap();
            scratch.planes.fill(case as u8);
            scratch.rgb.fill(77);
            let pixels = header.decode(&bytes, part, &mut scratch).unwrap();
            for row in part.top..part.top + part.height {
                let at = |column: u32| 3 * (row * width + column) as usize;
                let columns = at(part.left)..at(part.left + part.width);
                assert_eq!(
                    pixels[columns.clone()],
                    whole[columns],
                    "{name}: {part:?}, row {row}"
                );
            }
        }
    }
}

#[test]
fn a_file_with_any_byte_changed_is_decoded_or_refused() {
    let mut scratch = Scratch::default();
    for (name, bytes, _) in files() {
        let mut num_refused = 0;
        for place in 0..bytes.len() {
            for change in [0xFF, 0x01, 0x80] {
                let mut changed = bytes.clone();
                changed[place] ^= change;
                // Files with a changed size are decoded, too, unless they are too large for a test.
                let header = Header::read(&changed)
                    .ok()
                    .filter(|header| header.size.iter().product::<usize>() < 1 << 18);
                let pixels = header.and_then(|header| {
                    header
                        .decode(&changed, all(&header), &mut scratch)
                        .ok()
                        .map(<[u8]>::len)
                });
                num_refused += usize::from(pixels.is_none());
            }
        }
        assert!(num_refused > 100, "{name}: {num_refused}");
    }
}

#[test]
fn a_file_that_ends_anywhere_is_refused() {
    for (name, bytes, _) in files() {
        for len in 0..bytes.len() {
            let header = Header::read(&bytes[..len]);
            let pixels = header.is_ok_and(|header| {
                header
                    .decode(&bytes[..len], all(&header), &mut Scratch::default())
                    .is_ok()
            });
            assert!(!pixels, "{name}: {len} bytes");
        }
    }
}

#[test]
fn kinds_that_pillow_refuses_are_refused_by_name() {
    let bytes = std::fs::read(format!("{FOLDER}/rows_420.jpg")).unwrap();
    let frame = bytes
        .windows(2)
        .position(|pair| pair == [0xFF, 0xC0])
        .unwrap();
    for (place, value, reason) in [
        (
            1,
            0xC3,
            "JPEG process 3 is not supported (lossless or hierarchical)",
        ),
        (4, 12, "12 bits a value are not supported (expected 8)"),
        (6, 0, "the frame has 45x0 pixels, 3 components"),
        (11, 0x32, "sampling [2, 1] with [3, 2] is not supported"),
        (10, b'X', "the header of a scan contradicts the frame"),
        (12, 9, "quantization table 9 is missing"),
    ] {
        let mut changed = bytes.clone();
        changed[frame + place] = value;
        if place == 6 {
            changed[frame + 5] = 0;
        }
        if place == 11 {
            // The brightness has three samples for every two samples of a colour.
            changed[frame + 14] = 0x21;
        }
        let decoded = Header::read(&changed).and_then(|header| {
            header
                .decode(&changed, all(&header), &mut Scratch::default())
                .map(<[u8]>::len)
        });
        assert!(
            decoded.unwrap_err().contains(reason),
            "byte {place} of the frame"
        );
    }
}

#[test]
fn jfif_then_adobe_then_names_decide_on_colours_as_in_libjpeg() {
    let read = |name: &str| std::fs::read(format!("{FOLDER}/{name}")).unwrap();
    let is_ycc = |bytes: &[u8]| Header::read(bytes).unwrap().colours != Colours::Rgb;
    let jfif = read("rows_420.jpg");
    let mut plain = jfif.clone();
    let marker = plain
        .windows(5)
        .position(|bytes| bytes == b"JFIF\0")
        .unwrap();
    plain[marker] = b'X';
    let by_adobe = |bytes: &[u8], transform| {
        let mut marked = bytes.to_vec();
        marked.splice(2..2, *b"\xFF\xEE\x00\x0EAdobe\x00\x64\x00\x00\x00\x00\x00");
        marked[17] = transform;
        marked
    };
    assert!(
        is_ycc(&by_adobe(&jfif, 0))
            && is_ycc(&by_adobe(&plain, 1))
            && !is_ycc(&by_adobe(&plain, 0))
    );
    let grey = read("../grey.jpg");
    assert!(is_ycc(&grey) && is_ycc(&by_adobe(&grey, 0)));
    let mut named = plain;
    assert!(is_ycc(&named));
    for start in [0xC0, 0xDA] {
        let frame = named
            .windows(2)
            .position(|pair| pair == [0xFF, start])
            .unwrap();
        let (first, step) = if start == 0xC0 {
            (frame + 10, 3)
        } else {
            (frame + 5, 2)
        };
        for (component, name) in b"RGB".iter().enumerate() {
            named[first + component * step] = *name;
        }
    }
    assert!(!is_ycc(&named) && is_ycc(&by_adobe(&named, 1)));
}

#[test]
fn bytes_between_segments_are_passed_over() {
    let mut bytes = std::fs::read(format!("{FOLDER}/rows_420.jpg")).unwrap();
    let header = Header::read(&bytes).unwrap();
    let expected = header
        .decode(&bytes, all(&header), &mut Scratch::default())
        .unwrap()
        .to_vec();
    bytes.splice(2..2, *b"\0\x01\xD8\0\xFF");
    let header = Header::read(&bytes).unwrap();
    assert_eq!(
        header
            .decode(&bytes, all(&header), &mut Scratch::default())
            .unwrap(),
        expected
    );
}

#[test]
fn restarts_out_of_order_are_refused() {
    let bytes = std::fs::read(format!("{FOLDER}/rows_restarts.jpg")).unwrap();
    let first = bytes
        .windows(2)
        .position(|pair| pair == [0xFF, 0xD0])
        .unwrap();
    let header = Header::read(&bytes).unwrap();
    for marker in [0xD1, 0xD7] {
        let mut changed = bytes.clone();
        changed[first + 1] = marker;
        assert!(
            header
                .decode(&changed, all(&header), &mut Scratch::default())
                .is_err(),
            "{marker:x}"
        );
    }
}

#[test]
fn tables_with_a_code_of_ones_are_refused_and_sizes_that_no_image_has_only_in_use() {
    let table = |class: Class, counts: &[u8], symbols: &[u8]| {
        let mut all = [0; 16];
        all[..counts.len()].copy_from_slice(counts);
        Table::new(class, &all, symbols)
    };
    for (counts, symbols) in [
        (&[2][..], &[0, 1][..]),
        (&[0, 4], &[0, 1, 2, 3]),
        (&[1, 2], &[0, 1, 2]),
    ] {
        assert!(table(Class::Dc, counts, symbols).is_none(), "{counts:?}");
    }
    let dc = table(Class::Dc, &[0, 3], &[0, 1, 12]).unwrap();
    let ac = table(Class::Ac, &[1], &[0]).unwrap();
    for (bits, is_read) in [
        (0b0000_0000, true),
        (0b0100_0000, true),
        (0b1000_0000, false),
    ] {
        let bytes = [[bits; 1].as_slice(), &[0; 16]].concat();
        assert_eq!(
            Bits::new(&bytes)
                .block([&dc, &ac], &mut 0, &[1; 64], None)
                .is_some(),
            is_read,
            "{bits:08b}"
        );
    }
}
