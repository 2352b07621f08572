//! What the decoder promises, on files that Pillow wrote.

use sha2::{Digest, Sha256};

use super::huffman::{Class, Table};
use super::*;
use crate::memory::to_hex;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/images/resize");

/// The files that it decodes: name, bytes, and the sha256 of Pillow's pixels.
fn files() -> Vec<(String, Vec<u8>, String)> {
    let digests = std::fs::read_to_string(format!("{FOLDER}/rows.txt")).unwrap();
    let mut files = Vec::new();
    for line in digests.lines() {
        let (name, digest) = line.split_once(' ').unwrap();
        files.push((name.to_owned(), std::fs::read(format!("{FOLDER}/rows_{name}.jpg")).unwrap(), digest.to_owned()));
    }
    files
}

fn all(header: &Header) -> CropBox {
    let [width, height] = header.size();
    CropBox { left: 0, top: 0, width, height }
}

#[test]
fn pixels_are_those_of_pillow_bit_by_bit() {
    let (mut num_decoded, mut scratch) = (0, Scratch::default());
    for (name, bytes, digest) in files() {
        let Some(header) = Header::read(&bytes) else {
            assert_eq!(name, "progressive");
            continue;
        };
        let pixels = header.decode(&bytes, all(&header), &mut scratch).unwrap();
        assert_eq!(to_hex(&Sha256::digest(pixels)), digest, "{name}");
        num_decoded += 1;
    }
    assert_eq!(num_decoded, 10);
}

#[test]
fn a_part_has_the_pixels_of_the_whole_whatever_the_memory_held() {
    for (name, bytes, _) in files() {
        let Some(header) = Header::read(&bytes) else { continue };
        let whole = header.decode(&bytes, all(&header), &mut Scratch::default()).unwrap().to_vec();
        let [width, height] = header.size();
        let mut scratch = Scratch::default();
        for case in 0..200 {
            let (left, top) = (case * 7 % width, case * 11 % height);
            let part = CropBox { left, top, width: case % (width - left) + 1, height: case / 3 % (height - top) + 1 };
            header.decode(&bytes, all(&header), &mut scratch).unwrap();
            scratch.planes.fill(case as u8);
            scratch.rgb.fill(77);
            let pixels = header.decode(&bytes, part, &mut scratch).unwrap();
            for row in part.top..part.top + part.height {
                let at = |column: u32| 3 * (row * width + column) as usize;
                let columns = at(part.left)..at(part.left + part.width);
                assert_eq!(pixels[columns.clone()], whole[columns], "{name}: {part:?}, row {row}");
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
                // Other sizes are decoded, too, as long as they are no larger than a test should be.
                let header = Header::read(&changed).filter(|header| header.memory() < 1 << 20);
                let pixels =
                    header.and_then(|header| header.decode(&changed, all(&header), &mut scratch).map(<[u8]>::len));
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
            let pixels = header
                .is_some_and(|header| header.decode(&bytes[..len], all(&header), &mut Scratch::default()).is_some());
            assert!(!pixels, "{name}: {len} bytes");
        }
    }
}

#[test]
fn kinds_whose_pixels_would_differ_are_left_to_others() {
    let read = |name: &str| std::fs::read(format!("{FOLDER}/{name}")).unwrap();
    assert!(Header::read(&read("../cmyk.jpg")).is_none());
    let bytes = read("rows_420.jpg");
    let frame = bytes.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    for (place, value) in [
        (4, 12),    // Bits of a value.
        (11, 0x12), // Four brightnesses, one above the other, for each two colours.
        (14, 0x21), // A colour of its own size.
        (10, b'X'), // No component of the scan.
    ] {
        let mut changed = bytes.clone();
        changed[frame + place] = value;
        assert!(Header::read(&changed).is_none(), "byte {place} of the frame");
    }
}

#[test]
fn colours_are_told_as_libjpeg_tells_them_by_jfif_then_by_adobe_then_by_their_names() {
    let read = |name: &str| std::fs::read(format!("{FOLDER}/{name}")).unwrap();
    // Red, green and blue of different sizes are left to others.
    let is_ycc = |bytes: &[u8]| Header::read(bytes).is_some_and(|header| !header.is_rgb);
    let jfif = read("rows_420.jpg");
    let mut plain = jfif.clone();
    let marker = plain.windows(5).position(|bytes| bytes == b"JFIF\0").unwrap();
    plain[marker] = b'X';
    let by_adobe = |bytes: &[u8], transform| {
        let mut marked = bytes.to_vec();
        marked.splice(2..2, *b"\xFF\xEE\x00\x0EAdobe\x00\x64\x00\x00\x00\x00\x00");
        marked[17] = transform;
        marked
    };
    assert!(is_ycc(&by_adobe(&jfif, 0)) && is_ycc(&by_adobe(&plain, 1)) && !is_ycc(&by_adobe(&plain, 0)));
    let grey = read("../grey.jpg");
    assert!(is_ycc(&grey) && is_ycc(&by_adobe(&grey, 0)));
    let mut named = plain;
    assert!(is_ycc(&named));
    for start in [0xC0, 0xDA] {
        let frame = named.windows(2).position(|pair| pair == [0xFF, start]).unwrap();
        let (first, step) = if start == 0xC0 { (frame + 10, 3) } else { (frame + 5, 2) };
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
    let expected = header.decode(&bytes, all(&header), &mut Scratch::default()).unwrap().to_vec();
    bytes.splice(2..2, *b"\0\x01\xD8\0\xFF");
    let header = Header::read(&bytes).unwrap();
    assert_eq!(header.decode(&bytes, all(&header), &mut Scratch::default()).unwrap(), expected);
}

#[test]
fn restarts_out_of_order_are_refused() {
    let bytes = std::fs::read(format!("{FOLDER}/rows_restarts.jpg")).unwrap();
    let first = bytes.windows(2).position(|pair| pair == [0xFF, 0xD0]).unwrap();
    let header = Header::read(&bytes).unwrap();
    for marker in [0xD1, 0xD7] {
        let mut changed = bytes.clone();
        changed[first + 1] = marker;
        assert!(header.decode(&changed, all(&header), &mut Scratch::default()).is_none(), "{marker:x}");
    }
}

#[test]
fn tables_with_a_code_of_ones_or_a_size_that_no_image_has_are_refused() {
    let table = |counts: &[u8], symbols: &[u8]| {
        let mut all = [0; 16];
        all[..counts.len()].copy_from_slice(counts);
        Table::new(Class::Dc, &all, symbols).is_some()
    };
    assert!(table(&[1], &[0]) && table(&[0, 3], &[0, 1, 11]));
    assert!(!table(&[2], &[0, 1]) && !table(&[0, 4], &[0, 1, 2, 3]) && !table(&[1, 2], &[0, 1, 2]));
    assert!(!table(&[1], &[12]) && !table(&[1], &[255]));
}
