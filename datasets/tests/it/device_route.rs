//! Batches that a device makes from raw bytes equal those of the host, bit by bit.

use std::sync::Arc;

use burn::tensor::Device;
use datasets::{
    Augment, DeviceBatch, Distortion, HostBatch, ImageSamples, ImageShape, ImageShift, LoadedStep,
    Loader, LoaderConfig, Normalization, Pixels, RawPixels, ResizedCrop, ShardConfig, ShardPlan,
    SyntheticConfig, Upload, normalize::NormalizationTable, synthetic,
};

const NUM_SAMPLES: usize = 29;

fn steps(
    shape: ImageShape,
    augment: Augment,
    seed: u64,
    shard: (usize, usize),
    raw: bool,
) -> Vec<LoadedStep> {
    let data = synthetic::open(&SyntheticConfig {
        shape,
        num_classes: 7,
        num_train: NUM_SAMPLES,
        num_test: 1,
        seed,
    })
    .unwrap();
    let plan = ShardPlan::new(ShardConfig {
        seed,
        epoch: 3,
        shuffle: true,
        shard_index: shard.0,
        num_shards: shard.1,
        ..ShardConfig::new(NUM_SAMPLES, 9)
    })
    .unwrap();
    let normalization = match shape.channels {
        3 => Normalization::imagenet(),
        channels => Normalization {
            mean: vec![0.307; channels],
            std: vec![0.308; channels],
        },
    };
    let config = LoaderConfig {
        seed,
        epoch: 3,
        ..LoaderConfig::new(4)
    };
    let images = ImageSamples {
        augment,
        distortion: Distortion {
            color_jitter: [0.4, 0.4, 0.4, 0.1],
            rotation: 15.0,
            erasing: 0.0,
        },
        raw,
        ..ImageSamples::new(data.train, normalization)
    };
    Loader::start(Arc::new(images), plan, config)
        .collect::<Result<_, _>>()
        .unwrap()
}

fn bits(batch: DeviceBatch) -> (Vec<u32>, Vec<i32>, [usize; 4]) {
    let batch = batch.into_images();
    let dims = batch.images.dims();
    let images = batch.images.into_data();
    let labels = batch.targets.labels.into_data();
    let images = images
        .as_slice::<f32>()
        .unwrap()
        .iter()
        .map(|value| value.to_bits())
        .collect();
    (images, labels.as_slice::<i32>().unwrap().to_vec(), dims)
}

/// Asserts equal batches and returns the number of batches without samples.
fn assert_routes_are_equal(
    shape: ImageShape,
    augment: Augment,
    seed: u64,
    shard: (usize, usize),
) -> usize {
    let [host, raw] = [false, true].map(|raw| steps(shape, augment, seed, shard, raw));
    assert_eq!(host.len(), raw.len());
    let mut num_empty = 0;
    for (host, raw) in host.into_iter().zip(raw) {
        assert_eq!(
            (host.step_in_epoch, host.global_num_samples),
            (raw.step_in_epoch, raw.global_num_samples)
        );
        assert_eq!(host.micro_batches.len(), raw.micro_batches.len());
        for (host, raw) in host.micro_batches.into_iter().zip(raw.micro_batches) {
            num_empty += usize::from(host.num_samples == 0);
            let (host, raw) = (host.batch, raw.batch);
            assert!(matches!(
                (&host.pixels, &raw.pixels),
                (Pixels::Normalised(_), Pixels::Raw(_))
            ));
            assert_eq!(
                host.normalised_pixels(),
                raw.normalised_pixels(),
                "on the host"
            );
            assert_eq!((&host.labels, &host.indices), (&raw.labels, &raw.indices));
            let [host, raw] = [host, raw].map(|batch| batch.upload(&Device::flex()));
            assert_eq!((&host.labels, host.shape), (&raw.labels, raw.shape));
            assert_eq!(
                bits(host),
                bits(raw),
                "{shape} {augment:?} seed {seed} shard {shard:?}"
            );
        }
    }
    num_empty
}

#[test]
fn the_device_makes_the_images_of_the_host_bit_by_bit() {
    for channels in [1, 3] {
        let resized = Augment::ResizedCrop(ResizedCrop {
            min_scale: 0.08,
            max_scale: 1.0,
        });
        for augment in [
            Augment::None,
            Augment::CropFlip { pad: 4 },
            Augment::CropFlip { pad: 11 },
            resized,
        ] {
            for seed in [0, 1, 2, 77] {
                assert_routes_are_equal(
                    ImageShape {
                        height: 8,
                        width: 6,
                        channels,
                    },
                    augment,
                    seed,
                    (0, 1),
                );
            }
        }
    }
}

#[test]
fn partial_and_empty_batches_take_the_same_route() {
    let shape = ImageShape {
        height: 5,
        width: 5,
        channels: 3,
    };
    // The last step has two samples, so the third of three shards gets none.
    let num_empty =
        |shard| assert_routes_are_equal(shape, Augment::CropFlip { pad: 2 }, 5, (shard, 3));
    assert_eq!([0, 1, 2].map(num_empty), [0, 0, 1]);
}

#[test]
fn every_placement_of_every_pixel_value_is_that_of_the_host() {
    let shape = ImageShape {
        height: 4,
        width: 64,
        channels: 1,
    };
    let table = Arc::new(NormalizationTable::new(&Normalization {
        mean: vec![0.4914],
        std: vec![0.2023],
    }));
    let mut shifts = Vec::new();
    for dy in -5..=5 {
        for dx in [-65, -64, -63, -1, 0, 1, 63, 64, 65] {
            shifts.extend([false, true].map(|flip| ImageShift { dy, dx, flip }));
        }
    }
    let mut raw = RawPixels::black(shifts.clone(), shape, table);
    raw.bytes
        .iter_mut()
        .enumerate()
        .for_each(|(position, byte)| *byte = position as u8);
    let num_samples = shifts.len();
    let batch = HostBatch {
        pixels: Pixels::Raw(raw),
        labels: vec![0; num_samples],
        mixed: None,
        indices: (0..num_samples).collect(),
        shape,
    };
    let expected: Vec<u32> = batch
        .normalised_pixels()
        .iter()
        .map(|value| value.to_bits())
        .collect();
    assert_eq!(bits(batch.upload(&Device::flex())).0, expected);
}
