//! TIFF files. The first image becomes RGB, as in Pillow's `convert("RGB")`.
//!
//! In: the bytes of a file. Out: all its pixels, rotated according to the file. 16-bit values keep
//! their upper 8 bits, as in other formats. Alpha is dropped.

use std::borrow::Cow;
use std::io::Cursor;
use std::num::NonZero;

use image::metadata::Orientation;
use image::{DynamicImage, RgbImage};
use tiff::decoder::{BufferLayoutPreference, Decoder, DecodingResult, Limits};
use tiff::tags::{ByteOrder, CompressionMethod, Tag};
use tiff::{ColorType, TiffError, TiffUnsupportedError};

use super::jpeg::{darken, to_rgb};
use super::{check_size, max_alloc, too_large};

/// Interpretations of values: grey, and indices of palette colours.
const GREY: u16 = 1;
const PALETTE: u16 = 3;

/// Kind of alpha in which colours are premultiplied.
const ASSOCIATED_ALPHA: u8 = 1;

/// Decodes the first image of a file.
pub(super) fn decode(bytes: &[u8]) -> Result<DynamicImage, String> {
    let bad = |error: TiffError| match error {
        TiffError::LimitsExceeded => too_large(error, bytes),
        TiffError::UnsupportedError(TiffUnsupportedError::UnsupportedCompressionMethod(method)) => {
            unsupported_compression(method)
        }
        error => format!("the TIFF file cannot be decoded: {error}"),
    };
    let open = |file: Cow<'_, [u8]>| {
        let mut limits = Limits::default();
        limits.decoding_buffer_size = max_alloc(bytes) as usize;
        limits.intermediate_buffer_size = limits.decoding_buffer_size;
        Decoder::new(Cursor::new(file.into_owned())).map(|decoder| decoder.with_limits(limits))
    };
    let mut decoder = open(bytes.into()).map_err(bad)?;
    let mut palette = None;
    if decoder
        .find_tag_unsigned(Tag::PhotometricInterpretation)
        .map_err(bad)?
        == Some(PALETTE)
    {
        palette = Some(decoder.get_tag_u16_vec(Tag::ColorMap).map_err(bad)?);
        // The library does not support palettes.
        let grey = with_grey_values(bytes, decoder.byte_order())
            .ok_or("the TIFF file has a damaged directory")?;
        decoder = open(grey.into()).map_err(bad)?;
    }
    let (width, height) = decoder.dimensions().map_err(bad)?;
    check_size([width, height], 3, bytes)?;
    let colours = decoder.colortype().map_err(bad)?;
    let mut tag = |tag| decoder.find_tag_unsigned::<u8>(tag).ok().flatten();
    let orientation = tag(Tag::Orientation).and_then(Orientation::from_exif);
    let is_multiplied = tag(Tag::ExtraSamples) == Some(ASSOCIATED_ALPHA);
    let mut samples = DecodingResult::U8(Vec::new());
    let layout = decoder.read_image_to_buffer(&mut samples).map_err(bad)?;
    if samples.as_buffer(0).byte_len() < layout.complete_len {
        return Err(too_large("the image has several planes", bytes));
    }
    let values = Values {
        samples,
        layout,
        colours,
    };
    let row_len = 3 * width as usize;
    let mut rgb = vec![0; row_len * height as usize];
    for (row, pixels) in rgb.chunks_exact_mut(row_len).enumerate() {
        values.write_row(row, palette.as_deref(), is_multiplied, pixels)?;
    }
    let image = RgbImage::from_raw(width, height, rgb).expect("pixels of the image's size");
    let mut image = DynamicImage::from(image);
    image.apply_orientation(orientation.unwrap_or(Orientation::NoTransforms));
    Ok(image)
}

fn unsupported_compression(method: CompressionMethod) -> String {
    let name = match method {
        CompressionMethod::Huffman => "CCITT RLE".to_owned(),
        CompressionMethod::Fax3 => "CCITT Group 3 (fax)".to_owned(),
        CompressionMethod::JPEG => "old-style JPEG".to_owned(),
        CompressionMethod::ZSTD => "Zstandard".to_owned(),
        method => format!("{method:?}"),
    };
    format!(
        "the TIFF file is compressed by {name} (expected none, PackBits, LZW, Deflate, JPEG or \
         CCITT Group 4). Convert it, for instance by tiffcp -c lzw"
    )
}

/// Values of an image as the library decodes them.
struct Values {
    samples: DecodingResult,
    layout: BufferLayoutPreference,
    colours: ColorType,
}

impl Values {
    /// Returns the value at a position of a row as a byte. Values with fewer bits are unchanged.
    fn value(&self, plane: usize, row: usize, place: usize) -> Option<u8> {
        let bytes = |len: Option<NonZero<usize>>| len.map_or(0, NonZero::get);
        let start = plane * bytes(self.layout.plane_stride) + row * bytes(self.layout.row_stride);
        // Pillow clips 32-bit values to 8 bits.
        Some(
            match (&self.samples, usize::from(self.colours.bit_depth())) {
                (DecodingResult::U8(samples), bits @ 1..=8) => {
                    samples.get(start + place * bits / 8)? << (place * bits % 8) >> (8 - bits)
                }
                (DecodingResult::U16(samples), 16) => (samples.get(start / 2 + place)? >> 8) as u8,
                (DecodingResult::U32(samples), 32) => {
                    (*samples.get(start / 4 + place)?).min(255) as u8
                }
                (DecodingResult::I32(samples), 32) => {
                    (*samples.get(start / 4 + place)?).clamp(0, 255) as u8
                }
                (DecodingResult::F32(samples), 32) => *samples.get(start / 4 + place)? as u8,
                _ => return None,
            },
        )
    }

    fn unsupported(&self) -> String {
        format!(
            "TIFF files with values of {:?} are not supported",
            self.colours
        )
    }

    /// Returns a channel of a row.
    fn channel(&self, row: usize, width: usize, channel: usize) -> Result<Vec<u8>, String> {
        let num_channels = usize::from(self.colours.num_samples());
        let value = |column| match self.layout.planes {
            0 | 1 => self.value(0, row, num_channels * column + channel),
            _ => self.value(channel, row, column),
        };
        (0..width)
            .map(value)
            .collect::<Option<_>>()
            .ok_or_else(|| self.unsupported())
    }

    fn write_row(
        &self,
        row: usize,
        palette: Option<&[u16]>,
        is_multiplied: bool,
        pixels: &mut [u8],
    ) -> Result<(), String> {
        let bits = self.colours.bit_depth();
        let channel = |number| self.channel(row, pixels.len() / 3, number);
        let mut colours = [channel(0)?, Vec::new(), Vec::new()];
        match (self.colours, palette) {
            (ColorType::Gray(1..=8), Some(palette)) => {
                let indices = std::mem::take(&mut colours[0]);
                for (number, colour) in colours.iter_mut().enumerate() {
                    let value = |index: &u8| {
                        palette
                            .get(usize::from(*index) + (number << bits))
                            .map(|value| value >> 8)
                    };
                    let found: Option<Vec<u8>> = indices
                        .iter()
                        .map(|index| Some(value(index)? as u8))
                        .collect();
                    *colour = found.ok_or("the TIFF file has a palette of too few colours")?;
                }
            }
            (ColorType::Gray(_) | ColorType::Multiband { num_samples: 2, .. }, _) => {
                if bits < 8 {
                    colours[0]
                        .iter_mut()
                        .for_each(|value| *value *= 255 / ((1 << bits) - 1) as u8);
                }
                colours = std::array::from_fn(|_| colours[0].clone());
            }
            (
                ColorType::RGB(8 | 16)
                | ColorType::RGBA(8 | 16)
                | ColorType::CMYK(8 | 16)
                | ColorType::YCbCr(8),
                _,
            ) => {
                colours[1] = channel(1)?;
                colours[2] = channel(2)?;
            }
            _ => return Err(self.unsupported()),
        }
        let fourth = (self.colours.num_samples() > 3)
            .then(|| channel(3))
            .transpose()?
            .unwrap_or_default();
        if let ColorType::YCbCr(_) = self.colours {
            to_rgb(&colours[0], &colours[1], &colours[2], pixels);
            return Ok(());
        }
        for (column, pixel) in pixels.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            *pixel = [0, 1, 2].map(|number| colours[number][column]);
            if is_multiplied && matches!(self.colours, ColorType::RGBA(_)) {
                let alpha = u32::from(fourth[column]);
                *pixel = pixel.map(|value| {
                    (u32::from(value) * 255)
                        .checked_div(alpha)
                        .unwrap_or(0)
                        .min(255) as u8
                });
            }
        }
        if let ColorType::CMYK(_) = self.colours {
            let light: Vec<u8> = fourth.iter().map(|black| 255 - black).collect();
            darken(pixels, 0, &light);
        }
        Ok(())
    }
}

/// Copies a file and changes the interpretation of its first image's values to grey.
///
/// BigTIFF is not supported, because its directory has another form.
fn with_grey_values(bytes: &[u8], order: ByteOrder) -> Option<Vec<u8>> {
    let number = |place: usize, len: usize| -> Option<usize> {
        let bytes = bytes.get(place..place + len)?;
        let add = |number: usize, byte: &u8| number << 8 | usize::from(*byte);
        Some(match order {
            ByteOrder::BigEndian => bytes.iter().fold(0, add),
            ByteOrder::LittleEndian => bytes.iter().rev().fold(0, add),
        })
    };
    let directory = number(4, 4)?;
    let mut entries = (0..number(directory, 2)?).map(|index| directory + 2 + 12 * index);
    let entry = entries.find(|entry| {
        number(*entry, 2) == Some(usize::from(Tag::PhotometricInterpretation.to_u16()))
    })?;
    let mut copy = bytes.to_vec();
    let grey = if order == ByteOrder::BigEndian {
        GREY.to_be_bytes()
    } else {
        GREY.to_le_bytes()
    };
    copy.get_mut(entry + 8..entry + 10)?.copy_from_slice(&grey);
    Some(copy)
}
