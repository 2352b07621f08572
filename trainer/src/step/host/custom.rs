//! A custom optimizer: any of burn's, or one written for a program.
//!
//! In: the learning rate, the synchronised mean gradient. Out: a model with updated parameters; a
//! record for the checkpoint.
//! Invariant: a parameter has the same id in every process, since records identify parameters by id.

use std::fmt;

use anyhow::{Result, anyhow, ensure};
use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::tensor::{Bytes, Tensor};

/// An optimizer of burn's kind.
#[derive(Clone)]
pub struct CustomOptimizer(pub ModuleOptimizer);

impl CustomOptimizer {
    /// Returns the state as burn writes it.
    ///
    /// # Panics
    /// If burn cannot write it, which its own optimizers' states cannot cause.
    pub fn record(&self) -> Vec<u8> {
        let bytes = self.0.into_bytes();
        let bytes = bytes.expect("the optimizer's state can be written");
        bytes.to_vec()
    }

    /// Continues from a [`record`](Self::record).
    ///
    /// # Errors
    /// If it is not one, or of an optimizer whose state has another form: burn ignores what it
    /// cannot use.
    pub fn restore(&mut self, record: &[u8]) -> Result<()> {
        let record = OptimizerRecord::from_bytes(Bytes::from_bytes_vec(record.to_vec()));
        let record = record.map_err(|error| {
            anyhow!("record of the custom optimizer: {error}. Use another checkpoint")
        })?;
        let expected = record.len();
        self.0 = self.0.clone().load_record(record);
        let taken = self.0.to_record().len();
        ensure!(
            taken == expected,
            "record of the custom optimizer: expected {expected} tensors to be of this optimizer, got {taken}. Resume with the program \
             that started the run, or start another run from its --weights"
        );
        Ok(())
    }
}

impl fmt::Debug for CustomOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomOptimizer")
    }
}

/// Returns `model` with parameters whose ids are their places in module order.
pub(super) fn with_ids_by_order<M: Module>(model: M) -> M {
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
