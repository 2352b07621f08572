//! The loader: order, equality over threads and shards, bounded memory, and failures as errors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use datasets::{
    Augment, DatasetError, Distortion, ImageDataset, ImageSamples, ImageShape, LoadedStep, Loader,
    LoaderConfig, MicroBatch, Mix, Normalization, ShardConfig, ShardPlan,
};

const SHAPE: ImageShape = ImageShape {
    height: 6,
    width: 5,
    channels: 3,
};

/// A data set whose pixels and labels are the index. Reading may fail, panic or be counted.
struct Numbered {
    len: usize,
    class_names: Vec<String>,
    fails_at: Option<usize>,
    panics_at: Option<usize>,
    num_reads: AtomicUsize,
}

impl Numbered {
    fn new(len: usize) -> Self {
        Self {
            len,
            class_names: (0..len).map(|class| class.to_string()).collect(),
            fails_at: None,
            panics_at: None,
            num_reads: AtomicUsize::new(0),
        }
    }
}

impl ImageDataset for Numbered {
    fn name(&self) -> &str {
        "numbered"
    }

    fn len(&self) -> usize {
        self.len
    }

    fn image_shape(&self) -> ImageShape {
        SHAPE
    }

    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn label(&self, index: usize) -> usize {
        index
    }

    fn read_image(&self, index: usize, pixels: &mut [u8]) -> Result<(), DatasetError> {
        self.num_reads.fetch_add(1, Ordering::SeqCst);
        assert_ne!(Some(index), self.panics_at, "sample {index} is cursed");
        if self.fails_at == Some(index) {
            return Err(DatasetError::BadImage {
                path: "bad.png".into(),
                reason: "for the test".into(),
            });
        }
        for (position, pixel) in pixels.iter_mut().enumerate() {
            *pixel = (index * 31 + position * 7) as u8;
        }
        Ok(())
    }

    fn checksum(&self) -> String {
        String::new()
    }
}

fn plan(num_samples: usize, global_batch_size: usize, shard: (usize, usize)) -> ShardPlan {
    ShardPlan::new(ShardConfig {
        seed: 5,
        epoch: 2,
        shuffle: true,
        shard_index: shard.0,
        num_shards: shard.1,
        ..ShardConfig::new(num_samples, global_batch_size)
    })
    .unwrap()
}

fn config(micro_batch_size: usize) -> LoaderConfig {
    LoaderConfig {
        seed: 5,
        epoch: 2,
        ..LoaderConfig::new(micro_batch_size)
    }
}

fn images(dataset: Arc<Numbered>) -> ImageSamples {
    ImageSamples {
        augment: Augment::CropFlip { pad: 2 },
        ..ImageSamples::new(dataset, Normalization::imagenet())
    }
}

fn load(dataset: Numbered, plan: ShardPlan, config: LoaderConfig) -> Vec<LoadedStep> {
    all_steps(images(Arc::new(dataset)), plan, config)
}

fn all_steps(images: ImageSamples, plan: ShardPlan, config: LoaderConfig) -> Vec<LoadedStep> {
    Loader::start(Arc::new(images), plan, config)
        .collect::<Result<_, _>>()
        .unwrap()
}

#[test]
fn the_images_of_an_epoch_are_the_same_on_any_number_of_shards_and_threads() {
    let mixed = ImageSamples {
        augment: Augment::Trivial { pad: 2 },
        distortion: Distortion {
            color_jitter: [0.4, 0.4, 0.4, 0.1],
            rotation: 15.0,
            erasing: 0.5,
        },
        mix: Mix {
            mixup: Some(0.4),
            cutmix: Some(1.0),
        },
        ..images(Arc::new(Numbered::new(50)))
    };
    /// The label, the label and the share of the image mixed in, and the bits of the image.
    type Sample = (u32, Option<(u32, u32)>, Vec<u32>);
    let samples = |images: &ImageSamples, num_shards, num_threads| -> BTreeMap<usize, Sample> {
        let mut samples = BTreeMap::new();
        for shard in 0..num_shards {
            let how = LoaderConfig {
                num_threads,
                ..config(4)
            };
            let steps = all_steps(images.clone(), plan(50, 8, (shard, num_shards)), how);
            let micro_batches = steps.into_iter().flat_map(|step| step.micro_batches);
            for MicroBatch { batch, .. } in micro_batches.filter(|micro| micro.num_samples > 0) {
                let images = batch.normalised_pixels();
                let images = images.chunks_exact(SHAPE.num_values());
                for (place, (index, image)) in batch.indices.iter().zip(images).enumerate() {
                    let bits = image.iter().map(|value| value.to_bits()).collect();
                    let other = batch
                        .mixed
                        .as_ref()
                        .map(|mixed| (mixed.labels[place], mixed.shares[place].to_bits()));
                    samples.insert(*index, (batch.labels[place], other, bits));
                }
            }
        }
        samples
    };
    for how in [images(Arc::new(Numbered::new(50))), mixed] {
        let expected = samples(&how, 1, 0);
        assert_eq!(expected.len(), 50);
        let is_mixed = |(label, other, _): &Sample| other.is_some_and(|(other, _)| other != *label);
        assert_eq!(expected.values().any(is_mixed), how.mix != Mix::default());
        for (num_shards, num_threads) in [(1, 2), (2, 1), (4, 0)] {
            assert_eq!(
                samples(&how, num_shards, num_threads),
                expected,
                "{num_shards} shards, {num_threads} threads"
            );
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let steps = |num_threads, prefetch_steps| {
        let config = LoaderConfig {
            num_threads,
            prefetch_steps,
            ..config(4)
        };
        load(Numbered::new(50), plan(50, 8, (0, 1)), config)
    };
    let expected = steps(0, 0);
    assert_eq!(expected.len(), 7);
    for num_threads in 1..5 {
        for prefetch_steps in 1..6 {
            assert_eq!(steps(num_threads, prefetch_steps), expected);
        }
    }
}

#[test]
fn steps_come_in_the_order_of_the_plan() {
    let plan = plan(50, 8, (1, 2));
    let steps = load(Numbered::new(50), plan.clone(), config(3));
    for (step_in_epoch, step) in steps.iter().enumerate() {
        assert_eq!(step.step_in_epoch, step_in_epoch);
        let shard = plan.step(step_in_epoch);
        assert_eq!(step.global_num_samples, shard.global_num_samples);
        let indices: Vec<usize> = step
            .micro_batches
            .iter()
            .filter(|micro| micro.num_samples > 0)
            .flat_map(|micro| micro.batch.indices.clone())
            .collect();
        assert_eq!(indices, shard.indices);
        for MicroBatch { batch, .. } in &step.micro_batches {
            let labels: Vec<usize> = batch.labels.iter().map(|label| *label as usize).collect();
            assert_eq!(labels, batch.indices);
            assert_eq!(batch.num_samples(), batch.indices.len());
            assert_eq!(
                batch.normalised_pixels().len(),
                batch.indices.len() * SHAPE.num_values()
            );
        }
    }
}

#[test]
fn all_shards_make_the_same_number_of_micro_batches() {
    for num_samples in 1..20 {
        for num_shards in 1..4 {
            for micro_batch_size in 1..4 {
                let counts: Vec<Vec<usize>> = (0..num_shards)
                    .map(|shard| {
                        let plan = plan(num_samples, 6, (shard, num_shards));
                        load(Numbered::new(num_samples), plan, config(micro_batch_size))
                            .iter()
                            .map(|step| step.micro_batches.len())
                            .collect()
                    })
                    .collect();
                assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
                assert!(counts[0].iter().all(|count| *count >= 1), "{counts:?}");
            }
        }
    }
}

#[test]
fn a_loader_that_begins_inside_an_epoch_gives_the_same_rest() {
    let all = load(Numbered::new(50), plan(50, 8, (0, 1)), config(4));
    for first_step in 0..=7 {
        for num_threads in [0, 1, 3] {
            let config = LoaderConfig {
                first_step,
                num_threads,
                prefetch_steps: 3,
                ..config(4)
            };
            let rest = load(Numbered::new(50), plan(50, 8, (0, 1)), config);
            assert_eq!(rest, all[first_step..]);
        }
    }
}

#[test]
fn each_of_many_threads_has_a_step_to_make() {
    for (num_threads, ahead) in [(0, 2), (1, 2), (2, 2), (8, 8)] {
        let config = config(4).with_threads(num_threads);
        assert_eq!(
            (config.num_threads, config.prefetch_steps),
            (num_threads, ahead)
        );
    }
}

#[test]
fn no_more_than_prefetch_steps_are_made_ahead() {
    for (num_threads, prefetch_steps) in [(1, 1), (1, 3), (2, 3), (4, 2)] {
        let dataset = Arc::new(Numbered::new(100));
        let config = LoaderConfig {
            num_threads,
            prefetch_steps,
            ..config(1)
        };
        let mut loader = Loader::start(
            Arc::new(images(dataset.clone())),
            plan(100, 1, (0, 1)),
            config,
        );
        for taken in 1..5 {
            loader.next().unwrap().unwrap();
            let limit = taken + prefetch_steps;
            let deadline = Instant::now() + Duration::from_secs(10);
            while dataset.num_reads.load(Ordering::SeqCst) < limit && Instant::now() < deadline {
                std::thread::yield_now();
            }
            // This is enough time for a thread to load too many steps.
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(dataset.num_reads.load(Ordering::SeqCst), limit);
        }
    }
}

#[test]
fn threads_end_when_the_loader_is_dropped() {
    let dataset = Arc::new(Numbered::new(1000));
    let config = LoaderConfig {
        num_threads: 3,
        prefetch_steps: 6,
        ..config(4)
    };
    let mut loader = Loader::start(
        Arc::new(images(dataset.clone())),
        plan(1000, 8, (0, 1)),
        config,
    );
    loader.next().unwrap().unwrap();
    drop(loader);
    // The threads that held the data set are joined, so only this test holds it now.
    assert_eq!(Arc::strong_count(&dataset), 1);
}

/// Returns the number of steps before the first failing step, and its error.
fn failure(dataset: Numbered, num_threads: usize) -> (usize, DatasetError) {
    let config = LoaderConfig {
        num_threads,
        prefetch_steps: 4,
        ..config(4)
    };
    let mut loader = Loader::start(
        Arc::new(images(Arc::new(dataset))),
        plan(50, 4, (0, 1)),
        config,
    );
    let mut num_good = 0;
    loop {
        match loader.next().expect("the error comes before the end") {
            Ok(_) => num_good += 1,
            Err(error) => {
                assert!(loader.next().is_none(), "an error ends the loader");
                return (num_good, error);
            }
        }
    }
}

fn step_of(index: usize) -> usize {
    let plan = plan(50, 4, (0, 1));
    (0..plan.num_steps())
        .find(|step| plan.step(*step).indices.contains(&index))
        .unwrap()
}

#[test]
fn a_bad_image_and_a_panic_of_a_thread_come_out_as_an_error_at_their_step() {
    for num_threads in 0..4 {
        let mut bad = Numbered::new(50);
        bad.fails_at = Some(17);
        let mut cursed = Numbered::new(50);
        cursed.panics_at = Some(17);
        for (dataset, expected) in [
            (bad, "cannot decode the image bad.png: for the test"),
            (cursed, "sample 17 is cursed"),
        ] {
            // Without threads a panic is the caller's.
            if dataset.panics_at.is_some() && num_threads == 0 {
                continue;
            }
            let (num_good, error) = failure(dataset, num_threads);
            assert_eq!(num_good, step_of(17));
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}

#[test]
#[should_panic(expected = "num_samples of plan and data set")]
fn a_plan_for_another_data_set_is_refused() {
    let images = images(Arc::new(Numbered::new(9)));
    Loader::start(Arc::new(images), plan(10, 2, (0, 1)), config(1));
}
