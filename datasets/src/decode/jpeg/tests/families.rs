//! Compares the decoder with the floating-point definition of the transform. The tests write whole
//! families of JPEG files from coefficients.

use super::super::*;
use super::codes::Codes;

/// Coefficients of a block in zigzag order. Coefficients that a file cannot hold are 0.
type Coefficients = [i16; 64];

/// A component: its sampling and the blocks of its plane, including padding of the last MCU.
struct Plane {
    sampling: [usize; 2],
    stride: usize,
    blocks: Vec<Coefficients>,
}

/// A file to write.
struct Image {
    size: [usize; 2],
    planes: Vec<Plane>,
    restart_interval: usize,
    /// True if all codes have 16 bits, or 8 and 9 bits.
    has_long_codes: bool,
}

/// Components, first and last zigzag index, and the lowest bit of the previous and of this scan.
type ScanOf<'a> = (&'a [usize], [usize; 2], [u32; 2]);

const WHOLE: [usize; 2] = [0, 63];
const EXACT: [u32; 2] = [0, 0];

/// Returns the quantisation step of a zigzag index.
fn step(place: usize) -> i32 {
    4 + place as i32 / 2
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

impl Image {
    fn random(
        size: [usize; 2],
        samplings: &[[usize; 2]],
        restart_interval: usize,
        seed: usize,
    ) -> Self {
        let mut random = Random(seed as u64);
        let most = [0, 1].map(|side| {
            samplings
                .iter()
                .map(|sampling| sampling[side])
                .max()
                .unwrap()
        });
        let units = [0, 1].map(|side| size[side].div_ceil(8 * most[side]));
        let mut planes = Vec::new();
        for sampling in samplings {
            let stride = units[0] * sampling[0];
            let mut blocks = vec![[0; 64]; stride * units[1] * sampling[1]];
            for block in &mut blocks {
                block[0] = random.below(200) as i16 - 100;
                for _ in 0..random.below(6) {
                    block[1 + random.below(63)] = random.below(25) as i16 - 12;
                }
            }
            planes.push(Plane {
                sampling: *sampling,
                stride,
                blocks,
            });
        }
        Self {
            size,
            planes,
            restart_interval,
            has_long_codes: seed % 2 == 1,
        }
    }

    fn most(&self, side: usize) -> usize {
        self.planes
            .iter()
            .map(|plane| plane.sampling[side])
            .max()
            .unwrap()
    }

    /// Returns the blocks of a scan, MCU by MCU, as component and index of the block.
    fn units(&self, components: &[usize]) -> Vec<Vec<(usize, usize)>> {
        let mut units = Vec::new();
        let side = |side: usize, own: usize| (self.size[side] * own).div_ceil(8 * self.most(side));
        if let [component] = *components {
            let Plane {
                sampling, stride, ..
            } = &self.planes[component];
            for row in 0..side(1, sampling[1]) {
                units.extend(
                    (0..side(0, sampling[0]))
                        .map(|column| vec![(component, row * stride + column)]),
                );
            }
            return units;
        }
        for row in 0..side(1, 1) {
            for column in 0..side(0, 1) {
                let mut unit = Vec::new();
                for component in components {
                    let Plane {
                        sampling: [across, down],
                        stride,
                        ..
                    } = self.planes[*component];
                    for (y, x) in (0..down).flat_map(|y| (0..across).map(move |x| (y, x))) {
                        unit.push((*component, (row * down + y) * stride + column * across + x));
                    }
                }
                units.push(unit);
            }
        }
        units
    }

    fn write(&self, process: u8, scans: &[ScanOf<'_>]) -> Vec<u8> {
        let mut bytes = b"\xFF\xD8".to_vec();
        let mut segment = |marker: u8, body: &[u8]| {
            bytes.extend([0xFF, marker]);
            bytes.extend((body.len() as u16 + 2).to_be_bytes());
            bytes.extend(body);
        };
        let steps: Vec<u8> = (0..64).map(|place| step(place) as u8).collect();
        segment(0xDB, &[&[0], &steps[..]].concat());
        let [width, height] = self.size.map(|side| (side as u16).to_be_bytes());
        let mut frame = [&[8], &height[..], &width, &[self.planes.len() as u8]].concat();
        for (id, plane) in self.planes.iter().enumerate() {
            frame.extend([
                id as u8 + 1,
                (plane.sampling[0] << 4 | plane.sampling[1]) as u8,
                0,
            ]);
        }
        segment(process, &frame);
        for class in [0x00, 0x10] {
            let mut counts = [0; 16];
            if self.has_long_codes {
                counts[15] = 255;
            } else {
                (counts[7], counts[8]) = (254, 1);
            }
            let symbols: Vec<u8> = (0..255).collect();
            segment(0xC4, &[&[class], &counts[..], &symbols].concat());
        }
        segment(0xDD, &(self.restart_interval as u16).to_be_bytes());
        for scan in scans {
            self.write_scan(process, scan, &mut bytes);
        }
        bytes.extend(b"\xFF\xD9");
        bytes
    }

    fn write_scan(&self, process: u8, scan: &ScanOf<'_>, bytes: &mut Vec<u8>) {
        let (components, [first, last], [high, low]) = *scan;
        bytes.extend([
            0xFF,
            0xDA,
            0,
            6 + 2 * components.len() as u8,
            components.len() as u8,
        ]);
        components
            .iter()
            .for_each(|component| bytes.extend([*component as u8 + 1, 0]));
        bytes.extend([first as u8, last as u8, (high << 4 | low) as u8]);
        let mut codes = Codes::new(self.has_long_codes);
        let mut means = [0; 4];
        for (number, unit) in self.units(components).iter().enumerate() {
            if self.restart_interval > 0 && number > 0 && number % self.restart_interval == 0 {
                codes.end(bytes);
                bytes.extend([0xFF, 0xD0 + (number / self.restart_interval - 1) as u8 % 8]);
                means = [0; 4];
            }
            for (component, index) in unit {
                let block = &self.planes[*component].blocks[*index];
                if first == 0 && high == 0 {
                    let mean = block[0] >> low;
                    codes.value(0, mean - means[*component]);
                    means[*component] = mean;
                } else if first == 0 {
                    codes.bits(u32::from(block[0] as u16 >> low & 1), 1);
                }
                match (process, first) {
                    (0xC2, 0) => {}
                    (0xC2, _) if high > 0 => codes.next_bit(&block[first..=last], low),
                    _ => codes.first_bits(&block[first.max(1)..=last], low, process == 0xC2),
                }
            }
        }
        codes.end(bytes);
    }

    /// Returns the samples of a component, by the definition of the transform.
    fn samples(&self, plane: &Plane) -> Vec<Vec<f64>> {
        let mut places = Vec::new();
        for diagonal in 0..15usize {
            let upwards = (diagonal.saturating_sub(7)..=diagonal.min(7))
                .map(|column| (diagonal - column, column));
            // Row and column of a zigzag index. Even diagonals run upwards.
            places.extend(if diagonal % 2 == 0 {
                upwards.collect::<Vec<_>>()
            } else {
                upwards.rev().collect()
            });
        }
        let wave = |frequency: usize, at: usize| {
            let scale = if frequency == 0 { 0.125f64.sqrt() } else { 0.5 };
            scale * ((2 * at + 1) as f64 * frequency as f64 * std::f64::consts::PI / 16.0).cos()
        };
        let mut samples = vec![vec![0.0; 8 * plane.stride]; 8 * plane.blocks.len() / plane.stride];
        for (index, block) in plane.blocks.iter().enumerate() {
            for (y, x) in (0..8).flat_map(|y| (0..8).map(move |x| (y, x))) {
                let values = block
                    .iter()
                    .zip(&places)
                    .enumerate()
                    .filter(|(_, (value, _))| **value != 0);
                let sum: f64 = values
                    .map(|(place, (value, (row, column)))| {
                        f64::from(i32::from(*value) * step(place))
                            * wave(*row, y)
                            * wave(*column, x)
                    })
                    .sum();
                samples[index / plane.stride * 8 + y][index % plane.stride * 8 + x] =
                    (sum + 128.0).round().clamp(0.0, 255.0);
            }
        }
        samples
    }

    /// Returns the pixels. Colours of half the size are interpolated: three parts of the nearest
    /// and one part of the next.
    fn pixels(&self) -> Vec<f64> {
        let [width, height] = self.size;
        let mut channels = Vec::new();
        for plane in &self.planes {
            let samples = self.samples(plane);
            let [across, down] = [0, 1].map(|side| self.most(side) / plane.sampling[side]);
            let [narrow, short] = [width.div_ceil(across), height.div_ceil(down)];
            let is_mixed = matches!([across, down], [2, 1 | 2]) && narrow > 2;
            // The nearest sample, the next one, and the weight of the next one.
            let around = |at: usize, factor: usize, len: usize, is_mixed: bool| {
                let near = at / factor;
                let next = if at.is_multiple_of(2) {
                    near.saturating_sub(1)
                } else {
                    (near + 1).min(len - 1)
                };
                if is_mixed {
                    (near, next, 0.25)
                } else {
                    (near, near, 0.0)
                }
            };
            let mut channel = Vec::new();
            for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                let (top, bottom, low) =
                    around(y, down, short, down == 2 && (is_mixed || across == 1));
                let (left, right, far) = around(x, across, narrow, is_mixed);
                let row = |row: usize| samples[row][left] * (1.0 - far) + samples[row][right] * far;
                channel.push(row(top) * (1.0 - low) + row(bottom) * low);
            }
            channels.push(channel);
        }
        let mut pixels = Vec::new();
        for index in 0..width * height {
            let value = |channel: usize| channels[channel][index];
            let rgb = match channels.len() {
                1 => [value(0); 3],
                // Files store ink inverted.
                4 => [0, 1, 2].map(|ink| value(ink) * value(3) / 255.0),
                _ => {
                    let [blue, red] = [value(1) - 128.0, value(2) - 128.0];
                    [
                        value(0) + 1.402 * red,
                        value(0) - 0.344_14 * blue - 0.714_14 * red,
                        value(0) + 1.772 * blue,
                    ]
                }
            };
            pixels.extend(rgb.map(|value| value.clamp(0.0, 255.0)));
        }
        pixels
    }

    #[track_caller]
    fn check(&self, process: u8, scans: &[ScanOf<'_>]) {
        let samplings: Vec<_> = self.planes.iter().map(|plane| plane.sampling).collect();
        let name = format!(
            "{:?}, {samplings:?}, {scans:?}, restart {}",
            self.size, self.restart_interval
        );
        let bytes = self.write(process, scans);
        let header = Header::read(&bytes).unwrap_or_else(|reason| panic!("{name}: {reason}"));
        let [width, height] = header.size();
        let mut scratch = Scratch::default();
        let pixels = header.decode(
            &bytes,
            CropBox {
                left: 0,
                top: 0,
                width,
                height,
            },
            &mut scratch,
        );
        let pixels = pixels.unwrap_or_else(|reason| panic!("{name}: {reason}"));
        for (index, (got, expected)) in pixels.iter().zip(self.pixels()).enumerate() {
            // Samples differ by at most 1, and colours by at most 2.
            assert!(
                (f64::from(*got) - expected).abs() < 5.0,
                "{name}: value {index}: {got}, expected {expected}"
            );
        }
    }
}

/// One side is close to the size of an MCU, and the other side varies.
const SIZES: [[usize; 2]; 9] = [
    [1, 1],
    [3, 5],
    [8, 17],
    [16, 16],
    [17, 15],
    [33, 9],
    [31, 33],
    [5, 40],
    [65, 3],
];

const SAMPLINGS: [[[usize; 2]; 3]; 11] = [
    [[1, 1], [1, 1], [1, 1]],
    [[2, 1], [1, 1], [1, 1]],
    [[2, 2], [1, 1], [1, 1]],
    [[1, 2], [1, 1], [1, 1]],
    [[4, 1], [1, 1], [1, 1]],
    [[1, 4], [1, 1], [1, 1]],
    [[4, 2], [1, 1], [1, 1]],
    [[2, 2], [2, 1], [1, 2]],
    [[3, 1], [1, 1], [3, 1]],
    [[1, 1], [2, 2], [1, 2]],
    [[2, 2], [2, 2], [2, 2]],
];

#[test]
fn sequential_files_have_their_pixels_whatever_scans_samplings_sizes_and_restarts_they_have() {
    let layouts: [&[ScanOf<'_>]; 6] = [
        &[(&[0, 1, 2], WHOLE, EXACT)],
        &[
            (&[0], WHOLE, EXACT),
            (&[1], WHOLE, EXACT),
            (&[2], WHOLE, EXACT),
        ],
        &[(&[0], WHOLE, EXACT), (&[1, 2], WHOLE, EXACT)],
        &[(&[0, 2], WHOLE, EXACT), (&[1], WHOLE, EXACT)],
        &[
            (&[2], WHOLE, EXACT),
            (&[1], WHOLE, EXACT),
            (&[0], WHOLE, EXACT),
        ],
        &[(&[1], WHOLE, EXACT), (&[2, 0], WHOLE, EXACT)],
    ];
    let mut seed = 0;
    for samplings in &SAMPLINGS {
        for size in SIZES {
            let scans = layouts[seed % 6];
            Image::random(size, samplings, [0, 1, 3, 0, 7][seed % 5], seed)
                .check([0xC0, 0xC1][seed % 2], scans);
            seed += 1;
        }
        Image::random([49, 37], samplings, 0, seed).check(0xC0, layouts[1]);
        Image::random([49, 37], samplings, 2, seed).check(0xC0, layouts[2]);
    }
}

#[test]
fn progressive_files_have_their_pixels_whatever_scans_samplings_sizes_and_restarts_they_have() {
    let layouts: [&[ScanOf<'_>]; 3] = [
        &[
            (&[0, 1, 2], [0, 0], [0, 1]),
            (&[0], [1, 5], [0, 2]),
            (&[2], [1, 63], [0, 1]),
            (&[1], [1, 63], [0, 1]),
            (&[0], [6, 63], [0, 2]),
            (&[0], [1, 63], [2, 1]),
            (&[0, 1, 2], [0, 0], [1, 0]),
            (&[2], [1, 63], [1, 0]),
            (&[1], [1, 63], [1, 0]),
            (&[0], [1, 63], [1, 0]),
        ],
        &[
            (&[0], [0, 0], EXACT),
            (&[2, 1], [0, 0], EXACT),
            (&[0], [1, 63], EXACT),
            (&[1], [1, 63], EXACT),
            (&[2], [1, 63], EXACT),
        ],
        &[
            (&[0, 1, 2], [0, 0], [0, 3]),
            (&[0], [1, 63], [0, 3]),
            (&[1], [1, 31], [0, 3]),
            (&[1], [32, 63], EXACT),
            (&[0, 2], [0, 0], [3, 2]),
            (&[0, 2], [0, 0], [2, 1]),
            (&[0, 2], [0, 0], [1, 0]),
            (&[1], [0, 0], [3, 2]),
            (&[1], [0, 0], [2, 1]),
            (&[1], [0, 0], [1, 0]),
            (&[0], [1, 63], [3, 2]),
            (&[0], [1, 63], [2, 1]),
            (&[0], [1, 63], [1, 0]),
            (&[1], [1, 31], [3, 2]),
            (&[1], [1, 31], [2, 1]),
            (&[1], [1, 31], [1, 0]),
            (&[2], [1, 63], EXACT),
        ],
    ];
    let mut seed = 0;
    for samplings in &SAMPLINGS {
        for size in SIZES {
            Image::random(size, samplings, [0, 1, 5, 0][seed % 4], seed)
                .check(0xC2, layouts[seed % 3]);
            seed += 1;
        }
    }
}

#[test]
fn grey_and_ink_have_their_pixels_in_one_scan_and_in_several() {
    let ink: [[usize; 2]; 4] = [[2, 2], [1, 1], [1, 1], [2, 2]];
    for (seed, size) in SIZES.into_iter().enumerate() {
        let whole: ScanOf<'_> = (&[0, 1, 2, 3], WHOLE, EXACT);
        let apart: [ScanOf<'_>; 3] = [
            (&[3], WHOLE, EXACT),
            (&[0, 1], WHOLE, EXACT),
            (&[2], WHOLE, EXACT),
        ];
        Image::random(size, &[[1, 1]], seed % 3, seed).check(0xC0, &[(&[0], WHOLE, EXACT)]);
        Image::random(size, &ink, seed % 3, seed).check(0xC0, &[whole]);
        Image::random(size, &ink, seed % 3, seed).check(0xC1, &apart);
    }
}
