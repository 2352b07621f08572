//! From an image file to u8 pixels of one size.
//!
//! In: a JPEG, PNG, BMP or WebP file of any size and colour type. Out: u8 `[H, W, C]`.
//! Invariant: a file that does not decode whole is an error that names its path; a hostile one cannot claim the memory.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageFormat, ImageReader, Limits};

use crate::dataset::ImageShape;
use crate::error::DatasetError;

/// The file name extensions that count as images, in lower case.
pub const EXTENSIONS: [&str; 5] = ["jpg", "jpeg", "png", "bmp", "webp"];

/// The largest width and height accepted, in pixels.
const MAX_SIDE: u32 = 16_384;

/// The largest allocation of a decoder: photographs of 100 megapixels pass, decompression bombs do not.
const MAX_ALLOC_BYTES: u64 = 512 << 20;

/// Reads one image file as the image-folder data set would: for predictions on single files.
///
/// The largest centred square is resized to `size` x `size` (triangle filter, antialiased when it shrinks). Grey, alpha, 16-bit
/// and CMYK images are converted; alpha is dropped and an EXIF orientation ignored, as Pillow's `convert("RGB")` does.
///
/// # Shapes
/// The result: `[size, size, channels]`.
///
/// # Errors
/// If the file cannot be read or decoded whole, exceeds 16,384 pixels a side or 512 MiB, or `channels` is neither 1 nor 3.
pub fn load_image(path: impl AsRef<Path>, size: usize, channels: usize) -> Result<Vec<u8>, DatasetError> {
    let path = path.as_ref();
    if channels != 1 && channels != 3 {
        return Err(DatasetError::config("image channels", "1 (grey) or 3 (RGB)", channels));
    }
    let shape = ImageShape { height: size, width: size, channels };
    let bytes = fs::read(path).map_err(DatasetError::io("read", path))?;
    let mut pixels = vec![0; shape.num_values()];
    decode_into(&bytes, path, shape, &mut pixels)?;
    Ok(pixels)
}

/// Decodes the bytes of the file at `path` into `pixels`, `[H, W, C]` of `shape` with H = W.
pub(crate) fn decode_into(bytes: &[u8], path: &Path, shape: ImageShape, pixels: &mut [u8]) -> Result<(), DatasetError> {
    let square = decode_square(bytes, shape.height as u32)
        .map_err(|reason| DatasetError::BadImage { path: path.to_path_buf(), reason })?;
    match shape.channels {
        1 => pixels.copy_from_slice(square.into_luma8().as_raw()),
        _ => pixels.copy_from_slice(square.into_rgb8().as_raw()),
    }
    Ok(())
}

fn decode_square(bytes: &[u8], size: u32) -> Result<DynamicImage, String> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_ALLOC_BYTES);
    // The content tells the format, since the extension is sometimes wrong.
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| error.to_string())?;
    reader.limits(limits);
    if reader.format() == Some(ImageFormat::Jpeg) && !jpeg_is_whole(bytes) {
        return Err("the JPEG file is truncated: it has no end-of-image marker".into());
    }
    let image = reader.decode().map_err(|error| error.to_string())?;
    let (width, height) = (image.width(), image.height());
    let side = width.min(height);
    if side == 0 {
        return Err(format!("the image is empty: {width}x{height} pixels"));
    }
    // The crop comes first, so that a long thin image cannot be blown up to size x (size * length).
    let square =
        if width == height { image } else { image.crop_imm((width - side) / 2, (height - side) / 2, side, side) };
    if side == size {
        return Ok(square);
    }
    // Only 8-bit channels are resized: one conversion for all colour types.
    Ok(DynamicImage::ImageRgb8(imageops::resize(&square.into_rgb8(), size, size, FilterType::Triangle)))
}

/// Whether an end-of-image marker follows the start of the scan.
///
/// The decoder fills what is missing of a truncated file with grey and reports nothing. Inside a scan 0xFF is always escaped, so
/// the marker's bytes cannot be data; before the scan they could (an EXIF thumbnail is a JPEG), so segments are skipped.
fn jpeg_is_whole(bytes: &[u8]) -> bool {
    const START_OF_SCAN: u8 = 0xDA;
    let mut position = 2;
    while let Some(&[0xFF, marker]) = bytes.get(position..position + 2) {
        if marker == 0xFF {
            position += 1; // A fill byte before a marker.
            continue;
        }
        let Some(&[high, low]) = bytes.get(position + 2..position + 4) else {
            return false;
        };
        position += 2 + usize::from(u16::from_be_bytes([high, low]));
        if marker == START_OF_SCAN {
            let scan = bytes.get(position..).unwrap_or_default();
            return scan.windows(2).any(|pair| pair == [0xFF, 0xD9]);
        }
    }
    // Whatever this is, the decoder has an error for it.
    position < bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{GrayImage, ImageBuffer, Luma, Rgb, RgbImage, Rgba, RgbaImage};
    use tempfile::TempDir;

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
            assert_eq!(load_image(&path, 4, 3).unwrap(), *image.as_raw(), "{name}");
        }
    }

    #[test]
    fn odd_colour_types_become_rgb() {
        let folder = folder();
        let save = |image: DynamicImage, name: &str| {
            let path = folder.path().join(name);
            image.save(&path).unwrap();
            load_image(path, 2, 3).unwrap()
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
        assert_eq!(load_image(&path, 3, 1).unwrap(), [8; 9]);
        assert_eq!(
            load_image(&path, 3, 2).unwrap_err().to_string(),
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
            let pixels = load_image(&path, size, 3).unwrap();
            assert_eq!(pixels, vec![255; size * size * 3]);
        }
    }

    #[test]
    fn a_wrong_extension_does_not_matter() {
        let folder = folder();
        let path = folder.path().join("image.jpg");
        let image = RgbImage::from_pixel(2, 2, Rgb([5; 3]));
        image.save_with_format(&path, ImageFormat::Png).unwrap();
        assert_eq!(load_image(path, 2, 3).unwrap(), [5; 12]);
    }

    #[test]
    fn a_file_cut_at_any_place_is_an_error_that_names_it() {
        let folder = folder();
        let image = RgbImage::from_fn(16, 16, |x, y| Rgb([(x * y) as u8, x as u8, y as u8]));
        for name in ["image.jpg", "image.png", "image.bmp", "image.webp"] {
            let path = folder.path().join(name);
            image.save(&path).unwrap();
            let whole = fs::read(&path).unwrap();
            assert!(load_image(&path, 16, 3).is_ok(), "{name}");
            for len in [0, 1, 2, 10, whole.len() / 2, whole.len() * 9 / 10] {
                fs::write(&path, &whole[..len]).unwrap();
                let error = load_image(&path, 16, 3).unwrap_err().to_string();
                assert!(error.contains(name), "{len} bytes: {error}");
            }
        }
    }

    #[test]
    fn bytes_after_the_end_of_a_jpeg_are_ignored() {
        let folder = folder();
        let path = folder.path().join("image.jpg");
        RgbImage::from_pixel(8, 8, Rgb([100; 3])).save(&path).unwrap();
        let pixels = load_image(&path, 8, 3).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        bytes.extend([0; 100]);
        fs::write(&path, bytes).unwrap();
        assert_eq!(load_image(&path, 8, 3).unwrap(), pixels);
    }

    #[test]
    fn a_decompression_bomb_is_refused() {
        let folder = folder();
        let path = folder.path().join("bomb.bmp");
        // A header of 54 bytes that claims 60,000 x 60,000 pixels.
        let mut bytes = vec![0; 54];
        bytes[..2].copy_from_slice(b"BM");
        bytes[10] = 54;
        bytes[14] = 40;
        bytes[18..22].copy_from_slice(&60_000u32.to_le_bytes());
        bytes[22..26].copy_from_slice(&60_000u32.to_le_bytes());
        bytes[26] = 1;
        bytes[28] = 24;
        fs::write(&path, bytes).unwrap();
        let error = load_image(&path, 32, 3).unwrap_err().to_string();
        assert!(error.contains("bomb.bmp"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = load_image("no/such.png", 8, 3).unwrap_err().to_string();
        assert!(error.starts_with("cannot read no/such.png: "), "{error}");
    }
}
