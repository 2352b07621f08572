//! The steps of a loader, uploaded to the device on request or one step ahead by a thread.
//!
//! In: steps in host memory. Out: the same steps uploaded, in order.
//! Invariants:
//! - At most one step is uploaded ahead.
//! - An error of the loader is returned unchanged at its step.
//! - The thread ends with the steps, or when the input is dropped. Nothing waits for an ended
//!   thread.
//! - If the operating system cannot start the thread, steps are uploaded on request.

use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use burn::tensor::{Device, StreamId};
use datasets::{DatasetError, LoadedStep, Upload, threads};

use crate::config::InputKind;

/// A step, or the error in its place.
pub type Loaded<B> = Result<LoadedStep<B>, DatasetError>;

/// The stream of all uploads of this process.
///
/// The work of a GPU is ordered within a stream, and burn gives each thread its own stream. So
/// copies of another thread overlap with the computation. All threads share this stream, because
/// each stream keeps its own memory and each epoch has a thread.
///
/// If a tensor of this stream is used in another stream, the sources of burn 0.22.1 and cubecl
/// 0.11.3 show these actions:
/// - cubecl-server, `stream/event.rs`, `MultiStream::resolve`: the using stream waits on the
///   device, not on the host, for an event of the writing stream. The memory is kept until then, so
///   the next upload does not overwrite it.
/// - burn-fusion, `stream/multi.rs`, `tag_shared_view`: the tensor gets a second name in the using
///   stream. Only operations still queued in the writing stream must run first. An upload queues
///   none, since it computes nothing.
/// - cubecl-server, `command/base.rs`, `write_to_gpu`: up to 100 MiB go through pinned memory, from
///   which a copy runs concurrently with kernels.
static UPLOADS: LazyLock<StreamId> = LazyLock::new(StreamId::allocate);

/// The steps of a loader on a device; an error is the last item.
pub struct Input<B>(Source<B>);

enum Source<B> {
    OnDemand(Box<dyn Iterator<Item = Loaded<B>>>),
    Ahead(Ahead<Loaded<B>>),
}

/// A thread that prepares one item ahead.
struct Ahead<T> {
    /// `None` during the drop.
    items: Option<Receiver<T>>,
    /// `None` after the thread's end.
    thread: Option<JoinHandle<()>>,
}

impl<B: Send + 'static> Input<B> {
    /// Uploads `steps` as `kind` specifies: a device that prepares its images gets them one step
    /// ahead. The micro-batches of a step are uploaded together.
    pub fn start<H: Upload<OnDevice = B>>(
        steps: impl Iterator<Item = Loaded<H>> + Send + 'static,
        kind: InputKind,
        device: &Device,
    ) -> Self {
        let device = device.clone();
        let uploaded = steps.map(move |loaded| {
            let loaded = loaded?;
            let _lock = gpu::capture_lock();
            Ok(loaded.map(|batch| batch.upload(&device)))
        });
        Self(match kind {
            InputKind::Host => Source::OnDemand(Box::new(uploaded)),
            InputKind::Device => match Ahead::start(uploaded) {
                Ok(ahead) => Source::Ahead(ahead),
                Err(uploaded) => Source::OnDemand(Box::new(uploaded)),
            },
        })
    }
}

impl<B: Send + 'static> Iterator for Input<B> {
    type Item = Loaded<B>;

    /// # Panics
    /// If the upload panics, on this or another thread.
    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Source::OnDemand(steps) => steps.next(),
            Source::Ahead(steps) => steps.next(),
        }
    }
}

impl<T: Send + 'static> Ahead<T> {
    /// Starts the thread that prepares items ahead.
    ///
    /// # Errors
    /// Returns `items` if the operating system cannot start the thread.
    fn start<I: Iterator<Item = T> + Send + 'static>(items: I) -> Result<Self, I> {
        // The channel has no capacity, so the one item ahead is the item that the thread is
        // sending.
        let (sender, receiver) = sync_channel(0);
        let make = move |items: I| {
            UPLOADS.executes(|| {
                for item in items {
                    if sender.send(item).is_err() {
                        return;
                    }
                }
            });
        };
        let thread = threads::start("upload", items, make)?;
        Ok(Self {
            items: Some(receiver),
            thread: Some(thread),
        })
    }
}

impl<T> Iterator for Ahead<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        if let Some(Ok(item)) = self.items.as_ref().map(Receiver::recv) {
            return Some(item);
        }
        // The sender is gone: the thread has ended or panicked.
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            resume_unwind(panic);
        }
        None
    }
}

impl<T> Drop for Ahead<T> {
    fn drop(&mut self) {
        // Dropping the receiver wakes a sending thread, which then ends.
        drop(self.items.take());
        if let Some(thread) = self.thread.take() {
            // The item of a panic is no longer needed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use datasets::{DeviceBatch, HostBatch, ImageShape, MicroBatch, Pixels};

    const SHAPE: ImageShape = ImageShape {
        height: 2,
        width: 2,
        channels: 1,
    };

    fn step(step_in_epoch: usize) -> LoadedStep {
        let batch = HostBatch {
            pixels: Pixels::Normalised(vec![step_in_epoch as f32; 4]),
            labels: vec![step_in_epoch as u32],
            mixed: None,
            indices: vec![step_in_epoch],
            shape: SHAPE,
        };
        let micro = |num_samples| MicroBatch {
            num_samples,
            weight: num_samples as f64,
            batch: batch.clone(),
        };
        LoadedStep {
            step_in_epoch,
            global_num_samples: 1,
            global_weight: 1.0,
            micro_batches: vec![micro(1), micro(0)],
        }
    }

    fn fails() -> DatasetError {
        DatasetError::BadImage {
            path: "bad.png".into(),
            reason: "for the test".into(),
        }
    }

    fn both() -> [InputKind; 2] {
        [InputKind::Host, InputKind::Device]
    }

    #[test]
    fn steps_come_uploaded_in_their_order_with_their_empty_batches() {
        for kind in both() {
            let mut input = Input::start((0..5).map(step).map(Ok), kind, &Device::flex());
            for expected in 0..5 {
                let LoadedStep {
                    step_in_epoch,
                    micro_batches,
                    ..
                } = input.next().unwrap().unwrap();
                assert_eq!(step_in_epoch, expected);
                let [full, empty]: [MicroBatch<DeviceBatch>; 2] = micro_batches.try_into().unwrap();
                assert_eq!(
                    (full.batch.labels.clone(), empty.num_samples),
                    (vec![expected as u32], 0)
                );
                let images = full.batch.into_images().images.into_data();
                assert_eq!(images.as_slice::<f32>().unwrap(), [expected as f32; 4]);
            }
            assert!(input.next().is_none() && input.next().is_none());
        }
    }

    #[test]
    fn an_error_of_the_loader_comes_unchanged_at_its_step() {
        for kind in both() {
            let steps = [Ok(step(0)), Err(fails())].into_iter();
            let mut input = Input::start(steps, kind, &Device::flex());
            assert!(input.next().unwrap().is_ok());
            assert_eq!(
                input.next().unwrap().unwrap_err().to_string(),
                fails().to_string()
            );
            assert!(input.next().is_none());
        }
    }

    #[test]
    fn a_panic_of_the_upload_is_a_panic_of_who_waits_for_it() {
        for kind in both() {
            let steps = (0..2).map(|index| {
                if index == 0 {
                    Ok(step(0))
                } else {
                    panic!("no memory")
                }
            });
            let mut input = Input::start(steps, kind, &Device::flex());
            assert!(input.next().unwrap().is_ok());
            let panic = catch_unwind(AssertUnwindSafe(|| input.next().is_some())).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"no memory"));
        }
    }

    #[test]
    fn no_more_than_one_step_is_uploaded_ahead() {
        let asked = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&asked);
        let steps = (0..100).map(move |index| {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(step(index))
        });
        let mut input = Input::start(steps, InputKind::Device, &Device::flex());
        for taken in 1..5 {
            input.next().unwrap().unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            while asked.load(Ordering::SeqCst) < taken + 1 && Instant::now() < deadline {
                std::thread::yield_now();
            }
            // Long enough for a thread to run too far ahead.
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(asked.load(Ordering::SeqCst), taken + 1);
        }
    }

    #[test]
    fn the_thread_ends_when_its_input_is_dropped() {
        let held = Arc::new(());
        let by_thread = Arc::clone(&held);
        let steps = (0..100).map(move |index| {
            assert_eq!(Arc::strong_count(&by_thread), 2);
            Ok(step(index))
        });
        let mut input = Input::start(steps, InputKind::Device, &Device::flex());
        input.next().unwrap().unwrap();
        drop(input);
        // The thread held its steps, and has been joined.
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
