//! Lets a program catch panics that would otherwise end the job.
//!
//! In: the panic hook that joining the world installed; under MPI it ends the job before the stack
//! unwinds. Out: a hook that ignores caught panics, and a way to catch them. Invariant: the
//! installed hook gets all other panics.
//!
//! It stands here since `distributed` installs the hook, and `datasets` and `verify` catch panics.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Place of the last panic while [`caught`] runs, on any thread.
static PLACE: Mutex<Option<String>> = Mutex::new(None);

fn place() -> MutexGuard<'static, Option<String>> {
    PLACE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs a hook that ignores caught panics and passes others to the present hook.
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
            // Printed before the hook, which may end the job.
            let _ = writeln!(io::stderr(), "{TWO_FORMATS}");
        }
        hook(panic);
    }));
}

/// Explanation of burn's panic about operands of two number formats.
const TWO_FORMATS: &str = "number formats: burn's operations need operands of one format, and parameters are f32 with --dtype bf16 or \
    f16. Use arithmetic on `layers::Features`, or `layers::in_f32`";

/// Returns the result of the work, or the message and the place of its panic. Only for a process
/// without other ranks, which would wait for this one after a panic.
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
