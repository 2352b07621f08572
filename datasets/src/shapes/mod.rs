//! The shapes data set: ten classes of geometric figures, 32x32 RGB, drawn when it is opened.
//!
//! In: numbers of samples and a seed. Out: [`DatasetSplits`] in memory.
//! Invariant: sample i of a split is a pure function of (seed, split, i). Class i mod 10 keeps
//! labels balanced. Position, size, rotation, colours, background, distractors and noise have the
//! same distribution for all classes. Only the form differs between classes, and no linear function
//! of the pixels separates them.

mod figure;

use std::sync::Arc;
use std::thread;

use crate::dataset::{DatasetSplits, ImageDataset, ImageShape, Normalization};
use crate::error::DatasetError;
use crate::memory::{MemoryDataset, black_images};
use crate::progress;
use crate::random::{Purpose, Stream};
use crate::threads::in_parts;
use figure::{CLASS_NAMES, Figure};

const SIDE: usize = 32;
const SHAPE: ImageShape = ImageShape {
    height: SIDE,
    width: SIDE,
    channels: 3,
};

/// The data set of geometric figures.
#[derive(Clone, Copy, Debug)]
pub struct ShapesDataset;

impl ShapesDataset {
    /// Draws training and test samples of a seed on all CPUs.
    ///
    /// # Errors
    /// Returns an error if a count is 0, or if the system cannot allocate the memory.
    #[expect(clippy::new_ret_no_self, reason = "a data set is opened as its splits")]
    pub fn new(
        num_train: usize,
        num_test: usize,
        seed: u64,
    ) -> Result<DatasetSplits, DatasetError> {
        let train = draw_split("train", seed, 0, num_train)?;
        let test = draw_split("test", seed, 1, num_test)?;
        // Statistics of 10,000 training samples of seed 0, rounded.
        let normalization = Normalization {
            mean: vec![0.5; 3],
            std: vec![0.25; 3],
        };
        Ok(DatasetSplits::of_two(train, test, normalization))
    }
}

fn draw_split(
    split: &str,
    seed: u64,
    split_index: u64,
    num_samples: usize,
) -> Result<Arc<dyn ImageDataset>, DatasetError> {
    if num_samples == 0 {
        return Err(DatasetError::config("shapes num_samples", "at least 1", 0));
    }
    let mut pixels = black_images("shapes num_samples", num_samples, SHAPE)?;
    let num_threads = thread::available_parallelism().map_or(1, usize::from);
    let per_thread = num_samples.div_ceil(num_threads);
    let parts = pixels
        .chunks_mut(per_thread * SHAPE.num_values())
        .enumerate();
    in_parts(num_threads, parts, |(part, images)| {
        for (offset, image) in images.chunks_exact_mut(SHAPE.num_values()).enumerate() {
            let index = part * per_thread + offset;
            let stream = Stream::new(seed, split_index, index as u64, Purpose::Shape);
            draw_image(stream, index % CLASS_NAMES.len(), image);
            progress::advance(1);
        }
    });
    Ok(Arc::new(MemoryDataset {
        name: format!("shapes {split}"),
        shape: SHAPE,
        pixels,
        labels: (0..num_samples)
            .map(|index| (index % CLASS_NAMES.len()) as u16)
            .collect(),
        class_names: CLASS_NAMES.map(String::from).to_vec(),
        notes: Vec::new(),
        checksum: Default::default(),
    }))
}

/// An RGB colour, 0..1 per channel.
type Colour = [f32; 3];

fn draw_image(mut stream: Stream, class: usize, image: &mut [u8]) {
    let colours = [random_colour(&mut stream), random_colour(&mut stream)];
    let background = Background::random(&mut stream);
    let mut canvas = [[0.0; 3]; SIDE * SIDE];
    for (position, pixel) in canvas.iter_mut().enumerate() {
        let share = background.at((position % SIDE) as f32, (position / SIDE) as f32);
        *pixel = mix(colours[0], colours[1], share);
    }
    for _ in 0..1 + stream.below(4) {
        draw_distractor(&mut stream, &mut canvas);
    }
    let colour = contrasting_colour(&mut stream, colours);
    let shaded = mix(colour, random_colour(&mut stream), stream.between(0.0, 0.3));
    Figure::random(class, &mut stream).draw(|position, coverage, across| {
        canvas[position] = mix(canvas[position], mix(colour, shaded, across), coverage);
    });
    // The image's bytes first hold the noise, uniform in -amplitude..amplitude.
    let amplitude = stream.between(0.02, 0.1);
    stream.fill(image);
    for (bytes, pixel) in image.chunks_exact_mut(3).zip(&canvas) {
        for (byte, value) in bytes.iter_mut().zip(pixel) {
            let noise = (f32::from(*byte) / 127.5 - 1.0) * amplitude;
            *byte = ((value + noise).clamp(0.0, 1.0) * 255.0).round() as u8;
        }
    }
}

fn random_colour(stream: &mut Stream) -> Colour {
    std::array::from_fn(|_| stream.unit())
}

/// Returns a colour far from every mixture of the two background colours, so that the figure is
/// visible.
fn contrasting_colour(stream: &mut Stream, [from, to]: [Colour; 2]) -> Colour {
    let dot = |a: Colour, b: Colour| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let minus =
        |a: Colour, b: Colour| -> Colour { std::array::from_fn(|channel| a[channel] - b[channel]) };
    let line = minus(to, from);
    let mut best = (f32::MIN, [0.0; 3]);
    for _ in 0..16 {
        let colour = random_colour(stream);
        // Two equal background colours form a line of length 0, which must not be a divisor.
        let share = dot(minus(colour, from), line) / dot(line, line).max(f32::MIN_POSITIVE);
        let gap = minus(colour, mix(from, to, share.clamp(0.0, 1.0)));
        let contrast = dot(gap, gap).sqrt();
        if contrast > best.0 {
            best = (contrast, colour);
        }
        if contrast > 0.45 {
            break;
        }
    }
    best.1
}

fn mix(from: Colour, to: Colour, share: f32) -> Colour {
    std::array::from_fn(|channel| from[channel] + (to[channel] - from[channel]) * share)
}

/// A smooth transition between two colours: a product of two waves with random direction, length
/// and phase.
struct Background {
    waves: [[f32; 3]; 2],
    strength: f32,
}

impl Background {
    fn random(stream: &mut Stream) -> Self {
        let waves = std::array::from_fn(|_| {
            let angle = stream.between(0.0, std::f32::consts::TAU);
            // The period is between three images, almost a gradient, and ten pixels.
            let frequency = std::f32::consts::TAU / stream.between(10.0, 96.0);
            let phase = stream.between(0.0, std::f32::consts::TAU);
            [
                libm::cosf(angle) * frequency,
                libm::sinf(angle) * frequency,
                phase,
            ]
        });
        Self {
            waves,
            strength: stream.between(0.2, 0.9),
        }
    }

    fn at(&self, x: f32, y: f32) -> f32 {
        let [a, b] = self
            .waves
            .map(|[across, down, phase]| libm::sinf(x * across + y * down + phase));
        (0.5 + 0.5 * a * b) * self.strength
    }
}

/// Draws a thin stroke or a dot in any colour.
fn draw_distractor(stream: &mut Stream, canvas: &mut [Colour; SIDE * SIDE]) {
    let colour = random_colour(stream);
    let side = SIDE as f32;
    let x = stream.between(0.0, side);
    let y = stream.between(0.0, side);
    let angle = stream.between(0.0, std::f32::consts::TAU);
    let length = if stream.coin() {
        stream.between(3.0, 12.0)
    } else {
        0.0
    };
    let half_width = stream.between(0.5, 1.2);
    let dx = libm::cosf(angle);
    let dy = libm::sinf(angle);
    for (position, pixel) in canvas.iter_mut().enumerate() {
        let px = (position % SIDE) as f32 - x;
        let py = (position / SIDE) as f32 - y;
        let along = (px * dx + py * dy).clamp(0.0, length);
        let distance = libm::hypotf(px - along * dx, py - along * dy) - half_width;
        if distance < 0.5 {
            *pixel = mix(*pixel, colour, (0.5 - distance).min(1.0));
        }
    }
}

#[cfg(test)]
mod tests;
