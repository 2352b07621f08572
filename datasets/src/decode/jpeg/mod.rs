//! Baseline JPEG, as most photographs have it: codes are read down to the last wanted row, and only the wanted part becomes pixels.
//!
//! In: the bytes of a file, and which of its pixels are wanted. Out: RGB.
//! Invariant: bit for bit the pixels of libjpeg-turbo's defaults, and so Pillow's and torchvision's, wherever its vectors of 16 bits
//! hold their values, as those of any image do; no byte of the file is trusted.
//! What is rare (progressive files, CMYK, other samplings) or damaged gives `None`: `zune-jpeg` reads it, or has the error for it. It
//! makes pixels of all of a file and takes twice as long for the codes.
//! Source: ITU-T T.81.

mod colour;
mod header;
mod huffman;
mod inverse;

use std::ops::Range;

use kernels::simd::{Isa, Task, vectorized};

use self::colour::{Mix, to_rgb, widen};
use self::header::END_OF_IMAGE;
use self::huffman::Bits;
use self::inverse::{Group, LANES};
use crate::resize::CropBox;

pub(super) use self::header::{Header, is_whole};

/// Memory that is used again: what is between the steps, and the pixels.
#[derive(Default)]
pub(super) struct Scratch {
    codes: Vec<u8>,
    planes: Vec<u8>,
    wide: [Vec<u8>; 2],
    sums: Vec<u16>,
    rgb: Vec<u8>,
}

impl Scratch {
    /// Its bytes, but for those of single rows.
    pub(super) fn len(&self) -> usize {
        self.codes.capacity() + self.planes.capacity() + self.rgb.capacity()
    }

    /// The pixels that were just decoded; the memory goes with them.
    pub(super) fn into_pixels(self, len: usize) -> Vec<u8> {
        let mut pixels = self.rgb;
        pixels.truncate(len);
        pixels
    }
}

impl Header {
    /// Decodes the file that this header is of.
    ///
    /// # Shapes
    /// `part`: inside the image; the result: `[height, width, 3]`, anything outside of `part`.
    pub(super) fn decode<'a>(&self, bytes: &[u8], part: CropBox, scratch: &'a mut Scratch) -> Option<&'a [u8]> {
        vectorized(Isa::detect(), Decoding { header: self, bytes, part, scratch: &mut *scratch })?;
        Some(&scratch.rgb[..3 * self.size[0] * self.size[1]])
    }
}

/// The work of [`Header::decode`].
struct Decoding<'a> {
    header: &'a Header,
    bytes: &'a [u8],
    part: CropBox,
    scratch: &'a mut Scratch,
}

impl Task for Decoding<'_> {
    type Output = Option<()>;

    #[inline(always)]
    fn run(self) -> Option<()> {
        let Self { header, bytes, part, scratch } = self;
        let layout = Layout::of(header, part);
        let ends = unstuff(bytes.get(header.codes_at..)?, layout.size[0] * layout.size[1], &mut scratch.codes)?;
        grow(&mut scratch.planes, layout.planes_len);
        grow(&mut scratch.rgb, 3 * header.size[0] * header.size[1]);
        header.read_planes(&layout, &scratch.codes, &ends, &mut scratch.planes)?;
        header.write_pixels(&layout, part, scratch);
        Some(())
    }
}

fn grow(memory: &mut Vec<u8>, len: usize) {
    if memory.len() < len {
        memory.resize(len, 0);
    }
}

/// Where things are.
struct Layout {
    /// Units across the image and down.
    size: [usize; 2],
    /// Columns and rows of the units that become pixels.
    units: [Range<usize>; 2],
    /// Of each component, where its plane begins, and the bytes of its rows.
    planes: Vec<(usize, usize)>,
    planes_len: usize,
}

impl Layout {
    fn of(header: &Header, part: CropBox) -> Self {
        let [across, down] = header.components[0].sampling.map(|blocks| 8 * blocks);
        let [units_across, units_down] = [header.size[0].div_ceil(across), header.size[1].div_ceil(down)];
        // A colour is mixed with that of its neighbours, two pixels away.
        let units = |start: u32, len: u32, side: usize, number: usize| {
            let end = (start + len + 2) as usize;
            start.saturating_sub(2) as usize / side..end.div_ceil(side).min(number)
        };
        let (mut planes, mut planes_len) = (Vec::new(), 0);
        for component in &header.components {
            let stride = 8 * component.sampling[0] * units_across;
            planes.push((planes_len, stride));
            planes_len += stride * 8 * component.sampling[1] * units_down;
        }
        Self {
            size: [units_across, units_down],
            units: [units(part.left, part.width, across, units_across), units(part.top, part.height, down, units_down)],
            planes,
            planes_len,
        }
    }
}

impl Header {
    /// Decodes the units down to the last that is wanted; those that are wanted become bytes of the planes.
    #[inline(always)]
    fn read_planes(&self, layout: &Layout, codes: &[u8], ends: &[usize], planes: &mut [u8]) -> Option<()> {
        let [columns, rows] = &layout.units;
        let mut coded = Vec::new();
        for (component, plane) in self.components.iter().zip(&layout.planes) {
            let [dc, ac] = component.tables.map(|table| self.tables[table].as_ref());
            let quantization = self.quantizations.get(component.quantization)?.as_ref()?;
            coded.push((component.sampling, [dc?, ac?], quantization, plane));
        }
        let mut group = Group::new();
        let (mut starts, mut num_starts) = ([(0, 0); LANES], 0);
        // Bytes of codes up to a restart.
        let len = |restart: usize| Some(*ends.get(restart)? - if restart == 0 { 0 } else { ends[restart - 1] });
        let (mut restart, mut bits, mut means) = (0, Bits::new(codes), [0; 3]);
        for unit in 0..rows.end * layout.size[0] {
            if self.restart_interval > 0 && unit > 0 && unit % self.restart_interval == 0 {
                bits.end(len(restart)?)?;
                bits = Bits::new(&codes[ends[restart]..]);
                (restart, means) = (restart + 1, [0; 3]);
            }
            let (row, column) = (unit / layout.size[0], unit % layout.size[0]);
            let is_wanted = rows.contains(&row) && columns.contains(&column);
            for (([across, down], tables, quantization, (plane, stride)), mean) in coded.iter().zip(&mut means) {
                for block in 0..across * down {
                    if !is_wanted {
                        bits.block(*tables, mean, quantization, None)?;
                        continue;
                    }
                    bits.block(*tables, mean, quantization, Some((&mut group, num_starts)))?;
                    let (y, x) = (row * down + block / across, column * across + block % across);
                    starts[num_starts] = (plane + 8 * (y * stride + x), *stride);
                    num_starts += 1;
                    if num_starts == LANES {
                        group.write(&starts, planes);
                        num_starts = 0;
                    }
                }
            }
        }
        group.write(&starts[..num_starts], planes);
        bits.end(len(restart)?)
    }

    /// Makes pixels of the planes.
    #[inline(always)]
    fn write_pixels(&self, layout: &Layout, part: CropBox, scratch: &mut Scratch) {
        let Scratch { planes, wide, sums, rgb, .. } = scratch;
        let [width, height] = self.size;
        let [left, top] = [part.left as usize, part.top as usize];
        let [columns, rows] = [left..left + part.width as usize, top..top + part.height as usize];
        let row_of = |component: usize, row: usize, len: usize| {
            let (start, stride) = layout.planes[component];
            &planes[start + row * stride..][..len]
        };
        let [across, down] = self.components[0].sampling;
        let narrow = width.div_ceil(across);
        let mixed = left / across..columns.end.div_ceil(across);
        if self.components.len() > 1 {
            wide.iter_mut().for_each(|wide| grow(wide, 2 * mixed.len()));
        }
        for row in rows {
            let brightness = &row_of(0, row, width)[columns.clone()];
            let pixels = &mut rgb[3 * (row * width + left)..][..3 * columns.len()];
            if self.components.len() == 1 {
                pixels.as_chunks_mut().0.iter_mut().zip(brightness).for_each(|(pixel, value)| *pixel = [*value; 3]);
                continue;
            }
            if across == 1 {
                let [blue, red] = [1, 2].map(|component| &row_of(component, row, width)[columns.clone()]);
                if self.is_rgb {
                    // In their order, whatever else they are called here.
                    let colours = brightness.iter().zip(blue).zip(red);
                    let pixels = pixels.as_chunks_mut().0.iter_mut();
                    pixels
                        .zip(colours)
                        .for_each(|(pixel, ((first, second), third))| *pixel = [*first, *second, *third]);
                } else {
                    to_rgb(brightness, blue, red, pixels);
                }
                continue;
            }
            for (component, wide) in (1..).zip(&mut *wide) {
                if narrow <= 2 {
                    // So narrow ones libjpeg repeats.
                    let near = &row_of(component, row / down, narrow)[mixed.clone()];
                    wide.as_chunks_mut().0.iter_mut().zip(near).for_each(|(pair, colour)| *pair = [*colour; 2]);
                    continue;
                }
                let mix = if down == 1 {
                    let near = row_of(component, row, narrow);
                    Mix { rows: [near, near], rounding: [4, 8] }
                } else {
                    let near = row / 2;
                    let far =
                        if row % 2 == 0 { near.saturating_sub(1) } else { (near + 1).min(height.div_ceil(2) - 1) };
                    Mix { rows: [near, far].map(|row| row_of(component, row, narrow)), rounding: [8, 7] }
                };
                widen(mix, mixed.clone(), sums, wide);
            }
            let [blue, red] = [0, 1].map(|colour: usize| &wide[colour][left % across..][..columns.len()]);
            to_rgb(brightness, blue, red, pixels);
        }
    }
}

/// Copies the codes of a scan without the zeros that are stuffed behind each 0xFF; where each restart is, and the end.
///
/// None if another marker than the image's end follows, or restarts are out of order or more than units.
#[inline(always)]
fn unstuff(mut rest: &[u8], num_units: usize, codes: &mut Vec<u8>) -> Option<Vec<usize>> {
    codes.clear();
    codes.reserve(rest.len() + 16);
    let mut ends = Vec::new();
    loop {
        // Most pieces have none.
        while let Some(piece) =
            rest.first_chunk::<32>().filter(|piece| !piece.iter().fold(false, |any, byte| any | (*byte == 0xFF)))
        {
            codes.extend_from_slice(piece);
            rest = &rest[32..];
        }
        let (before, behind) = rest.split_at(rest.iter().position(|byte| *byte == 0xFF)?);
        codes.extend_from_slice(before);
        match behind.get(1)? {
            0 => codes.push(0xFF),
            marker @ 0xD0..=0xD7 if usize::from(marker & 7) == ends.len() % 8 && ends.len() < num_units => {
                ends.push(codes.len());
            }
            &END_OF_IMAGE => {
                ends.push(codes.len());
                codes.extend([0; 16]);
                return Some(ends);
            }
            _ => return None,
        }
        rest = &behind[2..];
    }
}

#[cfg(test)]
mod tests;
