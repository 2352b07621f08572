//! Names of operations that burn computes on Flex because Lockstep has no kernel.
//!
//! In: the name of each operation when it runs. Out: each name once.
//! Invariant: no operation with a kernel is listed.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

static FALLBACK_OPS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

pub(crate) fn note(operation: String) {
    FALLBACK_OPS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(operation);
}

/// Returns the operations of this process that fell back to burn on Flex, such as "max pool 5x5,
/// stride [2, 2]".
///
/// A fallback is several times slower than a kernel. The trainer prints the list after its first
/// step.
pub fn fallback_ops() -> Vec<String> {
    FALLBACK_OPS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .cloned()
        .collect()
}
