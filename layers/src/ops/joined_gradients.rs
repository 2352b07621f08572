//! Joins gradients on a device and reads each group back at once.
//!
//! In: single gradients in the order of the backward pass.
//! Out: all gradients of a group, concatenated in this order, when the last one has arrived.
//! Invariant: every gradient leaves once per pass. [`JoinedGradients::rest`] returns the gradients
//! of incomplete groups.
//!
//! Reason: each read ends burn's fusion and waits for the device. A network has a hundred
//! parameters, but only a few buckets.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::module::ParamId;
use burn::tensor::{Shape, TensorData, read_sync};

/// Returns a parameter's group and the group's number of parameters; `None` for a single one.
type GroupOf = dyn Fn(ParamId) -> Option<(usize, usize)> + Send + Sync;

/// Concatenated gradients, with the parameter and number of elements of each.
#[derive(Debug)]
pub struct Joined {
    /// Parameter and number of elements of each gradient, in the order of the values.
    pub parameters: Vec<(ParamId, usize)>,
    /// f32, as [`GradientHook`](super::GradientHook) has them.
    pub values: TensorData,
}

/// Gradients that wait until their group is complete.
pub struct JoinedGradients {
    group_of: Box<GroupOf>,
    waiting: Mutex<BTreeMap<usize, Waiting>>,
}

/// Gradients of a group that wait.
struct Waiting {
    parameters: Vec<(ParamId, usize)>,
    /// A `Vec` of a backend's tensors, `[len]` each, of which only `join` knows the type.
    tensors: Box<dyn Any + Send>,
    join: fn(Box<dyn Any + Send>) -> TensorData,
}

impl Waiting {
    fn joined(self) -> Joined {
        Joined {
            parameters: self.parameters,
            values: (self.join)(self.tensors),
        }
    }
}

impl JoinedGradients {
    /// Returns empty groups; `group_of` returns the group of a parameter and the group's size.
    pub fn new(
        group_of: impl Fn(ParamId) -> Option<(usize, usize)> + Send + Sync + 'static,
    ) -> Self {
        Self {
            group_of: Box::new(group_of),
            waiting: Mutex::default(),
        }
    }

    /// Returns the incomplete groups at the end of a pass. Some of their parameters have no
    /// gradient.
    pub fn rest(&self) -> Vec<Joined> {
        mem::take(&mut *self.lock())
            .into_values()
            .map(Waiting::joined)
            .collect()
    }

    /// Returns the complete group if `gradient` completes it.
    pub(super) fn add<B: Backend>(
        &self,
        parameter: ParamId,
        gradient: FloatTensor<B>,
    ) -> Option<Joined> {
        let len = gradient.shape().num_elements();
        let (group, size) = (self.group_of)(parameter).unwrap_or((usize::MAX, 1));
        let mut all = self.lock();
        let waiting = all.entry(group).or_insert_with(|| Waiting {
            parameters: Vec::with_capacity(size),
            tensors: Box::new(Vec::<FloatTensor<B>>::with_capacity(size)),
            join: join::<B>,
        });
        let tensors = waiting
            .tensors
            .downcast_mut::<Vec<FloatTensor<B>>>()
            .expect("a pass is on one backend");
        tensors.push(B::float_reshape(gradient, Shape::new([len])));
        waiting.parameters.push((parameter, len));
        let is_whole = waiting.parameters.len() == size;
        let whole = if is_whole { all.remove(&group) } else { None };
        drop(all);
        whole.map(Waiting::joined)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Waiting>> {
        // A poisoned lock means that a pass panicked; the job ends with that panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Debug for JoinedGradients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinedGradients({} groups wait)", self.lock().len())
    }
}

fn join<B: Backend>(tensors: Box<dyn Any + Send>) -> TensorData {
    let mut tensors = *tensors
        .downcast::<Vec<FloatTensor<B>>>()
        .expect("they were put in with this function");
    let joined = if tensors.len() == 1 {
        tensors.remove(0)
    } else {
        B::float_cat(tensors, 0)
    };
    to_data::<B>(joined)
}

/// Returns the values of a tensor; their first reader waits for the device.
///
/// # Panics
/// When the device fails: a backward pass has no error to return.
pub(super) fn to_data<B: Backend>(tensor: FloatTensor<B>) -> TensorData {
    read_sync(B::float_into_data(tensor)).expect("a gradient just computed can be read")
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;
    use burn::backend::flex::FlexTensor;

    use super::*;

    fn gradient(values: &[f32]) -> FlexTensor {
        FlexTensor::from_data(TensorData::new(values.to_vec(), [values.len(), 1]))
    }

    #[test]
    fn a_group_leaves_with_its_last_gradient_in_order_of_arrival_and_the_next_pass_begins_anew() {
        let [a, b, c, alone] = [0; 4].map(|_| ParamId::new());
        let groups = JoinedGradients::new(move |id| match id {
            id if id == alone => None,
            id if id == c => Some((1, 2)),
            _ => Some((0, 2)),
        });
        for pass in [0.0, 1.0] {
            assert!(groups.add::<Flex>(b, gradient(&[pass, 2.0])).is_none());
            let own = groups
                .add::<Flex>(alone, gradient(&[7.0]))
                .expect("it does not wait");
            assert_eq!(
                (own.parameters, own.values),
                (vec![(alone, 1)], TensorData::from([7.0_f32]))
            );
            assert!(groups.add::<Flex>(c, gradient(&[8.0])).is_none());
            let whole = groups
                .add::<Flex>(a, gradient(&[3.0]))
                .expect("its group is whole");
            assert_eq!(whole.parameters, [(b, 2), (a, 1)]);
            assert_eq!(whole.values, TensorData::from([pass, 2.0, 3.0]));
            // The other parameter of its group has no gradient in this pass.
            let rest = groups.rest();
            assert_eq!(rest.len(), 1);
            assert_eq!(
                (&rest[0].parameters, &rest[0].values),
                (&vec![(c, 1)], &TensorData::from([8.0_f32]))
            );
        }
        assert!(groups.rest().is_empty());
    }
}
