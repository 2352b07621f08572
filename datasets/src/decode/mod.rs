//! Decodes image files to u8 pixels of one size.
//!
//! In: a file of any kind in [`EXTENSIONS`] with any name, size and colour type, and a [`Sizing`]
//! or a choice of a part. Out: u8 `[H, W, C]`.
//! Invariant: a truncated file, or a file whose wanted part cannot be decoded, gives an error with
//! its path. A hostile file cannot use much memory.

mod jpeg;
mod tiff;

use std::cell::RefCell;
use std::fmt::Display;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageError, ImageFormat, ImageReader, Limits, RgbImage};

use crate::dataset::ImageShape;
use crate::error::DatasetError;
use crate::file::read_whole;
use crate::resize::{CropBox, View};

/// File name extensions of images, in lower case.
pub const EXTENSIONS: [&str; 10] = [
    "jpg", "jpeg", "png", "bmp", "webp", "gif", "tif", "tiff", "ppm", "pgm",
];

/// Maximum width and height of a sample in pixels.
const MAX_SIDE: u32 = 16_384;

/// Maximum width and height of an image file in pixels. The resized longer side of an image 1 pixel
/// wide still fits 32 bits.
const MAX_IMAGE_SIDE: u32 = 1 << 17;

/// Maximum bytes of an image file and of a decoded image: 178 megapixels in RGB, as in Pillow.
pub(crate) const MAX_ALLOC_BYTES: u64 = 512 << 20;

/// Maximum bytes of a decoded image for the smallest file: 22 megapixels.
const SMALL_ALLOC_BYTES: u64 = 64 << 20;

/// Additional decoded bytes per byte of the file. Deflate, and thus PNG, expands a byte to at most
/// 1,032 bytes, and JPEG to a similar number. WebP has no such limit, so this factor limits the
/// size that its header may claim.
const MAX_EXPANSION: u64 = 2048;

/// Memory that a thread keeps between two files: that of eight megapixels.
const KEPT_BYTES: usize = 48 << 20;

/// Method that resizes an image of any size to the height and width of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Height and width of the sample, in pixels.
    pub size: usize,
    /// Length of the image's resized shorter side before the centre crop, as in torchvision's
    /// `Resize` and `CenterCrop`. `None` resizes the largest centred square to `size`.
    pub shorter_side: Option<usize>,
}

impl Sizing {
    /// Returns a sizing that resizes the largest centred square to `size` x `size`.
    pub fn square(size: usize) -> Self {
        Self {
            size,
            shorter_side: None,
        }
    }

    /// Checks that the sizes are in the valid range.
    pub(crate) fn check(self) -> Result<(), DatasetError> {
        let max = MAX_SIDE as usize;
        if !(1..=max).contains(&self.size) {
            return Err(DatasetError::config(
                "image size",
                format!("1 to {MAX_SIDE} pixels"),
                self.size,
            ));
        }
        match self
            .shorter_side
            .filter(|side| !(self.size..=max).contains(side))
        {
            None => Ok(()),
            Some(side) => Err(DatasetError::config(
                "shorter side",
                format!("{} to {MAX_SIDE} pixels", self.size),
                side,
            )),
        }
    }
}

/// Reads one image file in the same way as the image-folder data set, for predictions on single
/// files.
///
/// With [`Sizing::square`] the largest centred square is resized (triangle filter, antialiased if
/// it shrinks). Grey, alpha, 16-bit and CMYK images are converted. Alpha is dropped and an EXIF
/// orientation is ignored, as in Pillow's `convert("RGB")`.
///
/// # Shapes
/// The result: `[size, size, channels]`.
///
/// # Errors
/// - If the file cannot be read or decoded completely, or is not a regular file.
/// - If it exceeds 131,072 pixels a side or 512 MiB (less for a small file).
/// - If a length of `sizing` is not in 1..=16,384, or `channels` is neither 1 nor 3.
pub fn load_image(
    path: impl AsRef<Path>,
    sizing: Sizing,
    channels: usize,
) -> Result<Vec<u8>, DatasetError> {
    let path = path.as_ref();
    sizing.check()?;
    if channels != 1 && channels != 3 {
        return Err(DatasetError::config(
            "image channels",
            "1 (grey) or 3 (RGB)",
            channels,
        ));
    }
    let shape = ImageShape {
        height: sizing.size,
        width: sizing.size,
        channels,
    };
    let bytes = read_image_file(path)?;
    let mut pixels = vec![0; shape.num_values()];
    decode_into(&bytes, &|| path.to_path_buf(), shape, sizing, &mut pixels)?;
    Ok(pixels)
}

/// Returns the bytes of an image file.
pub(crate) fn read_image_file(path: &Path) -> Result<Vec<u8>, DatasetError> {
    read_whole(path, MAX_ALLOC_BYTES)
}

/// Decodes the bytes of an image into `pixels`, `[H, W, C]` of `shape`. Its height and width are
/// those of `sizing`. Errors name the image `path`.
pub(crate) fn decode_into(
    bytes: &[u8],
    path: &dyn Fn() -> PathBuf,
    shape: ImageShape,
    sizing: Sizing,
    pixels: &mut [u8],
) -> Result<(), DatasetError> {
    if let Some(side) = sizing.shorter_side {
        return decode_view(
            bytes,
            path,
            shape,
            &|_| View::Middle {
                shorter_side: side as u32,
            },
            pixels,
        );
    }
    let square =
        decode_square(bytes, shape.height as u32).map_err(|reason| DatasetError::BadImage {
            path: path(),
            reason,
        })?;
    match shape.channels {
        1 => pixels.copy_from_slice(square.into_luma8().as_raw()),
        _ => pixels.copy_from_slice(square.into_rgb8().as_raw()),
    }
    Ok(())
}

/// Decodes the part of an image that is chosen from its width and height.
pub(crate) fn decode_crop(
    bytes: &[u8],
    path: &dyn Fn() -> PathBuf,
    shape: ImageShape,
    choose: &dyn Fn([u32; 2]) -> CropBox,
    pixels: &mut [u8],
) -> Result<(), DatasetError> {
    decode_view(bytes, path, shape, &|size| View::Crop(choose(size)), pixels)
}

fn decode_view(
    bytes: &[u8],
    path: &dyn Fn() -> PathBuf,
    shape: ImageShape,
    choose: &dyn Fn([u32; 2]) -> View,
    pixels: &mut [u8],
) -> Result<(), DatasetError> {
    let bad_image = |reason| DatasetError::BadImage {
        path: path(),
        reason,
    };
    if shape.channels == 3 && is_jpeg(bytes) {
        return decode_part(bytes, shape, choose, pixels).map_err(bad_image);
    }
    let image = decode_whole(bytes).map_err(bad_image)?;
    let size = [image.width(), image.height()];
    let image = match shape.channels {
        1 => image.into_luma8().into_raw(),
        _ => image.into_rgb8().into_raw(),
    };
    choose(size).apply(&image, size, shape.dims(), pixels);
    Ok(())
}

/// Decodes the visible part of a JPEG file.
fn decode_part(
    bytes: &[u8],
    shape: ImageShape,
    choose: &dyn Fn([u32; 2]) -> View,
    pixels: &mut [u8],
) -> Result<(), String> {
    let header = jpeg_header(bytes)?;
    let size = header.size();
    let view = choose(size);
    let part = view.reads(size, [shape.width as u32, shape.height as u32]);
    with_scratch(|scratch| {
        view.apply(
            header.decode(bytes, part, scratch).map_err(bad_jpeg)?,
            size,
            shape.dims(),
            pixels,
        );
        Ok(())
    })
}

fn is_jpeg(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\xFF\xD8")
}

/// Reads the header of a JPEG file. Rejects too large images.
fn jpeg_header(bytes: &[u8]) -> Result<jpeg::Header, String> {
    let header = jpeg::Header::read(bytes).map_err(bad_jpeg)?;
    check_size(header.size(), 3, bytes)?;
    Ok(header)
}

fn bad_jpeg(reason: jpeg::Reason) -> String {
    format!("the JPEG file cannot be decoded: {reason}")
}

/// Calls `decode` with memory that is reused in the next call on this thread, except after a very
/// large image.
fn with_scratch<R>(decode: impl FnOnce(&mut jpeg::Scratch) -> R) -> R {
    thread_local! {
        static SCRATCH: RefCell<jpeg::Scratch> = RefCell::default();
    }
    SCRATCH.with_borrow_mut(|scratch| {
        let result = decode(scratch);
        if scratch.len() > KEPT_BYTES {
            *scratch = jpeg::Scratch::default();
        }
        result
    })
}

/// Returns the largest centred square, resized to `size` x `size`.
fn decode_square(bytes: &[u8], size: u32) -> Result<DynamicImage, String> {
    let image = decode_whole(bytes)?;
    let width = image.width();
    let height = image.height();
    let side = width.min(height);
    // The crop precedes the resize, so that a long thin image cannot grow to size x (size *
    // length).
    let square = if width == height {
        image
    } else {
        image.crop_imm((width - side) / 2, (height - side) / 2, side, side)
    };
    if side == size {
        return Ok(square);
    }
    // Only 8-bit channels are resized, so that one conversion covers all colour types.
    Ok(DynamicImage::ImageRgb8(imageops::resize(
        &square.into_rgb8(),
        size,
        size,
        FilterType::Triangle,
    )))
}

/// Returns the largest allocation that the decoding of a file may make.
fn max_alloc(bytes: &[u8]) -> u64 {
    MAX_ALLOC_BYTES.min(SMALL_ALLOC_BYTES + MAX_EXPANSION * bytes.len() as u64)
}

/// Decodes all pixels of a file, at least one.
fn decode_whole(bytes: &[u8]) -> Result<DynamicImage, String> {
    if !is_jpeg(bytes) {
        return decode_by_image(bytes);
    }
    let header = jpeg_header(bytes)?;
    let [width, height] = header.size();
    let mut scratch = jpeg::Scratch::default();
    let part = CropBox {
        left: 0,
        top: 0,
        width,
        height,
    };
    let len = header
        .decode(bytes, part, &mut scratch)
        .map_err(bad_jpeg)?
        .len();
    let image = RgbImage::from_raw(width, height, scratch.into_pixels(len))
        .expect("pixels of the image's size");
    Ok(image.into())
}

/// Maximum bytes of a text in place of a file, such as a path or the pointer of a large-file store.
const MAX_POINTER_BYTES: usize = 1024;

/// Decodes all pixels of a file that is not a JPEG file.
fn decode_by_image(bytes: &[u8]) -> Result<DynamicImage, String> {
    // The content determines the format, because the extension is sometimes wrong.
    let decode = |bytes: &[u8]| {
        let mut limits = Limits::default();
        limits.max_image_width = Some(MAX_IMAGE_SIDE);
        limits.max_image_height = Some(MAX_IMAGE_SIDE);
        limits.max_alloc = Some(max_alloc(bytes));
        let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?;
        reader.limits(limits);
        reader.decode()
    };
    let format = image::guess_format(bytes);
    let is_big_tiff = bytes.starts_with(b"II+\0") || bytes.starts_with(b"MM\0+");
    let image = match format {
        _ if is_big_tiff => return tiff::decode(bytes),
        Ok(ImageFormat::Tiff) => return tiff::decode(bytes),
        Err(_) => return Err(not_an_image(bytes).to_owned()),
        // Pillow needs no data after the pixels.
        Ok(ImageFormat::Png) => {
            decode(bytes).or_else(|error| decode(&with_end_of_png(bytes)).map_err(|_| error))
        }
        _ => decode(bytes),
    };
    let image = image.map_err(|error| match error {
        ImageError::Limits(_) => too_large(error, bytes),
        // Some texts show a value of Rust.
        ImageError::Decoding(error) if error.to_string().contains('{') => {
            format!("the {} file is damaged", error.format_hint())
        }
        error => error.to_string(),
    })?;
    check_size([image.width(), image.height()], 0, bytes)?;
    Ok(image)
}

/// Describes a file of an unknown format.
fn not_an_image(bytes: &[u8]) -> &'static str {
    let is_text = |text: &str| !text.chars().any(|c| c.is_control() && !c.is_whitespace());
    match bytes {
        [] => "the file is empty",
        _ if bytes.len() <= MAX_POINTER_BYTES && str::from_utf8(bytes).is_ok_and(is_text) => {
            "the file is a few words of text, such as the pointer of Git LFS or git-annex. Fetch the file itself \
             (git lfs pull, git annex get)"
        }
        _ => "unknown format (expected JPEG, PNG, GIF, TIFF, BMP, WebP, PPM or PGM)",
    }
}

/// Returns the chunks of a PNG file with complete data, and appends the end chunk. Completes the
/// last checksum if it is truncated.
fn with_end_of_png(bytes: &[u8]) -> Vec<u8> {
    let mut len = 8;
    let mut checksum = Vec::new();
    while let Some(size) = bytes.get(len..).and_then(<[u8]>::first_chunk) {
        let end_of_data = len + 8 + u32::from_be_bytes(*size) as usize;
        if end_of_data > bytes.len() {
            break;
        }
        if end_of_data + 4 > bytes.len() {
            checksum = crc32(&bytes[len + 4..end_of_data]).to_be_bytes().to_vec();
            len = end_of_data;
            break;
        }
        len = end_of_data + 4;
    }
    [&bytes[..len], &checksum, b"\0\0\0\0IEND\xAEB`\x82"].concat()
}

/// Returns the checksum of a PNG chunk (ISO 3309).
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// Rejects an image with too many pixels of `bytes_per_pixel` bytes.
fn check_size([width, height]: [u32; 2], bytes_per_pixel: u64, bytes: &[u8]) -> Result<(), String> {
    let is_small = u64::from(width) * u64::from(height) * bytes_per_pixel <= max_alloc(bytes);
    if width.max(height) > MAX_IMAGE_SIDE || !is_small {
        return Err(too_large(
            format_args!("the image has {width}x{height} pixels"),
            bytes,
        ));
    }
    Ok(())
}

fn too_large(what: impl Display, bytes: &[u8]) -> String {
    format!(
        "{what}: expected at most {MAX_IMAGE_SIDE} pixels a side and {} MiB from a file of {} bytes",
        max_alloc(bytes) >> 20,
        bytes.len()
    )
}

#[cfg(test)]
mod tests;
