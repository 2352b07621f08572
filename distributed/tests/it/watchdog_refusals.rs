//! A communicator that one thread alone may use is not watched, and says so.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use distributed::communicator::{ReduceBuffer, Topology, WaitPolicy};
use distributed::watchdog::Watchdog;
use distributed::{CollectiveError, Communicator};

/// One of two ranks under an MPI library without support for threads; nothing else of it may be
/// used.
#[derive(Debug, Default)]
pub(crate) struct Unthreaded {
    /// The policies that were set.
    pub(crate) wait_policies: Mutex<Vec<WaitPolicy>>,
}

type RankResult<T> = Result<T, CollectiveError>;

#[rustfmt::skip]
impl Communicator for Unthreaded {
    fn rank(&self) -> usize { 0 }
    fn world_size(&self) -> usize { 2 }
    fn all_reduce(&self, _: ReduceBuffer<'_>) -> RankResult<()> { unreachable!() }
    fn supports_threads(&self) -> bool { false }
    fn library(&self) -> String { "MPI without threads".to_owned() }
    fn set_wait_policy(&self, policy: WaitPolicy) { self.wait_policies.lock().unwrap().push(policy) }
    fn broadcast(&self, _: usize, _: &mut [u8]) -> RankResult<()> { unreachable!() }
    fn all_gather(&self, _: &[u8]) -> RankResult<Vec<Vec<u8>>> { unreachable!() }
    fn barrier(&self) -> RankResult<()> { unreachable!() }
    fn send(&self, _: usize, _: u16, _: &[u8]) -> RankResult<()> { unreachable!() }
    fn receive(&self, _: usize, _: u16, _: &mut [u8]) -> RankResult<()> { unreachable!() }
    fn exchange(&self, _: usize, _: &[u8], _: usize, _: &mut [u8]) -> RankResult<()> { unreachable!() }
    fn receive_any(&self, _: u16) -> RankResult<(usize, Vec<u8>)> { unreachable!() }
    fn try_receive_any(&self, _: u16) -> RankResult<Option<(usize, Vec<u8>)>> { unreachable!() }
    fn duplicate(&self) -> RankResult<Arc<dyn Communicator>> { unreachable!() }
    fn first_ranks(&self, _: usize) -> RankResult<Option<Arc<dyn Communicator>>> { unreachable!() }
    fn abort(&self, _: &str, _: i32) { unreachable!() }
    fn topology(&self) -> &Topology { unreachable!() }
}

#[test]
fn a_communicator_without_threads_is_refused_and_named() {
    let error = Watchdog::start(
        &Unthreaded::default(),
        Arc::default(),
        Duration::from_secs(1),
        Arc::new(|_: &_| {}),
    );
    let error = error.unwrap_err();
    assert_eq!(
        error,
        CollectiveError::WatchdogNeedsThreads {
            library: "MPI without threads".to_owned()
        }
    );
    let text = "the watchdog needs a communicator that two threads may use at once, which MPI without threads does not offer here. \
                Without it a rank that stops keeps the others waiting.";
    assert_eq!(error.to_string(), text);
}
