//! End of the job after a panic.
//!
//! In: a panic on any thread, caught or not. Out: one error line, and the end of the process or of
//! all ranks.
//! Invariant: after a panic no other thread waits for work of the panicked thread.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::panic::{PanicHookInfo, set_hook};
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a job that a panic ends. A Rust program exits with the same code after a panic.
pub(crate) const EXIT_CODE: i32 = 101;

/// Replaces the panic hook by one that reports the panic and calls `end`. If `may_unwind` returns
/// true, the hook only reports.
pub(crate) fn end_on_panic(rank: usize, may_unwind: fn() -> bool, end: fn()) {
    static ENDING: AtomicBool = AtomicBool::new(false);
    set_hook(Box::new(move |panic| {
        if may_unwind() {
            report(rank, panic);
            return;
        }
        if ENDING.swap(true, Ordering::SeqCst) {
            // Another thread is ending the job. This thread must not unwind in the meantime.
            loop {
                std::thread::park();
            }
        }
        report(rank, panic);
        end();
    }));
}

/// Ends this process on a panic. A process without MPI has no other ranks.
pub(crate) fn end_process_on_panic() {
    end_on_panic(crate::ROOT, || false, || std::process::exit(EXIT_CODE));
}

/// Prints the panic in one write, so that lines of several ranks do not mix.
fn report(rank: usize, panic: &PanicHookInfo<'_>) {
    let place = panic
        .location()
        .map_or_else(String::new, |location| format!(" at {location}"));
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let message = panic.payload_as_str().unwrap_or("no message");
    let mut text = format!("error (rank {rank}): panicked{place} (thread {thread}): {message}\n");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        text.push_str(&format!("{backtrace}\n"));
    }
    // A closed stderr must not keep the other ranks waiting.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
