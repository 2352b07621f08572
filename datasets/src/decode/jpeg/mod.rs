//! Decoder of sequential and progressive JPEG files that converts only the wanted part to pixels.
//!
//! In: the bytes of a file. Out: RGB.
//! Invariant: the pixels have the bits of libjpeg-turbo's defaults, and thus of Pillow and
//! torchvision. An exception are files whose values exceed libjpeg-turbo's 16-bit vectors, which no
//! real image needs. All bytes are validated. A damaged file is an error, and so is a file that
//! Pillow cannot read.
//! Source: ITU-T T.81.
//!
//! Most photographs have sequential Huffman codes. These files become pixels while they are read,
//! down to the last wanted row. For other files, the decoder keeps the coefficients of all blocks
//! until the last scan.

mod arithmetic;
mod coefficients;
mod colour;
mod header;
mod huffman;
mod inverse;
mod pixels;
mod scans;
mod smooth;

use std::borrow::Cow;
use std::ops::Range;

use kernels::simd::{Isa, Task, vectorized};

use self::coefficients::{Coder, Coefficients};
use self::header::most_sampling;
use self::huffman::Bits;
use self::inverse::{Group, LANES};
use self::scans::{Scans, Sweep};
use crate::resize::CropBox;

pub(super) use self::colour::{darken, to_rgb};
pub(super) use self::header::Header;

/// Reason why a file cannot be decoded.
pub(super) type Reason = Cow<'static, str>;

type Result<T> = std::result::Result<T, Reason>;

/// Reusable memory for intermediate results and pixels.
#[derive(Default)]
pub(super) struct Scratch {
    codes: Vec<u8>,
    blocks: Vec<Coefficients>,
    planes: Vec<u8>,
    wide: [Vec<u8>; 4],
    sums: Vec<u16>,
    rgb: Vec<u8>,
}

impl Scratch {
    /// Returns the memory in bytes, without that of single rows.
    pub(super) fn len(&self) -> usize {
        self.codes.capacity()
            + size_of::<Coefficients>() * self.blocks.capacity()
            + self.planes.capacity()
            + self.rgb.capacity()
    }

    /// Returns the pixels of the last call of `decode` and frees the other memory.
    pub(super) fn into_pixels(self, len: usize) -> Vec<u8> {
        let mut pixels = self.rgb;
        pixels.truncate(len);
        pixels
    }
}

impl Header {
    /// Decodes the file of this header.
    ///
    /// # Shapes
    /// `part`: inside the image. Result: `[height, width, 3]`. Pixels outside `part` are undefined.
    pub(super) fn decode<'a>(
        &self,
        bytes: &[u8],
        part: CropBox,
        scratch: &'a mut Scratch,
    ) -> Result<&'a [u8]> {
        let layout = Layout::of(self, part);
        grow(&mut scratch.planes, layout.planes_len, 0);
        grow(&mut scratch.rgb, 3 * self.size[0] * self.size[1], 0);
        let mut scans = Scans::of(self);
        if self.is_progressive || self.is_arithmetic {
            self.read_blocks(bytes, &layout, &mut scans, scratch)?;
        }
        vectorized(
            Isa::detect(),
            Decoding {
                header: self,
                bytes,
                part,
                layout,
                scans,
                scratch: &mut *scratch,
            },
        )?;
        Ok(&scratch.rgb[..3 * self.size[0] * self.size[1]])
    }

    /// Reads the coefficients of all blocks.
    fn read_blocks(
        &self,
        bytes: &[u8],
        layout: &Layout,
        scans: &mut Scans<'_>,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let Scratch { blocks, codes, .. } = scratch;
        blocks.clear();
        blocks.resize(layout.planes_len / 64, [0; 64]);
        while scans.next(bytes)? {
            let sweep = Sweep::of(self, layout, &scans.scan);
            let ends = scans.unstuff(bytes, &sweep, codes)?;
            self.read_scan(layout, scans, &sweep, codes, &ends, blocks)
                .ok_or_else(|| scans.damaged())?;
        }
        if scans.leaves_bits_open() {
            for (index, component) in self.components.iter().enumerate() {
                smooth::smooth(
                    &mut blocks[layout.all_blocks(index)],
                    self,
                    component,
                    layout,
                    &scans.state[index],
                );
            }
        }
        Ok(())
    }

    /// Reads a scan's bits of all its blocks.
    fn read_scan(
        &self,
        layout: &Layout,
        scans: &Scans<'_>,
        sweep: &Sweep,
        codes: &[u8],
        ends: &[usize],
        blocks: &mut [Coefficients],
    ) -> Option<()> {
        let mut coder = Coder::new(self, &scans.tables, &scans.scan)?;
        let mut restart = 0;
        coder.restart(codes, ends[0]);
        let interval = scans.tables.restart_interval;
        let [num_columns, num_rows] = sweep.size;
        for (row, column) in
            (0..num_rows).flat_map(|row| (0..num_columns).map(move |column| (row, column)))
        {
            let unit = row * num_columns + column;
            if interval > 0 && unit > 0 && unit % interval == 0 {
                coder.end(len_before(ends, restart)?)?;
                restart += 1;
                coder.restart(&codes[ends[restart - 1]..], len_before(ends, restart)?);
            }
            let components = scans.scan.components.iter().zip(&sweep.blocks);
            for (index, ((component, _), [across, down])) in components.enumerate() {
                let (plane, stride) = layout.planes[*component];
                for block in 0..across * down {
                    let y = row * down + block / across;
                    let x = column * across + block % across;
                    coder.block(index, &mut blocks[(plane + 8 * y * stride) / 64 + x])?;
                }
            }
        }
        coder.end(len_before(ends, restart)?)
    }
}

/// Returns the number of entropy-coded bytes between the previous restart and `restart`.
#[inline(always)]
fn len_before(ends: &[usize], restart: usize) -> Option<usize> {
    Some(*ends.get(restart)? - if restart == 0 { 0 } else { ends[restart - 1] })
}

/// Arguments of the vectorised part of [`Header::decode`].
struct Decoding<'a> {
    header: &'a Header,
    bytes: &'a [u8],
    part: CropBox,
    layout: Layout,
    scans: Scans<'a>,
    scratch: &'a mut Scratch,
}

impl Task for Decoding<'_> {
    type Output = Result<()>;

    #[inline(always)]
    fn run(self) -> Result<()> {
        let Self {
            header,
            bytes,
            part,
            layout,
            mut scans,
            scratch,
        } = self;
        if header.is_progressive || header.is_arithmetic {
            header.transform(&layout, &scans, &scratch.blocks, &mut scratch.planes);
        } else {
            while scans.next(bytes)? {
                let sweep = Sweep::of(header, &layout, &scans.scan);
                let ends = scans.unstuff(bytes, &sweep, &mut scratch.codes)?;
                let read = header.read_planes(
                    &layout,
                    &scans,
                    &sweep,
                    &scratch.codes,
                    &ends,
                    &mut scratch.planes,
                );
                read.ok_or_else(|| scans.damaged())?;
            }
        }
        header.write_pixels(&layout, part, scratch);
        Ok(())
    }
}

fn grow<T: Copy>(memory: &mut Vec<T>, len: usize, value: T) {
    if memory.len() < len {
        memory.resize(len, value);
    }
}

/// Positions of MCUs and planes.
struct Layout {
    /// Number of MCUs across and down.
    size: [usize; 2],
    /// Columns and rows of the MCUs that become pixels.
    units: [Range<usize>; 2],
    /// Start of each component's plane, and bytes per row of the plane. The index of a block is its
    /// start in the plane divided by 64.
    planes: Vec<(usize, usize)>,
    planes_len: usize,
}

impl Layout {
    fn of(header: &Header, part: CropBox) -> Self {
        let [across, down] = most_sampling(&header.components).map(|blocks| 8 * blocks);
        let [units_across, units_down] = [
            header.size[0].div_ceil(across),
            header.size[1].div_ceil(down),
        ];
        // Interpolation of colours needs neighbours up to two pixels away.
        let units = |start: u32, len: u32, side: usize, number: usize| {
            let end = (start + len + 2) as usize;
            start.saturating_sub(2) as usize / side..end.div_ceil(side).min(number)
        };
        let mut planes = Vec::new();
        let mut planes_len = 0;
        for component in &header.components {
            let stride = 8 * component.sampling[0] * units_across;
            planes.push((planes_len, stride));
            planes_len += stride * 8 * component.sampling[1] * units_down;
        }
        Self {
            size: [units_across, units_down],
            units: [
                units(part.left, part.width, across, units_across),
                units(part.top, part.height, down, units_down),
            ],
            planes,
            planes_len,
        }
    }

    /// Returns the indices of all blocks of a component.
    fn all_blocks(&self, component: usize) -> Range<usize> {
        let start = |component: usize| {
            self.planes
                .get(component)
                .map_or(self.planes_len, |(start, _)| *start)
                / 64
        };
        start(component)..start(component + 1)
    }

    /// Returns the wanted columns and rows of a component's blocks.
    #[inline(always)]
    fn blocks(&self, sampling: [usize; 2]) -> [Range<usize>; 2] {
        [0, 1].map(|side| {
            let units = &self.units[side];
            units.start * sampling[side]..units.end * sampling[side]
        })
    }
}

impl Header {
    /// Reads the MCUs of a sequential scan down to the last wanted one. Transforms wanted MCUs and
    /// writes them to the planes.
    #[inline(always)]
    fn read_planes(
        &self,
        layout: &Layout,
        scans: &Scans<'_>,
        sweep: &Sweep,
        codes: &[u8],
        ends: &[usize],
        planes: &mut [u8],
    ) -> Option<()> {
        let [columns, rows] = &sweep.wanted;
        let restart_interval = scans.tables.restart_interval;
        let mut coded = Vec::new();
        for ((component, tables), blocks) in scans.scan.components.iter().zip(&sweep.blocks) {
            let [dc, ac] = tables.map(|table| scans.tables.codes[table].as_ref());
            coded.push((
                *blocks,
                [dc?, ac?],
                &scans.state[*component].quantization,
                layout.planes[*component],
            ));
        }
        let mut group = Group::new(scans.state.iter().map(|state| &state.quantization));
        let mut starts = [(0, 0); LANES];
        let mut num_starts = 0;
        let mut restart = 0;
        let mut bits = Bits::new(codes);
        let mut means = [0; 4];
        for unit in 0..rows.end * sweep.size[0] {
            if restart_interval > 0 && unit > 0 && unit % restart_interval == 0 {
                bits.end(len_before(ends, restart)?)?;
                bits = Bits::new(&codes[ends[restart]..]);
                restart += 1;
                means = [0; 4];
            }
            let row = unit / sweep.size[0];
            let column = unit % sweep.size[0];
            let is_wanted = rows.contains(&row) && columns.contains(&column);
            for (([across, down], tables, quantization, (plane, stride)), mean) in
                coded.iter().zip(&mut means)
            {
                for block in 0..across * down {
                    if !is_wanted {
                        bits.block(*tables, mean, quantization, None)?;
                        continue;
                    }
                    bits.block(*tables, mean, quantization, Some((&mut group, num_starts)))?;
                    let y = row * down + block / across;
                    let x = column * across + block % across;
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
        bits.end(len_before(ends, restart)?)
    }

    /// Transforms all wanted blocks and writes them to the planes.
    #[inline(always)]
    fn transform(
        &self,
        layout: &Layout,
        scans: &Scans<'_>,
        blocks: &[Coefficients],
        planes: &mut [u8],
    ) {
        let mut group = Group::new(scans.state.iter().map(|state| &state.quantization));
        let mut starts = [(0, 0); LANES];
        let mut num_starts = 0;
        for (index, (plane, stride)) in layout.planes.iter().enumerate() {
            let [columns, rows] = layout.blocks(self.components[index].sampling);
            let quantization = &scans.state[index].quantization;
            for (y, x) in rows.flat_map(|y| columns.clone().map(move |x| (y, x))) {
                let start = plane + 8 * y * stride;
                // Most coefficients are zero, often eight in a row.
                for (eighth, values) in blocks[start / 64 + x].as_chunks::<8>().0.iter().enumerate()
                {
                    if *values == [0; 8] {
                        continue;
                    }
                    for (place, value) in (8 * eighth..).zip(values) {
                        group.set(
                            place as u8,
                            num_starts,
                            i32::from(*value).wrapping_mul(quantization[place]),
                        );
                    }
                }
                starts[num_starts] = (start + 8 * x, *stride);
                num_starts += 1;
                if num_starts == LANES {
                    group.write(&starts, planes);
                    num_starts = 0;
                }
            }
        }
        group.write(&starts[..num_starts], planes);
    }
}

#[cfg(test)]
mod tests;
