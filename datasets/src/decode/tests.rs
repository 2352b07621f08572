//! Tests of decoding on images that the tests write.

use std::fs;

use image::{GrayImage, ImageBuffer, Luma, Rgb, RgbImage, Rgba, RgbaImage};
use tempfile::TempDir;

use super::*;

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn pixels_of_the_right_size_are_kept_exactly() {
    let folder = folder();
    let image = RgbImage::from_fn(4, 4, |x, y| Rgb([x as u8 * 60, y as u8 * 60, 7]));
    for name in ["image.png", "image.bmp", "image.webp"] {
        let path = folder.path().join(name);
        image.save(&path).unwrap();
        assert_eq!(
            load_image(&path, Sizing::square(4), 3).unwrap(),
            *image.as_raw(),
            "{name}"
        );
    }
}

#[test]
fn odd_colour_types_become_rgb() {
    let folder = folder();
    let save = |image: DynamicImage, name: &str| {
        let path = folder.path().join(name);
        image.save(&path).unwrap();
        load_image(path, Sizing::square(2), 3).unwrap()
    };
    let grey = GrayImage::from_pixel(2, 2, Luma([9]));
    assert_eq!(save(grey.into(), "grey.png"), [9; 12]);
    let alpha = RgbaImage::from_pixel(2, 2, Rgba([1, 2, 3, 0]));
    assert_eq!(save(alpha.into(), "alpha.png"), [1, 2, 3].repeat(4));
    let deep: ImageBuffer<Rgb<u16>, _> = ImageBuffer::from_pixel(2, 2, Rgb([0x0505; 3]));
    assert_eq!(save(deep.into(), "deep.png"), [5; 12]);
}

#[test]
fn rgb_becomes_grey_when_asked_for() {
    let path = folder();
    let path = path.path().join("image.png");
    RgbImage::from_pixel(3, 3, Rgb([8; 3])).save(&path).unwrap();
    assert_eq!(load_image(&path, Sizing::square(3), 1).unwrap(), [8; 9]);
    assert_eq!(
        load_image(&path, Sizing::square(3), 2)
            .unwrap_err()
            .to_string(),
        "image channels: expected 1 (grey) or 3 (RGB), got 2"
    );
}

#[test]
fn the_centre_square_is_resized() {
    let folder = folder();
    let path = folder.path().join("wide.png");
    // The middle third is white.
    let image = RgbImage::from_fn(24, 8, |x, _| Rgb([if x / 8 == 1 { 255 } else { 0 }; 3]));
    image.save(&path).unwrap();
    for size in [4, 8, 16] {
        let pixels = load_image(&path, Sizing::square(size), 3).unwrap();
        assert_eq!(pixels, vec![255; size * size * 3]);
    }
}

#[test]
fn a_wrong_extension_does_not_matter() {
    let folder = folder();
    let path = folder.path().join("image.jpg");
    let image = RgbImage::from_pixel(2, 2, Rgb([5; 3]));
    image.save_with_format(&path, ImageFormat::Png).unwrap();
    assert_eq!(load_image(path, Sizing::square(2), 3).unwrap(), [5; 12]);
}

#[test]
fn a_file_cut_at_any_place_is_an_error_that_names_it() {
    let folder = folder();
    let image = RgbImage::from_fn(16, 16, |x, y| Rgb([(x * y) as u8, x as u8, y as u8]));
    for name in [
        "image.jpg",
        "image.png",
        "image.bmp",
        "image.webp",
        "image.gif",
        "image.pgm",
    ] {
        let path = folder.path().join(name);
        let image = DynamicImage::from(image.clone());
        let image = if name.ends_with("pgm") {
            image.into_luma8().into()
        } else {
            image
        };
        image.save(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        assert!(load_image(&path, Sizing::square(16), 3).is_ok(), "{name}");
        for len in [0, 1, 2, 10, whole.len() / 2, whole.len() * 9 / 10] {
            fs::write(&path, &whole[..len]).unwrap();
            let error = load_image(&path, Sizing::square(16), 3)
                .unwrap_err()
                .to_string();
            assert!(error.contains(name), "{len} bytes: {error}");
        }
    }
}

#[test]
fn bytes_after_the_end_of_a_jpeg_are_ignored() {
    let folder = folder();
    let path = folder.path().join("image.jpg");
    RgbImage::from_pixel(8, 8, Rgb([100; 3]))
        .save(&path)
        .unwrap();
    let pixels = load_image(&path, Sizing::square(8), 3).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend([0; 100]);
    fs::write(&path, bytes).unwrap();
    assert_eq!(load_image(&path, Sizing::square(8), 3).unwrap(), pixels);
}

#[test]
fn a_missing_file_is_named() {
    let error = load_image("no/such.png", Sizing::square(8), 3)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("cannot read no/such.png: "), "{error}");
}

#[test]
fn a_cut_jpeg_is_refused_whatever_part_of_it_is_wanted() {
    let mut bytes = include_bytes!("../../tests/images/resize/rows_420.jpg").to_vec();
    bytes.truncate(bytes.len() / 2);
    let error = decode_crop(
        &bytes,
        &|| "cut.jpg".into(),
        ImageShape {
            height: 2,
            width: 2,
            channels: 3,
        },
        &|_| CropBox {
            left: 0,
            top: 0,
            width: 2,
            height: 2,
        },
        &mut [0; 12],
    );
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("cut.jpg") && text.contains("truncated"),
        "{text}"
    );
}

#[test]
fn an_image_of_its_own_size_is_what_torchvision_makes_of_it_whatever_its_format() {
    let folder = folder();
    let sizing = Sizing {
        size: 16,
        shorter_side: Some(20),
    };
    let image = RgbImage::from_fn(30, 50, |x, y| Rgb([(x * 8) as u8, (y * 5) as u8, 9]));
    let mut expected = vec![0; 16 * 16 * 3];
    View::Middle { shorter_side: 20 }.apply(image.as_raw(), [30, 50], [16, 16, 3], &mut expected);
    for name in ["image.png", "image.bmp", "image.webp"] {
        let path = folder.path().join(name);
        image.save(&path).unwrap();
        assert_eq!(load_image(&path, sizing, 3).unwrap(), expected, "{name}");
    }
    let error = load_image(
        "image.png",
        Sizing {
            size: 16,
            shorter_side: Some(15),
        },
        3,
    )
    .unwrap_err();
    assert_eq!(
        error.to_string(),
        "shorter side: expected 16 to 16384 pixels, got 15"
    );
}

#[test]
fn a_panorama_of_20_000_pixels_is_read() {
    let folder = folder();
    for name in ["image.jpg", "image.png"] {
        let path = folder.path().join(name);
        RgbImage::from_pixel(20_000, 2, Rgb([90; 3]))
            .save(&path)
            .unwrap();
        for shorter_side in [None, Some(2)] {
            assert_eq!(
                load_image(
                    &path,
                    Sizing {
                        size: 2,
                        shorter_side
                    },
                    3
                )
                .unwrap(),
                [90; 12],
                "{name}"
            );
        }
    }
}
