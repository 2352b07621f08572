//! Panics that are caught, and so end no job.
//!
//! In: the panic hook that joining the world left; under MPI it ends the job before anything unwinds. Out: one that leaves caught panics
//! alone, and a way to catch them. Invariant: a panic that nobody catches meets the hook as it was.
//!
//! This crate alone knows both who sets the hook (`distributed`) and who catches (`datasets` and `verify`).

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where the last panic was, while [`caught`] is at work. Of all threads: what it calls may panic on others.
static PLACE: Mutex<Option<String>> = Mutex::new(None);

fn place() -> MutexGuard<'static, Option<String>> {
    PLACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps caught panics from the hook that is set now.
pub(super) fn spare_caught() {
    let hook = take_hook();
    set_hook(Box::new(move |panic| {
        #[cfg(feature = "parquet")]
        if datasets::parquet_files::is_reading() {
            return;
        }
        if let Some(place) = &mut *place() {
            *place = panic
                .location()
                .map_or_else(String::new, |location| format!(" at {location}"));
            return;
        }
        if panic
            .payload_as_str()
            .is_some_and(|text| text.contains("dtype mismatch"))
        {
            // Before the hook, which may end the job.
            let _ = writeln!(io::stderr(), "{TWO_FORMATS}");
        }
        hook(panic);
    }));
}

/// The cause of burn's panic about operands of two number formats.
const TWO_FORMATS: &str = "number formats: burn's operations need operands of one format, and parameters are f32 with --dtype bf16 or \
    f16. Use arithmetic on `layers::Features`, or `layers::in_f32`";

/// What the work gives, or the words and the place of its panic. Only in a process without others, which would wait for a rank that goes
/// on elsewhere after a panic.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    *place() = Some(String::new());
    let result = catch_unwind(AssertUnwindSafe(work));
    let place = place().take().unwrap_or_default();
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text
            .or_else(|| payload.downcast_ref::<&str>().copied())
            .unwrap_or("without a message");
        format!("panic{place}: {text}")
    })
}
