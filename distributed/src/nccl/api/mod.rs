//! NCCL's functions, from a library that is loaded when a job first needs it.
//!
//! In: a group's name, memory of a GPU, a stream. Out: sums.
//! Invariant: a working connection is finalized, so that pending data arrive. A failed connection
//! is aborted at once, which does not wait and ends the pending sums of this rank's GPU.
//! Source: nccl.h of NCCL 2.14, compatible with all later releases of version 2.
//!
//! cudarc has the same functions, but loads only `libnccl.so`, which runtime packages do not
//! contain, and aborts every connection.

use std::error::Error;
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::thread;

use libloading::Library;

use super::link::Failure;

/// Library names: the name in PyTorch's wheels and the package `libnccl2`, then the development
/// package's.
pub(super) const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

// Constants of nccl.h.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
const FLOAT_32: c_int = 7;
const SUM: c_int = 0;

type Handle = *mut c_void;
type OfHandle = unsafe extern "C" fn(Handle) -> c_int;

/// NCCL's id of a group of GPUs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UniqueId(pub(super) [u8; UniqueId::BYTES]);

impl UniqueId {
    pub(super) const BYTES: usize = 128;
}

/// Functions of a loaded library.
#[derive(Debug)]
pub(super) struct Api {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    comm_init_rank: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> c_int,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        Handle,
        usize,
        c_int,
        c_int,
        Handle,
        *mut c_void,
    ) -> c_int,
    get_async_error: unsafe extern "C" fn(Handle, *mut c_int) -> c_int,
    finalize: OfHandle,
    destroy: OfHandle,
    abort: OfHandle,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// Library of the functions. Both live as long as the process.
    _library: Library,
}

impl Api {
    /// Returns NCCL of this process, or the reason why NCCL does not load.
    pub(super) fn get() -> Result<&'static Self, &'static str> {
        static API: OnceLock<Result<Api, String>> = OnceLock::new();
        API.get_or_init(|| Self::open(&NAMES))
            .as_ref()
            .map_err(String::as_str)
    }

    /// Returns the first library of `names` that loads.
    fn open<N: AsRef<OsStr>>(names: &[N]) -> Result<Self, String> {
        let mut reasons = Vec::new();
        for name in names {
            // SAFETY: loading runs the library's initialisers, which need no driver and no GPU.
            match unsafe { Library::new(name.as_ref()) } {
                Ok(library) => {
                    return Self::of(library).map_err(|error| {
                        let library = name.as_ref().display();
                        let got = reason(&error);
                        format!("expected NCCL 2.14 or newer in {library}, got {got}")
                    });
                }
                Err(error) => reasons.push(reason(&error)),
            }
        }
        Err(reasons.join(", and "))
    }

    fn of(library: Library) -> Result<Self, libloading::Error> {
        // SAFETY: the signatures are those of nccl.h, and the functions are dropped together with
        // the library.
        unsafe {
            Ok(Self {
                get_version: *library.get(b"ncclGetVersion")?,
                get_unique_id: *library.get(b"ncclGetUniqueId")?,
                comm_init_rank: *library.get(b"ncclCommInitRank")?,
                all_reduce: *library.get(b"ncclAllReduce")?,
                get_async_error: *library.get(b"ncclCommGetAsyncError")?,
                finalize: *library.get(b"ncclCommFinalize")?,
                destroy: *library.get(b"ncclCommDestroy")?,
                abort: *library.get(b"ncclCommAbort")?,
                get_error_string: *library.get(b"ncclGetErrorString")?,
                _library: library,
            })
        }
    }

    /// Returns NCCL's version number.
    pub(super) fn version(&self) -> Result<i32, Failure> {
        let mut version = 0;
        // SAFETY: the call writes one number.
        self.check("ncclGetVersion", unsafe {
            (self.get_version)(&mut version)
        })?;
        Ok(version)
    }

    /// Returns the id of a new group of GPUs, or NCCL's result code.
    pub(super) fn unique_id(&self) -> Result<UniqueId, c_int> {
        let mut id = UniqueId([0; UniqueId::BYTES]);
        // SAFETY: the call writes an id.
        match unsafe { (self.get_unique_id)(&mut id) } {
            SUCCESS => Ok(id),
            result => Err(result),
        }
    }

    /// Returns NCCL's text for a result code.
    pub(super) fn words(&self, result: c_int) -> String {
        // SAFETY: the call accepts any number and returns a static text.
        let text = unsafe { CStr::from_ptr((self.get_error_string)(result)) };
        format!("{} (ncclResult_t {result})", text.to_string_lossy())
    }

    fn check(&self, call: &'static str, result: c_int) -> Result<(), Failure> {
        if result == SUCCESS {
            Ok(())
        } else {
            Err(Failure {
                call,
                text: self.words(result),
            })
        }
    }
}

/// Returns the loader's message, which libloading has as the source of its error.
fn reason(error: &libloading::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), ToString::to_string)
}

/// Connection of this rank to a group of GPUs.
#[derive(Debug)]
pub(super) struct Connection {
    api: &'static Api,
    handle: Handle,
    /// The first failure, after which the handle is invalid.
    failure: Option<Failure>,
}

// SAFETY: an NCCL communicator belongs to no thread. Any thread may call its functions, one at a
// time. Each call takes `&mut self`, and no function returns the handle.
unsafe impl Send for Connection {}

impl Connection {
    /// Waits until all ranks of `id` have joined, each with the GPU whose context is current.
    pub(super) fn new(
        api: &'static Api,
        rank: usize,
        world_size: usize,
        id: UniqueId,
    ) -> Result<Self, Failure> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the call writes a handle, which only this connection uses.
        let result =
            unsafe { (api.comm_init_rank)(&mut handle, world_size as c_int, id, rank as c_int) };
        api.check("ncclCommInitRank", result)?;
        Ok(Self {
            api,
            handle,
            failure: None,
        })
    }

    /// Queues a sum on `stream`: that of `len` values of f32 at `from` over all ranks, into `to`.
    ///
    /// # Safety
    /// `from` and `to` are memory for `len` values on this rank's GPU, equal or apart. Until the
    /// sum has completed, only `stream`, a CUDA stream of that GPU, uses the memory.
    pub(super) unsafe fn sum(
        &mut self,
        [from, to]: [u64; 2],
        len: usize,
        stream: *mut c_void,
    ) -> Result<(), Failure> {
        self.expect_live()?;
        let [from, to] = [from, to].map(|address| address as Handle);
        // SAFETY: the caller guarantees the memory, and the handle is valid.
        let result =
            unsafe { (self.api.all_reduce)(from, to, len, FLOAT_32, SUM, self.handle, stream) };
        self.noted(self.api.check("ncclAllReduce", result))
    }

    /// Returns the error of a connection that failed, also between calls.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        self.expect_live()?;
        let mut error = SUCCESS;
        // SAFETY: the call writes one number, and the handle is valid.
        let result = unsafe { (self.api.get_async_error)(self.handle, &mut error) };
        let error = if error == IN_PROGRESS { SUCCESS } else { error };
        let checked = self.api.check("ncclCommGetAsyncError", result);
        self.noted(checked.and_then(|()| self.api.check("ncclAllReduce", error)))
    }

    fn expect_live(&self) -> Result<(), Failure> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Aborts the connection after a failure.
    fn noted(&mut self, result: Result<(), Failure>) -> Result<(), Failure> {
        if let Err(failure) = &result {
            self.failure = Some(failure.clone());
            // SAFETY: this is the last use of the handle. The result no longer matters.
            unsafe { (self.api.abort)(self.handle) };
        }
        result
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.failure.is_some() {
            return;
        }
        let Self { api, handle, .. } = *self;
        // SAFETY: the handle is valid, and this is its last use. The results no longer matter.
        unsafe {
            if thread::panicking() || (api.finalize)(handle) != SUCCESS {
                (api.abort)(handle);
            } else {
                (api.destroy)(handle);
            }
        }
    }
}

#[cfg(test)]
mod tests;
