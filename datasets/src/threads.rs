//! Optional threads: if the operating system rejects one, the caller does the work.
//!
//! In: work. Out: the thread that does the work, or the input for the caller.
//! Invariant: a lack of threads (`ulimit -u`, the cgroup's `pids.max`) costs time but changes no
//! result.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Builder, JoinHandle};

static NUM_REFUSED: AtomicU64 = AtomicU64::new(0);

/// Returns the number of threads that the operating system has rejected in [`start`] so far.
pub fn num_refused() -> u64 {
    NUM_REFUSED.load(Ordering::Relaxed)
}

/// Starts `work` on `input` on a thread.
///
/// # Errors
/// Returns `input` as the error if the operating system rejects the thread.
pub fn start<I, T>(
    name: &str,
    input: I,
    work: impl FnOnce(I) -> T + Send + 'static,
) -> Result<JoinHandle<T>, I>
where
    I: Send + 'static,
    T: Send + 'static,
{
    // A rejected thread would lose its input. So the input is sent after the thread has started.
    let (hand_over, handed) = sync_channel(1);
    let work = move || work(handed.recv().expect("the starter hands the input over"));
    match builder().name(name.to_owned()).spawn(work) {
        Ok(thread) => {
            let _ = hand_over.send(input);
            Ok(thread)
        }
        Err(_) => {
            NUM_REFUSED.fetch_add(1, Ordering::Relaxed);
            Err(input)
        }
    }
}

#[cfg(not(test))]
fn builder() -> Builder {
    Builder::new()
}

#[cfg(test)]
fn builder() -> Builder {
    // No system can create a thread with such a stack.
    if REFUSES.get() {
        Builder::new().stack_size(1 << 60)
    } else {
        Builder::new()
    }
}

#[cfg(test)]
thread_local! {
    /// Set by tests to make the operating system reject threads of this thread.
    pub(crate) static REFUSES: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Returns the results of `work` on each part, in the order of the parts. The caller and up to
/// `num_threads - 1` threads share the parts.
pub(crate) fn in_parts<P: Send, R: Send>(
    num_threads: usize,
    parts: impl IntoIterator<Item = P>,
    work: impl Fn(P) -> R + Sync,
) -> Vec<R> {
    let parts: Vec<P> = parts.into_iter().collect();
    let num_helpers = num_threads.min(parts.len()).saturating_sub(1);
    let queue = Mutex::new(parts.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work_off = || {
        let mut done = Vec::new();
        while let Some((index, part)) = next() {
            done.push((index, work(part)));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        // The parts of a rejected helper are done by the other threads.
        let helpers =
            (0..num_helpers).map_while(|_| Builder::new().spawn_scoped(scope, work_off).ok());
        let helpers: Vec<_> = helpers.collect();
        let mut done = work_off();
        for helper in helpers {
            done.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_of_a_refused_thread_comes_back() {
        let before = num_refused();
        REFUSES.set(true);
        assert_eq!(start("test", 7, |input| input + 1).map(|_| ()), Err(7));
        REFUSES.set(false);
        assert!(num_refused() > before);
        assert_eq!(
            start("test", 7, |input| input + 1).unwrap().join().unwrap(),
            8
        );
    }

    #[test]
    fn parts_come_in_order_on_any_number_of_threads() {
        for num_threads in [0, 1, 3, 100] {
            let results = in_parts(num_threads, 0..50, |part| 10 * part);
            assert_eq!(results, (0..50).map(|part| 10 * part).collect::<Vec<_>>());
        }
    }
}
