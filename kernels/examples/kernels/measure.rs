//! Takes the time of calls.
//!
//! In: what a call computes and moves, and the call. Out: its rate, printed by `report`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use kernels::Element;
use kernels::arena::{Arena, Block};
use rayon::prelude::*;

use crate::arguments::{Arguments, Dtype};
use crate::report::{Measurement, Work, Yardstick};

/// Repetitions of a call that is longer than the time for all of them.
const MIN_REPETITIONS: usize = 3;
/// Calls shorter than this are repeated between two looks at the clock, but not without end.
const CLOCKED_S: f64 = 10e-6;
const MAX_CALLS: f64 = 1000.0;
/// No call is shorter.
const MIN_SECONDS: f64 = 1e-9;

/// What all measurements share.
pub(crate) struct Bench {
    pub(crate) arguments: Arguments,
    /// The FMA peak of all threads.
    peak_gflops: f64,
    arena: Arena,
}

impl Bench {
    pub(crate) fn new(arguments: Arguments, peak_gflops: f64) -> Self {
        Self {
            arguments,
            peak_gflops,
            arena: Arena::new(),
        }
    }

    /// A block of values in -1..1.
    pub(crate) fn values<E: Element>(&self, len: usize) -> Block<E> {
        let mut block = self.arena.take(len);
        for (index, value) in block.iter_mut().enumerate() {
            *value = E::from_f32(((index * 7919 + 13) % 1024) as f32 / 512.0 - 1.0);
        }
        block
    }

    /// Times `call`, prints, and returns GB/s.
    pub(crate) fn measure(&self, work: Work<'_>, call: impl FnMut()) -> f64 {
        let Arguments {
            threads,
            time,
            json,
            ..
        } = self.arguments;
        let seconds = best_seconds(time, call);
        let measurement = Measurement {
            work,
            seconds,
            threads,
            peak_gflops: self.peak_gflops,
        };
        println!(
            "{}",
            if json {
                measurement.json()
            } else {
                measurement.row()
            }
        );
        measurement.gb_per_s()
    }
}

/// Calls on one tensor, which are compared with a copy.
pub(crate) struct OnTensor<'a> {
    bench: &'a Bench,
    shape: String,
    batch: Option<usize>,
    dtype: Dtype,
    copy_gb_per_s: f64,
}

impl<'a> OnTensor<'a> {
    /// Measures the copy of `copied` values of type `E` by all threads.
    pub(crate) fn new<E: Element>(
        bench: &'a Bench,
        shape: String,
        batch: Option<usize>,
        copied: usize,
    ) -> Self {
        let (from, mut to) = (bench.values::<E>(copied), bench.values::<E>(copied));
        let piece = copied.div_ceil(bench.arguments.threads);
        let (layer, dtype, num_bytes) = (&shape, Dtype::of::<E>(), 2 * size_of::<E>() * copied);
        let work = Work {
            layer,
            batch,
            operation: "copy",
            dtype,
            num_bytes,
            yardstick: Yardstick::Itself,
        };
        let copy_gb_per_s = bench.measure(work, || {
            to.par_chunks_mut(piece)
                .zip(from.par_chunks(piece))
                .for_each(|(to, from)| to.copy_from_slice(from));
            black_box(&mut to);
        });
        Self {
            bench,
            shape,
            batch,
            dtype,
            copy_gb_per_s,
        }
    }

    pub(crate) fn measure(&self, operation: &str, num_bytes: usize, call: impl FnMut()) {
        let Self {
            bench,
            shape,
            batch,
            dtype,
            copy_gb_per_s,
        } = self;
        let yardstick = Yardstick::Copy {
            gb_per_s: *copy_gb_per_s,
        };
        bench.measure(
            Work {
                layer: shape,
                batch: *batch,
                operation,
                dtype: *dtype,
                num_bytes,
                yardstick,
            },
            call,
        );
    }
}

/// The shortest of the repetitions that `time` allows, after a warm-up, for one call.
fn best_seconds(time: Duration, mut call: impl FnMut()) -> f64 {
    call();
    let mut seconds_of = |calls: u32| {
        let start = Instant::now();
        (0..calls).for_each(|_| call());
        start.elapsed().as_secs_f64() / f64::from(calls)
    };
    // The clock itself takes as long as the packing of a small layer's weights.
    let calls = (CLOCKED_S / seconds_of(1)).clamp(1.0, MAX_CALLS) as u32;
    let (mut best, begin, mut repetitions) = (f64::INFINITY, Instant::now(), 0);
    while repetitions < MIN_REPETITIONS || begin.elapsed() < time {
        best = best.min(seconds_of(calls));
        repetitions += 1;
    }
    // A coarse clock may see no time pass; a rate has to stay finite for JSON.
    best.max(MIN_SECONDS)
}
