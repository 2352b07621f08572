//! Conversion of planes with all sampling factors to rows of RGB.

use std::ops::Range;

use super::colour::{Mix, darken, to_rgb, widen};
use super::header::{Colours, Header, most_sampling};
use super::{Layout, Scratch, grow};
use crate::resize::CropBox;

impl Header {
    /// Converts the planes to pixels.
    #[inline(always)]
    pub(super) fn write_pixels(&self, layout: &Layout, part: CropBox, scratch: &mut Scratch) {
        let Scratch {
            planes,
            wide,
            sums,
            rgb,
            ..
        } = scratch;
        let [width, height] = self.size;
        let [left, top] = [part.left as usize, part.top as usize];
        let [columns, rows] = [
            left..left + part.width as usize,
            top..top + part.height as usize,
        ];
        let row_of = |component: usize, row: usize, len: usize| {
            let (start, stride) = layout.planes[component];
            &planes[start + row * stride..][..len]
        };
        let most = most_sampling(&self.components);
        let sampling: [[usize; 2]; 4] = std::array::from_fn(|index| {
            let sampling = self
                .components
                .get(index)
                .map_or(most, |component| component.sampling);
            [most[0] / sampling[0], most[1] / sampling[1]]
        });
        let num_components = self.components.len();
        for row in rows {
            for component in (0..num_components).filter(|component| sampling[*component] != [1; 2])
            {
                let [across, down] = sampling[component];
                let narrow = width.div_ceil(across);
                let mixed = left / across..columns.end.div_ceil(across);
                // The row that contains the pixels, and the nearest other row.
                let near = row / down;
                let is_upper = row % down == 0;
                let far = if is_upper {
                    near.saturating_sub(1)
                } else {
                    (near + 1).min(height.div_ceil(down) - 1)
                };
                let rows = [near, far].map(|row| row_of(component, row, narrow));
                grow(&mut wide[component], across * mixed.len(), 0);
                enlarge(
                    rows,
                    sampling[component],
                    is_upper,
                    mixed,
                    sums,
                    &mut wide[component],
                );
            }
            let samples: [&[u8]; 4] = std::array::from_fn(|component| {
                if component >= num_components {
                    &[]
                } else if sampling[component] == [1; 2] {
                    &row_of(component, row, width)[columns.clone()]
                } else {
                    &wide[component][left % sampling[component][0]..][..columns.len()]
                }
            });
            let [first, second, third, fourth] = samples;
            let pixels = &mut rgb[3 * (row * width + left)..][..3 * columns.len()];
            match self.colours {
                Colours::Grey => {
                    pixels
                        .as_chunks_mut()
                        .0
                        .iter_mut()
                        .zip(first)
                        .for_each(|(pixel, value)| *pixel = [*value; 3]);
                }
                Colours::Ycc | Colours::Ycck => to_rgb(first, second, third, pixels),
                Colours::Rgb | Colours::Cmyk => {
                    let colours = first.iter().zip(second).zip(third);
                    let pixels = pixels.as_chunks_mut().0.iter_mut();
                    pixels
                        .zip(colours)
                        .for_each(|(pixel, ((red, green), blue))| *pixel = [*red, *green, *blue]);
                }
            }
            match self.colours {
                Colours::Cmyk => darken(pixels, 0xFF, fourth),
                Colours::Ycck => darken(pixels, 0, fourth),
                _ => {}
            }
        }
    }
}

/// Enlarges a row of a plane to the image's width. `rows` are the row that contains the pixels, and
/// the nearest other row.
///
/// Colours of half the width or height are interpolated between the nearest two, 3 to 1 ("fancy
/// upsampling"). Other colours are repeated, and so are planes that are too narrow for libjpeg's
/// interpolation.
#[inline(always)]
fn enlarge(
    rows @ [near, _]: [&[u8]; 2],
    [across, down]: [usize; 2],
    is_upper: bool,
    columns: Range<usize>,
    sums: &mut Vec<u16>,
    wide: &mut [u8],
) {
    match [across, down] {
        [2, 1] if near.len() > 2 => widen(
            Mix {
                rows: [near; 2],
                rounding: [4, 8],
            },
            columns,
            sums,
            wide,
        ),
        [2, 2] if near.len() > 2 => widen(
            Mix {
                rows,
                rounding: [8, 7],
            },
            columns,
            sums,
            wide,
        ),
        [1, 2] => Mix {
            rows,
            rounding: [if is_upper { 1 } else { 2 }; 2],
        }
        .between_rows(columns, wide),
        _ => {
            let wide = wide.chunks_exact_mut(across);
            wide.zip(&near[columns])
                .for_each(|(wide, value)| wide.fill(*value));
        }
    }
}
