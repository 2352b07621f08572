//! The sum of a device's flat gradient in bf16: half of the bytes to main memory and between ranks.
//!
//! In: one flat tensor per rank, of equal lengths. Out: their sum, rounded to bf16, the same bits
//! on every rank; the tail is summed in f32.
//! Invariant: as in `distributed::compress`, Σ residuals + result = Σ inputs, where an input is a
//! gradient plus the previous residual. The residual lies on the device.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use burn::tensor::{DType, FloatDType, Tensor, TensorData, bf16};
use distributed::Communicator;
use distributed::gradients::{ReductionState, RoundedSum, Traffic};

use super::TAIL;
use super::optimizer::DeviceOptimizer;
use super::placement::FlatPlacement;
use crate::model::floats;

/// The sum, with the rounding errors of this rank.
#[derive(Debug)]
pub(super) struct HalfSum {
    sum: RoundedSum,
    residual: Tensor<1>,
    /// The residual before the last sum.
    previous: Tensor<1>,
    communicator: Arc<dyn Communicator>,
}

impl HalfSum {
    pub(super) fn new(placement: &FlatPlacement, communicator: &Arc<dyn Communicator>) -> Self {
        let residual = Tensor::zeros([placement.len()], placement.device());
        Self {
            sum: RoundedSum::new(placement.len()),
            previous: residual.clone(),
            residual,
            communicator: Arc::clone(communicator),
        }
    }

    /// Returns the rounded sum of `own` over all ranks.
    /// Collective: all ranks.
    pub(super) fn sum(&mut self, own: Tensor<1>) -> Result<(Tensor<1>, Traffic)> {
        let device = own.device();
        let [len] = self.residual.dims();
        let tail = own.clone().slice(len..len + TAIL);
        let values = own.slice(0..len) + self.residual.clone();
        let rounded = values.clone().cast(FloatDType::BF16);
        let mut residual = values.clone() - rounded.clone().cast(FloatDType::F32);
        let squared = |tensor: Tensor<1>| (tensor.clone() * tensor).sum();
        let numbers = Tensor::cat(vec![tail, squared(values), squared(residual.clone())], 0);
        let mut numbers = floats(numbers.into_data())?;
        let mut wire: Vec<bf16> = rounded
            .into_data()
            .try_into_vec()
            .map_err(|error| anyhow!("gradient of the device: {error:?}"))?;

        let (tail, squares) = numbers.split_at_mut(TAIL);
        self.communicator.all_reduce_sum(tail)?;
        let (segment, errors, bytes_sent) = self.sum.sum(&mut wire, &*self.communicator)?;

        let of_sum: f64 = errors.iter().map(|error| f64::from(*error).powi(2)).sum();
        if !segment.is_empty() {
            let errors = Tensor::from_data(TensorData::new(errors, [segment.len()]), &device);
            let place = segment.start..segment.end;
            let errors = residual.clone().slice(place.clone()) + errors;
            residual = residual.slice_assign([place], errors);
        }
        self.previous = std::mem::replace(&mut self.residual, residual);
        let sum = TensorData::new(wire, [len]);
        let sum = Tensor::<1>::from_data(sum, (&device, DType::BF16)).cast(FloatDType::F32);
        let tail = Tensor::from_data(TensorData::new(tail.to_vec(), [TAIL]), &device);
        let world_size = self.communicator.world_size();
        let mut traffic = Traffic {
            bytes_sent,
            uncompressed_bytes: Traffic::of_sum(len, size_of::<f32>(), world_size).bytes_sent,
            ..Traffic::default()
        };
        // A skipped step does not count.
        if squares[0].is_finite() {
            traffic.input_squared = f64::from(squares[0]);
            traffic.error_squared = f64::from(squares[1]) + of_sum;
        }
        Ok((Tensor::cat(vec![sum, tail], 0), traffic))
    }

    /// Takes the residual back if the device skipped the step.
    pub(super) fn keep_if_updated(&mut self, optimizer: &DeviceOptimizer) {
        let [before, after] = [&self.previous, &self.residual].map(|tensor| vec![tensor.clone()]);
        self.residual = optimizer.if_updated(before, after).swap_remove(0);
    }

    pub(super) fn state(&self, placement: &FlatPlacement) -> ReductionState {
        ReductionState {
            residual: placement.read(&self.residual),
            ..ReductionState::default()
        }
    }

    pub(super) fn restore(&mut self, placement: &FlatPlacement, state: &ReductionState) {
        self.residual = placement.upload(&state.residual);
    }
}
