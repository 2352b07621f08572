//! From an image file to u8 pixels of one size.
//!
//! In: a JPEG, PNG, BMP or WebP file of any size and colour type, and a [`Sizing`] or a choice of its part. Out: u8 `[H, W, C]`.
//! Invariant: a file whose wanted part does not decode is an error that names its path, and so is one without an end; a hostile one cannot claim the memory.

mod jpeg;

use std::cell::RefCell;
use std::fmt::Display;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use image::imageops::{self, FilterType};
use image::{DynamicImage, GrayImage, ImageError, ImageFormat, ImageReader, Limits, RgbImage};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::dataset::ImageShape;
use crate::error::DatasetError;
use crate::file::read_whole;
use crate::resize::{CropBox, View};

/// The file name extensions that count as images, in lower case.
pub const EXTENSIONS: [&str; 5] = ["jpg", "jpeg", "png", "bmp", "webp"];

/// The largest width and height accepted, in pixels.
const MAX_SIDE: u32 = 16_384;

/// The largest image file, and the largest allocation of a decoder: photographs of 100 megapixels pass, decompression bombs do not.
pub(crate) const MAX_ALLOC_BYTES: u64 = 512 << 20;

/// The allocation that a decoder may make for a file however small: 22 megapixels.
const SMALL_ALLOC_BYTES: u64 = 64 << 20;

/// What each byte of a file may add to that. Deflate, and with it PNG, unpacks a byte to 1,032 at most and JPEG to about as
/// many; WebP knows no such bound, so this keeps its headers honest.
const MAX_EXPANSION: u64 = 2048;

/// The memory that a thread keeps between two files: that of eight megapixels.
const KEPT_BYTES: usize = 48 << 20;

/// How an image of any size is brought to the height and width of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// Height and width of the sample, in pixels.
    pub size: usize,
    /// The length to which the shorter side of the image is brought before its middle is cut out, as torchvision's `Resize` and
    /// `CenterCrop` do; `None` brings the largest centred square to `size`.
    pub shorter_side: Option<usize>,
}

impl Sizing {
    /// The largest centred square, brought to `size` x `size`.
    pub fn square(size: usize) -> Self {
        Self { size, shorter_side: None }
    }

    /// Whether images can be brought to this size.
    pub(crate) fn check(self) -> Result<(), DatasetError> {
        let max = MAX_SIDE as usize;
        if !(1..=max).contains(&self.size) {
            return Err(DatasetError::config("image size", format!("1 to {MAX_SIDE} pixels"), self.size));
        }
        match self.shorter_side.filter(|side| !(self.size..=max).contains(side)) {
            None => Ok(()),
            Some(side) => {
                Err(DatasetError::config("shorter side", format!("{} to {MAX_SIDE} pixels", self.size), side))
            }
        }
    }
}

/// Reads one image file as the image-folder data set would: for predictions on single files.
///
/// With [`Sizing::square`] the largest centred square is resized (triangle filter, antialiased when it shrinks). Grey, alpha, 16-bit
/// and CMYK images are converted; alpha is dropped and an EXIF orientation ignored, as Pillow's `convert("RGB")` does.
///
/// # Shapes
/// The result: `[size, size, channels]`.
///
/// # Errors
/// If the file cannot be read or decoded whole, is no regular file, exceeds 16,384 pixels a side or 512 MiB (less for a small
/// file), a length of `sizing` is not in 1..=16,384, or `channels` is neither 1 nor 3.
pub fn load_image(path: impl AsRef<Path>, sizing: Sizing, channels: usize) -> Result<Vec<u8>, DatasetError> {
    let path = path.as_ref();
    sizing.check()?;
    if channels != 1 && channels != 3 {
        return Err(DatasetError::config("image channels", "1 (grey) or 3 (RGB)", channels));
    }
    let shape = ImageShape { height: sizing.size, width: sizing.size, channels };
    let bytes = read_image_file(path)?;
    let mut pixels = vec![0; shape.num_values()];
    decode_into(&bytes, &|| path.to_path_buf(), shape, sizing, &mut pixels)?;
    Ok(pixels)
}

/// The bytes of an image file.
pub(crate) fn read_image_file(path: &Path) -> Result<Vec<u8>, DatasetError> {
    read_whole(path, MAX_ALLOC_BYTES)
}

/// Decodes the bytes of an image, which errors call `path`, into `pixels`, `[H, W, C]` of `shape`, whose height and width are those of `sizing`.
pub(crate) fn decode_into(
    bytes: &[u8],
    path: &dyn Fn() -> PathBuf,
    shape: ImageShape,
    sizing: Sizing,
    pixels: &mut [u8],
) -> Result<(), DatasetError> {
    if let Some(side) = sizing.shorter_side {
        return decode_view(bytes, path, shape, &|_| View::Middle { shorter_side: side as u32 }, pixels);
    }
    let square =
        decode_square(bytes, shape.height as u32).map_err(|reason| DatasetError::BadImage { path: path(), reason })?;
    match shape.channels {
        1 => pixels.copy_from_slice(square.into_luma8().as_raw()),
        _ => pixels.copy_from_slice(square.into_rgb8().as_raw()),
    }
    Ok(())
}

/// Decodes the part that is chosen by the width and height of an image.
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
    if shape.channels == 3 && decode_part(bytes, shape, choose, pixels).is_some() {
        return Ok(());
    }
    // Our decoder refuses a file for good.
    let image = if shape.channels == 3 { decode_by_image(bytes) } else { decode_whole(bytes) };
    let image = image.map_err(|reason| DatasetError::BadImage { path: path(), reason })?;
    let size = [image.width(), image.height()];
    let image = match shape.channels {
        1 => image.into_luma8().into_raw(),
        _ => image.into_rgb8().into_raw(),
    };
    choose(size).apply(&image, size, shape.dims(), pixels);
    Ok(())
}

/// Decodes what is seen of a common JPEG file, and nothing beside it.
fn decode_part(bytes: &[u8], shape: ImageShape, choose: &dyn Fn([u32; 2]) -> View, pixels: &mut [u8]) -> Option<()> {
    let header = jpeg_header(bytes)?;
    let size = header.size();
    let view = choose(size);
    let part = view.reads(size, [shape.width as u32, shape.height as u32]);
    with_scratch(|scratch| {
        view.apply(header.decode(bytes, part, scratch)?, size, shape.dims(), pixels);
        Some(())
    })
}

/// The header of a JPEG file that our own decoder reads, if it is small enough.
fn jpeg_header(bytes: &[u8]) -> Option<jpeg::Header> {
    let header = bytes.starts_with(b"\xFF\xD8").then(|| jpeg::Header::read(bytes))??;
    let is_small = header.size().iter().all(|side| *side <= MAX_SIDE) && header.memory() <= max_alloc(bytes);
    is_small.then_some(header)
}

/// Calls `decode` with memory that its next call on this thread finds again, unless it is that of a very large image.
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

/// The largest centred square, brought to `size` x `size`.
fn decode_square(bytes: &[u8], size: u32) -> Result<DynamicImage, String> {
    let image = decode_whole(bytes)?;
    let (width, height) = (image.width(), image.height());
    let side = width.min(height);
    // The crop comes first, so that a long thin image cannot be blown up to size x (size * length).
    let square =
        if width == height { image } else { image.crop_imm((width - side) / 2, (height - side) / 2, side, side) };
    if side == size {
        return Ok(square);
    }
    // Only 8-bit channels are resized: one conversion for all colour types.
    Ok(DynamicImage::ImageRgb8(imageops::resize(&square.into_rgb8(), size, size, FilterType::Triangle)))
}

/// The largest allocation that decoding a file may make.
fn max_alloc(bytes: &[u8]) -> u64 {
    MAX_ALLOC_BYTES.min(SMALL_ALLOC_BYTES + MAX_EXPANSION * bytes.len() as u64)
}

/// All pixels of a file; there is at least one.
fn decode_whole(bytes: &[u8]) -> Result<DynamicImage, String> {
    let jpeg = || {
        let header = jpeg_header(bytes)?;
        let [width, height] = header.size();
        let mut scratch = jpeg::Scratch::default();
        let len = header.decode(bytes, CropBox { left: 0, top: 0, width, height }, &mut scratch)?.len();
        RgbImage::from_raw(width, height, scratch.into_pixels(len))
    };
    jpeg().map_or_else(|| decode_by_image(bytes), |image| Ok(image.into()))
}

/// All pixels of a file that is no common JPEG.
fn decode_by_image(bytes: &[u8]) -> Result<DynamicImage, String> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(max_alloc(bytes));
    // The content tells the format, since the extension is sometimes wrong.
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|error| error.to_string())?;
    if reader.format() == Some(ImageFormat::Jpeg) {
        return decode_rare_jpeg(bytes);
    }
    reader.limits(limits);
    let image = reader.decode().map_err(|error| match error {
        ImageError::Limits(_) => too_large(error, bytes),
        error => error.to_string(),
    })?;
    match (image.width(), image.height()) {
        (0, height) => Err(format!("the image is empty: 0x{height} pixels")),
        (width, 0) => Err(format!("the image is empty: {width}x0 pixels")),
        _ => Ok(image),
    }
}

/// All pixels of a JPEG file that our own decoder leaves over.
///
/// Not by `image`, which lets the same decoder make grey or noise of what is damaged.
fn decode_rare_jpeg(bytes: &[u8]) -> Result<DynamicImage, String> {
    if !jpeg::is_whole(bytes) {
        return Err("the JPEG file is truncated: it has no end-of-image marker".into());
    }
    let damaged = |error| format!("the JPEG file is damaged or of an unknown kind: {error}");
    // Sides are ours to check.
    let options = DecoderOptions::default().set_max_width(usize::MAX).set_max_height(usize::MAX);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(damaged)?;
    let (width, height) = decoder.dimensions().unwrap_or_default();
    let is_grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let (colours, num_colours) = if is_grey { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    if width.max(height) > MAX_SIDE as usize || (width * height * num_colours) as u64 > max_alloc(bytes) {
        return Err(too_large(format_args!("the image has {width}x{height} pixels"), bytes));
    }
    // Strict in what it makes pixels of; headers may have bytes between them, as libjpeg takes them.
    decoder.set_options(options.set_strict_mode(true).jpeg_set_out_colorspace(colours));
    let pixels = decoder.decode().map_err(damaged)?;
    let (width, height) = (width as u32, height as u32);
    let image = if is_grey {
        GrayImage::from_raw(width, height, pixels).map(DynamicImage::from)
    } else {
        RgbImage::from_raw(width, height, pixels).map(DynamicImage::from)
    };
    image.ok_or_else(|| format!("the JPEG file has fewer pixels than {width}x{height}"))
}

fn too_large(what: impl Display, bytes: &[u8]) -> String {
    format!(
        "{what}: expected at most {MAX_SIDE} pixels a side and {} MiB from a file of {} bytes",
        max_alloc(bytes) >> 20,
        bytes.len()
    )
}

#[cfg(test)]
mod tests;
