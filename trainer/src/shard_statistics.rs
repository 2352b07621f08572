//! Running norm statistics of a step that is computed in virtual shards: their mean over the shards, whoever has which.
//!
//! In: the model after each shard's forward pass. Out: the model with the mean. Invariant: the same bits on any number of ranks.

use std::sync::Arc;

use anyhow::Result;
use burn::module::Module;
use distributed::{Communicator, ExactReducer, ParameterLayout, read, write};

/// Collects one step's statistics.
#[derive(Debug)]
pub struct ShardStatistics {
    layout: ParameterLayout,
    reducer: ExactReducer,
    /// As the step began.
    start: Vec<f32>,
    /// After each of this rank's shards that had samples.
    shards: Vec<Vec<f32>>,
}

impl ShardStatistics {
    /// For `model`.
    ///
    /// # Errors
    /// When a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn new<M: Module>(model: &M, communicator: Arc<dyn Communicator>) -> Result<Self> {
        let layout = ParameterLayout::state(model);
        Ok(Self { layout, reducer: ExactReducer::new(communicator)?, start: Vec::new(), shards: Vec::new() })
    }

    /// Takes note of where the step begins.
    pub fn begin_step<M: Module>(&mut self, model: &M) {
        self.start = read(model, &self.layout);
        self.shards.clear();
    }

    /// Takes a shard's statistics and sets the model back to where the step began.
    pub fn end_shard<M: Module>(&mut self, model: M) -> M {
        self.shards.push(read(&model, &self.layout));
        write(model, &self.layout, &self.start)
    }

    /// The model with the mean over all ranks' `num_shards` shards that had samples.
    ///
    /// # Errors
    /// When a collective fails.
    ///
    /// # Collective
    /// Must be called by all ranks.
    pub fn end_step<M: Module>(&mut self, model: M, num_shards: usize) -> Result<M> {
        let shards: Vec<&[f32]> = self.shards.iter().map(Vec::as_slice).collect();
        let mut means = vec![0.0; self.layout.num_elements()];
        self.reducer.sum_shards(&shards, &mut means)?;
        means.iter_mut().for_each(|mean| *mean /= num_shards as f32);
        Ok(write(model, &self.layout, &means))
    }
}
