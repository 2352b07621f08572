//! Rare kinds of image files become the pixels that Pillow makes of them. Malicious ones are
//! rejected in little memory.

use std::fs;
use std::path::{Path, PathBuf};

use datasets::{OnBadImage, ReadConfig, Sizing, image_folder, load_image};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/images")
        .join(name)
}

fn message(path: &Path) -> String {
    load_image(path, Sizing::square(16), 3)
        .unwrap_err()
        .to_string()
}

/// Writes a file of these bytes and returns the error of loading it.
fn refused(name: &str, bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    let text = message(&path);
    assert!(text.contains(name), "{text}");
    text
}

/// The files of `make.py`: CMYK, progressive and grey JPEG; JPEG, GIF and TIFF under other names;
/// PNG of 1 and 16 bits, with a palette, with alpha and without an end; TIFF of all kinds;
/// orientations; the first frame of animations.
#[test]
fn rare_kinds_of_images_have_the_pixels_that_pillow_finds() {
    let expected = fs::read_to_string(fixture("expected.txt")).unwrap();
    let mut num_images = 0;
    for line in expected.lines() {
        let (name, colours) = line.split_once(' ').unwrap();
        let colours: Vec<i32> = colours
            .split(' ')
            .map(|value| value.parse().unwrap())
            .collect();
        let pixels = load_image(fixture(name), Sizing::square(16), 3).unwrap();
        let at = |x: usize| {
            pixels[(8 * 16 + x) * 3..][..3]
                .iter()
                .map(|value| i32::from(*value))
        };
        assert_eq!(at(3).chain(at(12)).collect::<Vec<_>>(), colours, "{name}");
        num_images += 1;
    }
    assert_eq!(num_images, 21);
}

#[test]
fn a_format_we_do_not_read_is_named_whatever_the_file_is_called() {
    let text = refused("avif_named.png", b"\0\0\0\x20ftypavif\0\0\0\0");
    assert!(text.to_lowercase().contains("avif"), "{text}");
}

#[test]
fn an_image_of_one_pixel_fills_the_square() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pixel.png");
    image::RgbImage::from_pixel(1, 1, image::Rgb([3, 5, 7]))
        .save(&path)
        .unwrap();
    assert_eq!(
        load_image(&path, Sizing::square(16), 3).unwrap(),
        [3, 5, 7].repeat(256)
    );
}

#[test]
fn a_png_cut_inside_its_last_checksum_has_all_its_pixels() {
    let whole = fs::read(fixture("no_end.png")).unwrap();
    let expected = load_image(fixture("no_end.png"), Sizing::square(16), 3).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.png");
    for num_missing in 1..=4 {
        fs::write(&path, &whole[..whole.len() - num_missing]).unwrap();
        let pixels = load_image(&path, Sizing::square(16), 3).unwrap();
        assert_eq!(pixels, expected, "{num_missing} bytes are missing");
    }
}

#[test]
fn a_tiff_file_of_an_unread_compression_names_it_and_a_remedy() {
    let group_4 = fs::read(fixture("fax.tif")).unwrap();
    // Tag 259, a short, one value: 4.
    let entry = [3, 1, 3, 0, 1, 0, 0, 0, 4, 0];
    let place = group_4
        .windows(10)
        .position(|bytes| bytes == entry)
        .unwrap()
        + 8;
    for (method, name) in [
        (2_u16, "CCITT RLE"),
        (3, "CCITT Group 3 (fax)"),
        (6, "old-style JPEG"),
        (50_000, "Zstandard"),
    ] {
        let mut bytes = group_4.clone();
        bytes[place..place + 2].copy_from_slice(&method.to_le_bytes());
        let text = refused("other.tif", &bytes);
        assert!(
            text.contains(&format!("compressed by {name} (expected")),
            "{text}"
        );
        assert!(text.contains("tiffcp -c lzw"), "{text}");
    }
}

#[test]
fn a_progressive_jpeg_cut_anywhere_is_refused() {
    let whole = fs::read(fixture("progressive.jpg")).unwrap();
    for len in 0..whole.len() - 1 {
        refused("progressive.jpg", &whole[..len]);
    }
}

/// Pillow rejects all of these except a code that is in no table, which it turns into noise.
#[test]
fn a_jpeg_damaged_in_any_scan_is_refused() {
    for name in ["progressive.jpg", "cmyk.jpg", "resize/rows_420.jpg"] {
        let whole = fs::read(fixture(name)).unwrap();
        let scans = (0..whole.len()).filter(|&at| whole[at..].starts_with(b"\xFF\xDA"));
        for (number, scan) in scans.enumerate() {
            let codes = scan + 2 + usize::from(whole[scan + 3]);
            let tables = scan + 6;
            // A later scan of DC coefficients has neither tables nor codes.
            let is_coded = !(number > 0 && whole[codes - 3] == 0);
            let with = |at: usize, bytes: &[u8]| {
                let mut changed = whole.clone();
                changed.splice(at..at + 2.min(bytes.len()), bytes.iter().copied());
                changed
            };
            refused("marker.jpg", &with(codes, b"\xFF\x02"));
            if is_coded {
                refused("table.jpg", &with(tables, &[0x33]));
                refused("code.jpg", &with(codes, &b"\xFF\x00".repeat(8)));
            }
        }
    }
}

// A random part of a training image may reach rows that the tested middle does not reach. Of a test
// image only the middle is read.
#[test]
fn a_training_image_damaged_below_its_middle_is_among_those_that_are_skipped() {
    let root = tempfile::tempdir().unwrap();
    for (class, number) in ["train/cat", "train/dog", "test/cat", "test/dog"]
        .iter()
        .flat_map(|class| [(class, 0), (class, 1)])
    {
        let class = root.path().join(class);
        fs::create_dir_all(&class).unwrap();
        let drawn = |x: u32, y: u32| image::Rgb([(x * 7) as u8, (y * 5) as u8, (x * y) as u8]);
        image::RgbImage::from_fn(40, 160, drawn)
            .save(class.join(format!("{number}.jpg")))
            .unwrap();
    }
    let path = root.path().join("train/cat/1.jpg");
    let mut bytes = fs::read(&path).unwrap();
    let near_end = bytes.len() * 19 / 20;
    bytes[near_end..near_end + 20].copy_from_slice(&b"\xFF\x00".repeat(10));
    fs::write(&path, bytes).unwrap();
    let sizing = Sizing {
        size: 16,
        shorter_side: Some(16),
    };
    load_image(&path, sizing, 3).unwrap();
    let how = ReadConfig {
        on_bad_image: OnBadImage::Skip,
        ..ReadConfig::new(sizing)
    };
    fs::copy(&path, root.path().join("test/cat/1.jpg")).unwrap();
    let splits = image_folder::open(root.path(), &how).unwrap();
    assert_eq!(
        (splits.train.len(), splits.evaluated().unwrap().len()),
        (3, 4)
    );
    let train = splits.train;
    assert!(
        train.notes().iter().any(|note| note.contains("1.jpg")),
        "{:?}",
        train.notes()
    );
}

#[test]
fn bytes_between_the_headers_of_a_jpeg_change_nothing() {
    for name in ["progressive.jpg", "cmyk.jpg", "resize/rows_420.jpg"] {
        let mut bytes = fs::read(fixture(name)).unwrap();
        let tables = bytes
            .windows(2)
            .position(|pair| pair == b"\xFF\xC4")
            .unwrap();
        bytes.splice(tables..tables, *b"between");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jpg");
        fs::write(&path, bytes).unwrap();
        let pixels = |path: &Path| load_image(path, Sizing::square(16), 3).unwrap();
        assert_eq!(pixels(&path), pixels(&fixture(name)), "{name}");
    }
}

/// Returns a PNG of this size whose only data is the start of a compressed stream.
fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n".to_vec();
    let chunk = |bytes: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]| {
        bytes.extend((data.len() as u32).to_be_bytes());
        let start = bytes.len();
        bytes.extend(kind);
        bytes.extend(data);
        bytes.extend(crc32(&bytes[start..]).to_be_bytes());
    };
    let header = [
        &width.to_be_bytes()[..],
        &height.to_be_bytes(),
        &[8, 2, 0, 0, 0],
    ]
    .concat();
    chunk(&mut bytes, b"IHDR", &header);
    chunk(&mut bytes, b"IDAT", &[0x78, 0x9C]);
    chunk(&mut bytes, b"IEND", &[]);
    bytes
}

fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, bit| {
        if (crc ^ bit) & 1 == 1 {
            (crc >> 1) ^ 0xEDB8_8320
        } else {
            crc >> 1
        }
    };
    !bytes
        .iter()
        .flat_map(|byte| (0..8).map(move |shift| u32::from(byte >> shift)))
        .fold(!0, step)
}

/// Returns a JPEG with a frame header of this size.
fn jpeg(width: u16, height: u16) -> Vec<u8> {
    let mut bytes = fs::read(fixture("cmyk.jpg")).unwrap();
    let frame = bytes
        .windows(2)
        .position(|pair| pair == [0xFF, 0xC0])
        .unwrap();
    bytes[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    bytes[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    bytes
}

fn bmp(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = vec![0; 54];
    bytes[..2].copy_from_slice(b"BM");
    bytes[10] = 54;
    bytes[14] = 40;
    bytes[18..22].copy_from_slice(&width.to_le_bytes());
    bytes[22..26].copy_from_slice(&height.to_le_bytes());
    bytes[26] = 1;
    bytes[28] = 24;
    bytes
}

/// Returns a lossless WebP of up to 16,384 pixels a side, without data.
fn webp(width: u32, height: u32) -> Vec<u8> {
    let sides = (width - 1) | (height - 1) << 14;
    let data = [&[0x2F][..], &sides.to_le_bytes(), &[0; 3]].concat();
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((data.len() as u32 + 12).to_le_bytes());
    bytes.extend(b"WEBPVP8L");
    bytes.extend((data.len() as u32).to_le_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn a_header_that_claims_a_huge_image_is_refused_without_that_memory_and_says_what_is_accepted() {
    for (name, bytes) in [
        ("huge.png", png(60_000, 60_000)),
        ("long.png", png(200_000, 1)),
        ("large.png", png(12_000, 12_000)),
        ("huge.jpg", jpeg(65_500, 65_500)),
        ("large.jpg", jpeg(12_000, 12_000)),
        ("huge.bmp", bmp(60_000, 60_000)),
        ("large.bmp", bmp(12_000, 12_000)),
        ("large.webp", webp(12_000, 12_000)),
        ("largest.webp", webp(16_383, 16_383)),
    ] {
        let text = refused(name, &bytes);
        assert!(
            text.contains("131072 pixels a side and 64 MiB from a file of"),
            "{text}"
        );
        // The smallest of them claims 412 MiB.
        let peak_kib = peak_kib().unwrap_or(0);
        assert!(
            peak_kib < 300 << 10,
            "{name}: the peak of memory was {peak_kib} KiB"
        );
    }
}

/// Returns the largest memory of this process so far, if the system reports it.
fn peak_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

#[test]
fn what_is_no_regular_file_is_refused_and_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    assert!(message(folder.path()).contains("expected a regular file, got a folder"));
    #[cfg(unix)]
    {
        let pipe = folder.path().join("pipe.png");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        assert!(message(&pipe).contains("pipe.png: expected a regular file, got a named pipe"));
        assert!(message(Path::new("/dev/zero")).contains("got a device"));
        let cycle = folder.path().join("cycle.png");
        std::os::unix::fs::symlink(&cycle, &cycle).unwrap();
        assert!(message(&cycle).starts_with("cannot read "));
    }
}
