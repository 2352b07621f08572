//! An optimizer of a program's own: any of burn's, or one written for it.
//!
//! In: the learning rate, the synchronised mean gradient. Out: a model with other parameters; a record for the checkpoint.
//! Invariant: a parameter has the same id in every process, since records know parameters by them.

use std::fmt;

use anyhow::{Result, anyhow, ensure};
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::{GradientsParams, ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, Tensor};

/// An optimizer of burn's kind.
#[derive(Clone)]
pub struct OwnOptimizer(pub ModuleOptimizer);

impl OwnOptimizer {
    /// `model` after an update.
    pub fn step<M: Module>(
        &mut self,
        learning_rate: f64,
        model: M,
        gradients: GradientsParams,
    ) -> M {
        self.0.step(learning_rate, model, gradients)
    }

    /// What it remembers, as burn writes it.
    ///
    /// # Panics
    /// When burn cannot write it, which its own optimizers' states cannot cause.
    pub fn record(&self) -> Vec<u8> {
        let bytes = self
            .0
            .into_bytes()
            .expect("the optimizer's state can be written");
        bytes.to_vec()
    }

    /// Goes on from a [`record`](Self::record).
    ///
    /// # Errors
    /// When it is none, or one of an optimizer whose state has another form: burn passes over what it cannot use.
    pub fn restore(&mut self, record: &[u8]) -> Result<()> {
        let record = OptimizerRecord::from_bytes(Bytes::from_bytes_vec(record.to_vec())).map_err(
            |error| {
                anyhow!("record of the program's own optimizer: {error}; take another checkpoint")
            },
        )?;
        let expected = record.len();
        self.0 = self.0.clone().load_record(record);
        let taken = self.0.to_record().len();
        ensure!(
            taken == expected,
            "record of the program's own optimizer: expected {expected} tensors to be of this optimizer, got {taken}; resume with the program that began the run, or begin anew from its --weights"
        );
        Ok(())
    }
}

impl fmt::Debug for OwnOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnOptimizer")
    }
}

/// `model` with parameters whose ids are their places in module order.
pub fn with_ids_by_order<M: Module>(model: M) -> M {
    model.map(&mut Numbering(0))
}

struct Numbering(u64);

impl ModuleMapper for Numbering {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.0 += 1;
        let (_, tensor, mapper) = param.consume();
        Param::from_mapped_value(ParamId::from(self.0), tensor, mapper)
    }
}
