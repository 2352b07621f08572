//! How measurements look.
//!
//! In: a [`Measurement`]. Out: a row of its section's table, or a line of JSON: `layer`, `batch` (null where there is
//! none), `operation`, `dtype`, `threads`, `ms`, `gflops` and `share_of_peak` (null but for convolutions), `gb_per_s`,
//! `share_of_copy` (null but for what moves memory), `library`. Shares are fractions in JSON; one of the peak can be above
//! 1, since Winograd is counted with direct convolution's operations.

use crate::arguments::{Arguments, Dtype};

/// What a measured call does.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    /// The convolution, or the shape of the tensor.
    pub(crate) layer: &'a str,
    pub(crate) batch: Option<usize>,
    pub(crate) operation: &'a str,
    pub(crate) dtype: Dtype,
    /// Each operand once.
    pub(crate) num_bytes: usize,
    pub(crate) yardstick: Yardstick,
}

/// What a call is compared with.
#[derive(Clone, Copy)]
pub(crate) enum Yardstick {
    /// The FMA peak.
    Peak { flops: f64 },
    /// Nothing: the packing of weights.
    Nothing,
    /// A copy of the tensor.
    Copy { gb_per_s: f64 },
    /// It is that copy.
    Itself,
}

/// A measured call.
pub(crate) struct Measurement<'a> {
    pub(crate) work: Work<'a>,
    pub(crate) seconds: f64,
    pub(crate) threads: usize,
    /// The FMA peak of all threads.
    pub(crate) peak_gflops: f64,
}

impl Measurement<'_> {
    pub(crate) fn gb_per_s(&self) -> f64 {
        self.work.num_bytes as f64 / self.seconds / 1e9
    }

    fn gflops(&self) -> Option<f64> {
        if let Yardstick::Peak { flops } = self.work.yardstick {
            Some(flops / self.seconds / 1e9)
        } else {
            None
        }
    }

    fn share_of_peak(&self) -> Option<f64> {
        self.gflops().map(|gflops| gflops / self.peak_gflops)
    }

    fn share_of_copy(&self) -> Option<f64> {
        match self.work.yardstick {
            Yardstick::Peak { .. } | Yardstick::Nothing => None,
            Yardstick::Copy { gb_per_s } => Some(self.gb_per_s() / gb_per_s),
            Yardstick::Itself => Some(1.0),
        }
    }

    /// A line without its end.
    pub(crate) fn json(&self) -> String {
        let Work {
            layer,
            batch,
            operation,
            dtype,
            ..
        } = self.work;
        let number =
            |value: Option<f64>| value.map_or("null".to_owned(), |value| format!("{value:.4}"));
        let fields = [
            ("layer", format!(r#""{layer}""#)),
            (
                "batch",
                batch.map_or("null".to_owned(), |batch| batch.to_string()),
            ),
            ("operation", format!(r#""{operation}""#)),
            ("dtype", format!(r#""{}""#, dtype.name())),
            ("threads", self.threads.to_string()),
            ("ms", format!("{:.6}", self.seconds * 1e3)),
            ("gflops", number(self.gflops())),
            ("share_of_peak", number(self.share_of_peak())),
            ("gb_per_s", number(Some(self.gb_per_s()))),
            ("share_of_copy", number(self.share_of_copy())),
            ("library", r#""kernels""#.to_owned()),
        ];
        format!(
            "{{{}}}",
            fields
                .map(|(name, value)| format!(r#""{name}": {value}"#))
                .join(", ")
        )
    }

    /// A row of the table of convolutions or of that of memory, without its end.
    pub(crate) fn row(&self) -> String {
        let Work {
            layer,
            batch,
            operation,
            dtype,
            yardstick,
            ..
        } = self.work;
        let number =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        let percent = |share: Option<f64>| number(share.map(|share| 100.0 * share));
        let rate = number(Some(self.gb_per_s()));
        let rates = match yardstick {
            Yardstick::Peak { .. } | Yardstick::Nothing => {
                vec![number(self.gflops()), percent(self.share_of_peak()), rate]
            }
            Yardstick::Copy { .. } | Yardstick::Itself => vec![rate, percent(self.share_of_copy())],
        };
        let batch = batch.map_or("-".to_owned(), |batch| batch.to_string());
        columns(
            [
                layer,
                &batch,
                operation,
                dtype.name(),
                &format!("{:.5}", self.seconds * 1e3),
            ],
            &rates,
        )
    }
}

/// What all measurements of this run have in common.
pub(crate) fn header(arguments: &Arguments, peak_gflops_of_one: f64) -> String {
    let Arguments {
        isa,
        threads,
        dtype,
        algorithm,
        time,
        ..
    } = arguments;
    format!(
        "{isa:?}, threads: {threads}, dtype: {}, convolution: {algorithm:?}, FMA peak of one thread: \
         {peak_gflops_of_one:.1} GFLOP/s, minimum over {time:?}",
        dtype.name()
    )
}

/// The names of the columns of convolutions.
pub(crate) fn convolutions_head() -> String {
    columns(
        ["convolution", "batch", "operation", "dtype", "ms"],
        &["GFLOP/s", "% of peak", "GB/s"],
    )
}

/// The names of the columns of what moves memory.
pub(crate) fn memory_head() -> String {
    columns(
        ["tensor", "batch", "operation", "dtype", "ms"],
        &["GB/s", "% of copy"],
    )
}

fn columns(fixed: [&str; 5], rates: &[impl AsRef<str>]) -> String {
    let [layer, batch, operation, dtype, ms] = fixed;
    let rates = rates.iter().map(|rate| format!(" {:>10}", rate.as_ref()));
    format!(
        "{layer:<22} {batch:>5}  {operation:<36} {dtype:<5} {ms:>10}{}",
        rates.collect::<String>()
    )
}
