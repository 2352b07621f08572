//! Shared settings of the layers in a pass: computation, reducer of statistics, gradient hook.
//!
//! In: a context, set around a forward pass.
//! Out: the settings of each layer on this thread.
//! Invariant: a backward pass uses the context of its forward pass, on any thread.

use std::cell::RefCell;
use std::sync::Arc;

use crate::choices::Computation;
use crate::ops::{GradientHook, StatisticsReducer};

thread_local! {
    static CURRENT: RefCell<PassContext> = RefCell::default();
}

/// Settings of a forward pass and its backward pass. The default is for a single process.
#[derive(Clone, Debug, Default)]
pub struct PassContext {
    /// Computation of the layers.
    pub computation: Computation,
    /// Sums the batch statistics of normalisations over all processes that compute a batch
    /// together. With `None`, a process uses only its own batch.
    pub reducer: Option<Arc<dyn StatisticsReducer>>,
    /// Takes each parameter's gradient as soon as it is final. With `None`, gradients stay on the
    /// tape.
    pub hook: Option<Arc<dyn GradientHook>>,
}

impl From<Computation> for PassContext {
    /// Returns a context for a single process with this computation.
    fn from(computation: Computation) -> Self {
        Self {
            computation,
            ..Self::default()
        }
    }
}

impl PassContext {
    /// Runs `forward`; all layers that this thread calls in it use this context.
    pub fn scope<T>(self, forward: impl FnOnce() -> T) -> T {
        struct Restored(PassContext);
        impl Drop for Restored {
            fn drop(&mut self) {
                CURRENT.set(std::mem::take(&mut self.0));
            }
        }
        let _outer = Restored(CURRENT.replace(self));
        forward()
    }

    /// Returns the context of the current pass on this thread.
    pub fn current() -> Self {
        CURRENT.with_borrow(Self::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Nobody;
    impl StatisticsReducer for Nobody {
        fn all_reduce_sum(&self, _: &mut [f64]) {}
    }

    #[test]
    fn a_context_holds_for_its_pass_even_one_that_panics_and_then_the_outer_one_again() {
        let has_reducer = || PassContext::current().reducer.is_some();
        let with_reducer = || PassContext {
            reducer: Some(Arc::new(Nobody)),
            ..PassContext::default()
        };
        with_reducer().scope(|| {
            assert!(has_reducer());
            PassContext::default().scope(|| assert!(!has_reducer()));
            assert!(has_reducer());
            std::panic::catch_unwind(|| PassContext::default().scope(|| panic!("on purpose")))
                .unwrap_err();
            assert!(has_reducer());
        });
        assert!(!has_reducer());
    }
}
