//! Time of compressed sums of N ranks, without encoding.
//!
//! In: a compression, the tensors of a bucket, a network. Out: seconds from the common start until
//! the last rank has the sum.
//! Invariant: the messages are those of the real compressor.

use std::collections::HashMap;
use std::sync::Arc;

use distributed::gradients::{BucketCompressor, CompressionKind, TensorSpan};

use crate::SimulationError;
use crate::network::NetworkModel;
use crate::record::{Operation, Recorder};
use crate::reduction::{interpolated, stand_in};
use crate::schedule::finish;

/// Compressed sums of all ranks.
#[derive(Debug)]
pub(crate) struct CompressedSums {
    kind: CompressionKind,
    network: NetworkModel,
    recorders: Vec<Arc<Recorder>>,
    /// Known seconds by rows and columns of the tensors.
    seconds: HashMap<Vec<(usize, usize)>, f64>,
}

impl CompressedSums {
    /// Expects arguments that [`Predictor::new`](crate::Predictor::new) has checked.
    pub(crate) fn new(kind: CompressionKind, network: &NetworkModel, ranks: usize) -> Self {
        let recorder = |rank| Arc::new(Recorder::new(network, rank, ranks, Arc::default()));
        Self {
            kind,
            network: *network,
            recorders: (0..ranks).map(recorder).collect(),
            seconds: HashMap::new(),
        }
    }

    pub(crate) fn kind(&self) -> CompressionKind {
        self.kind
    }

    /// Returns the seconds of a bucket.
    ///
    /// # Errors
    /// When the compressor fails.
    pub(crate) fn seconds(&mut self, spans: &[TensorSpan]) -> Result<f64, SimulationError> {
        match self.kind {
            // These ignore the borders of tensors.
            CompressionKind::Bf16 | CompressionKind::F16 => {
                let bytes = spans.last().map_or(0, |span| span.range.end) * size_of::<f32>();
                interpolated(self.recorders.len(), bytes as u64, |bytes| {
                    self.of_elements(bytes)
                })
            }
            _ => self.of_collectives(spans),
        }
    }

    fn known(
        &mut self,
        key: Vec<(usize, usize)>,
        make: impl FnOnce(&Self) -> Result<f64, SimulationError>,
    ) -> Result<f64, SimulationError> {
        if let Some(&seconds) = self.seconds.get(&key) {
            return Ok(seconds);
        }
        let seconds = make(self)?;
        self.seconds.insert(key, seconds);
        Ok(seconds)
    }

    fn of_elements(&mut self, bytes: u64) -> Result<f64, SimulationError> {
        let (length, magnification) = stand_in(bytes, self.recorders.len());
        self.known(vec![(1, bytes as usize)], |sums| {
            let spans = vec![TensorSpan {
                range: 0..length,
                rows: 1,
                columns: length,
            }];
            let operations: Result<Vec<_>, _> = sums
                .recorders
                .iter()
                .map(|recorder| sums.operations(recorder, &spans, magnification))
                .collect();
            Ok(finish(&sums.network, magnification, &operations?)?
                .into_iter()
                .fold(0.0, f64::max))
        })
    }

    /// Adds up collectives, which are the same on all ranks.
    fn of_collectives(&mut self, spans: &[TensorSpan]) -> Result<f64, SimulationError> {
        let key = spans.iter().map(|span| (span.rows, span.columns)).collect();
        self.known(key, |sums| {
            let operations = sums.operations(&sums.recorders[0], spans, 1.0)?;
            let seconds = operations.iter().map(|operation| match operation {
                Operation::Collective { seconds } => *seconds,
                _ => 0.0,
            });
            Ok(seconds.sum())
        })
    }

    /// Records one rank's sum. Nothing is received, so zeros stay zeros.
    fn operations(
        &self,
        recorder: &Recorder,
        spans: &[TensorSpan],
        magnification: f64,
    ) -> Result<Vec<Operation>, SimulationError> {
        let length = spans.last().map_or(0, |span| span.range.end);
        recorder.begin(magnification);
        BucketCompressor::new(self.kind, spans.to_vec(), 0)
            .sum(&mut vec![0.0; length], recorder)?;
        Ok(recorder.take())
    }
}
