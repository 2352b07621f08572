//! Which operations burn's own ones stood in for on Flex, as our kernels lack them.
//!
//! In: a line for each operation as it runs. Out: the lines, each once. Invariant: nothing that our kernels compute is named.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

static STAND_INS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

pub(crate) fn note(operation: String) {
    STAND_INS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(operation);
}

/// The operations of this process for which burn's own ones stood in on Flex, each once, such as "max pool 2x2, stride [2, 2]": our kernels lack
/// them, and they are several times slower so. The trainer prints them after its first step; a loop of one's own asks here.
pub fn stand_ins() -> Vec<String> {
    STAND_INS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .iter()
        .cloned()
        .collect()
}
