//! Measures the loader: images a second on the host route (normalised f32) and on the device route
//! (raw u8).
//!
//!     cargo run --release -p lockstep-datasets --example loader -- [THREADS [FOLDER [RESOLUTION]]]
//!
//! In: loader threads (2 if not given). Optionally a folder `train/<class>/*`, `test/<class>/*` of
//! images instead of CIFAR-sized pixels in memory. Images are brought to 32 pixels, or read at
//! their own size for a resolution such as 224.
//! Out: a line for each route and augmentation.
#![allow(clippy::print_stdout, reason = "printing is its job")]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datasets::{
    Augment, DatasetSplits, ImageShape, Loader, LoaderConfig, ReadConfig, ResizedCrop, ShardConfig,
    ShardPlan, Sizing, SyntheticConfig, image_folder, synthetic,
};

const GLOBAL_BATCH_SIZE: usize = 256;

/// Time enough for a figure, not for an error bar.
const AT_LEAST: Duration = Duration::from_secs(2);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let num_threads = arguments.next().map_or(Ok(2), |threads| threads.parse())?;
    let folder = arguments.next();
    let resolution: Option<usize> = arguments.next().map(|size| size.parse()).transpose()?;
    let data = match folder {
        Some(folder) => {
            let of_own_size = |size| Sizing {
                size,
                shorter_side: Some(size * 256 / 224),
            };
            let sizing = resolution.map_or(Sizing::square(32), of_own_size);
            image_folder::open(folder, &ReadConfig::new(sizing))?
        }
        None => synthetic::open(&SyntheticConfig {
            shape: ImageShape {
                height: 32,
                width: 32,
                channels: 3,
            },
            num_classes: 10,
            num_train: 50_000,
            num_test: 1,
            seed: 0,
        })?,
    };
    println!(
        "{}, {} images, {num_threads} loader threads",
        data.train.name(),
        data.train.len()
    );
    let varied = match resolution {
        Some(_) => Augment::ResizedCrop(ResizedCrop {
            min_scale: 0.08,
            max_scale: 1.0,
        }),
        None => Augment::CropFlip { pad: 4 },
    };
    for augment in [Augment::None, varied] {
        for (route, raw) in [("host, f32", false), ("device, u8", true)] {
            let speed = images_per_second(&data, augment, raw, num_threads)?;
            println!("{route:<10} {augment:?}: {speed:.0} images/s");
        }
    }
    Ok(())
}

fn images_per_second(
    data: &DatasetSplits,
    augment: Augment,
    raw: bool,
    num_threads: usize,
) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    let mut num_images = 0;
    let mut epoch = 0;
    while start.elapsed() < AT_LEAST {
        let plan = ShardPlan::new(ShardConfig {
            epoch,
            shuffle: true,
            ..ShardConfig::new(data.train.len(), GLOBAL_BATCH_SIZE)
        })?;
        let config = LoaderConfig {
            augment,
            raw,
            epoch,
            num_threads,
            prefetch_steps: 2 * num_threads,
            ..LoaderConfig::new(GLOBAL_BATCH_SIZE, data.normalization.clone())
        };
        for step in Loader::start(Arc::clone(&data.train), plan, config) {
            num_images += step?.global_num_samples;
        }
        epoch += 1;
    }
    Ok(num_images as f64 / start.elapsed().as_secs_f64())
}
