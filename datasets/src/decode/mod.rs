//! From an image file to u8 pixels of one size.
//!
//! In: a JPEG, PNG, BMP or WebP file of any size and colour type. Out: u8 `[H, W, C]`.
//! Invariant: a file that does not decode whole is an error that names its path; a hostile one cannot claim the memory.

use std::io::Cursor;
use std::path::Path;

use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageError, ImageFormat, ImageReader, Limits};

use crate::dataset::ImageShape;
use crate::error::DatasetError;
use crate::file::read_whole;

/// The file name extensions that count as images, in lower case.
pub const EXTENSIONS: [&str; 5] = ["jpg", "jpeg", "png", "bmp", "webp"];

/// The largest width and height accepted, in pixels.
const MAX_SIDE: u32 = 16_384;

/// The largest allocation of a decoder: photographs of 100 megapixels pass, decompression bombs do not.
const MAX_ALLOC_BYTES: u64 = 512 << 20;

/// The allocation that a decoder may make for a file however small: 22 megapixels.
const SMALL_ALLOC_BYTES: u64 = 64 << 20;

/// What each byte of a file may add to that. Deflate, and with it PNG, unpacks a byte to 1,032 at most and JPEG to about as
/// many; WebP knows no such bound, so this keeps its headers honest.
const MAX_EXPANSION: u64 = 2048;

/// Reads one image file as the image-folder data set would: for predictions on single files.
///
/// The largest centred square is resized to `size` x `size` (triangle filter, antialiased when it shrinks). Grey, alpha, 16-bit
/// and CMYK images are converted; alpha is dropped and an EXIF orientation ignored, as Pillow's `convert("RGB")` does.
///
/// # Shapes
/// The result: `[size, size, channels]`.
///
/// # Errors
/// If the file cannot be read or decoded whole, is no regular file, exceeds 16,384 pixels a side or 512 MiB (less for a small
/// file), `size` is not in 1..=16,384, or `channels` is neither 1 nor 3.
pub fn load_image(path: impl AsRef<Path>, size: usize, channels: usize) -> Result<Vec<u8>, DatasetError> {
    let path = path.as_ref();
    check_size(size)?;
    if channels != 1 && channels != 3 {
        return Err(DatasetError::config("image channels", "1 (grey) or 3 (RGB)", channels));
    }
    let shape = ImageShape { height: size, width: size, channels };
    let bytes = read_image_file(path)?;
    let mut pixels = vec![0; shape.num_values()];
    decode_into(&bytes, path, shape, &mut pixels)?;
    Ok(pixels)
}

/// The bytes of an image file.
pub(crate) fn read_image_file(path: &Path) -> Result<Vec<u8>, DatasetError> {
    read_whole(path, MAX_ALLOC_BYTES)
}

/// Whether images can be brought to `size` x `size`.
pub(crate) fn check_size(size: usize) -> Result<(), DatasetError> {
    if (1..=MAX_SIDE as usize).contains(&size) {
        return Ok(());
    }
    Err(DatasetError::config("image size", format!("1 to {MAX_SIDE} pixels"), size))
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
    let max_alloc = MAX_ALLOC_BYTES.min(SMALL_ALLOC_BYTES + MAX_EXPANSION * bytes.len() as u64);
    limits.max_alloc = Some(max_alloc);
    // The content tells the format, since the extension is sometimes wrong.
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| error.to_string())?;
    reader.limits(limits);
    if reader.format() == Some(ImageFormat::Jpeg) && !jpeg_is_whole(bytes) {
        return Err("the JPEG file is truncated: it has no end-of-image marker".into());
    }
    let image = reader.decode().map_err(|error| match error {
        ImageError::Limits(_) => format!(
            "{error}: expected at most {MAX_SIDE} pixels a side and {} MiB from a file of {} bytes",
            max_alloc >> 20,
            bytes.len()
        ),
        error => error.to_string(),
    })?;
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
mod tests;
