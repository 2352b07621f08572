//! Norm statistics of virtual shards, the same bits on any number of ranks.
//!
//! In: this rank's shards of a step, one a micro-batch. Out: norm statistics that are the mean over all
//! shards. Invariant: shards are kept apart until they are added up exactly.

use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use distributed::Communicator;
use distributed::gradients::ExactReducer;
use distributed::replica::{ParameterLayout, read, write};

/// The running norm statistics of a step's shards.
#[derive(Debug)]
pub(in crate::step) struct ShardStatistics {
    layout: ParameterLayout,
    reducer: ExactReducer,
    num_shards: usize,
    /// Statistics at the start of the step.
    start: Vec<f32>,
    /// Statistics after each of this rank's shards that had samples.
    shards: Vec<Vec<f32>>,
}

impl ShardStatistics {
    /// Collective: all ranks.
    pub(super) fn new<M: Module>(
        model: &M,
        communicator: Arc<dyn Communicator>,
        num_shards: usize,
    ) -> Result<Self> {
        Ok(Self {
            layout: ParameterLayout::statistics(model),
            num_shards,
            reducer: ExactReducer::new(communicator)?,
            start: Vec::new(),
            shards: Vec::new(),
        })
    }

    pub(super) fn begin_step<M: Module>(&mut self, model: &M) {
        self.start = read(model, &self.layout);
        self.shards.clear();
    }

    /// Takes a shard's statistics and resets the model to the start of the step.
    pub(super) fn end_shard<M: Module>(&mut self, model: &mut M) {
        self.shards.push(read(model, &self.layout));
        *model = write(model.clone(), &self.layout, &self.start);
    }

    /// Gives the model the mean over the shards of all ranks that had some of the `num_samples`.
    /// Collective: all ranks.
    pub(super) fn end_step<M: Module>(&mut self, model: &mut M, num_samples: usize) -> Result<()> {
        let num_shards = self.num_shards.min(num_samples) as f32;
        for shard in &mut self.shards {
            for (value, start) in shard.iter_mut().zip(&self.start) {
                *value -= start;
            }
        }
        let shards: Vec<&[f32]> = self.shards.iter().map(Vec::as_slice).collect();
        let mut means = vec![0.0; self.layout.num_elements()];
        self.reducer.sum_shards(&shards, &mut means)?;
        for (mean, start) in means.iter_mut().zip(&self.start) {
            *mean = start + *mean / num_shards;
        }
        *model = write(model.clone(), &self.layout, &means);
        Ok(())
    }
}
