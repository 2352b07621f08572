//! The allocator's settings belong to the process: this test has its own binary.

#![cfg(all(target_os = "linux", target_env = "gnu", target_pointer_width = "64"))]

use kernels::arena::keep_freed_memory;

/// Page faults of this thread so far: of its stat the tenth value, the eighth behind the name in
/// brackets.
fn page_faults() -> usize {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    let faults = stat
        .rsplit(')')
        .next()
        .and_then(|values| values.split_whitespace().nth(7));
    faults
        .and_then(|faults| faults.parse().ok())
        .expect("Linux counts them")
}

/// Page faults of one step that places parameters: the new ones while the old ones are there still.
fn step() -> usize {
    let before = page_faults();
    let old: Vec<Vec<u8>> = (1..5).map(|size| vec![1; size << 20]).collect();
    let new = old.clone();
    assert_eq!(new[3][4 << 19], 1);
    drop((old, new));
    page_faults() - before
}

#[test]
fn kept_memory_serves_the_next_step_with_few_page_faults() {
    keep_freed_memory();
    let first = step();
    let second = step();
    assert!(first > 0, "this system counts no page faults");
    assert!(
        10 * second < first,
        "page faults of the first step {first}, of the second {second}"
    );
}
