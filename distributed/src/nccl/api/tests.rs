//! Tests of the loader with a fake NCCL: choice of the library, arguments of functions, ends of
//! connections. They do not test NCCL.

#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use super::*;

const STAND_IN: &str = r#"
#include <stddef.h>
#include <string.h>
typedef struct { char internal[128]; } Id;
int asynchronous = 0, finalized = 0, destroyed = 0, aborted = 0;
static int place;
int ncclGetVersion(int *version) { *version = 22705; return 0; }
int ncclGetUniqueId(Id *id) { memset(id->internal, 42, 128); return 0; }
int ncclCommInitRank(void **comm, int num_ranks, Id id, int rank) {
  if (num_ranks != 3 || rank != 1 || id.internal[0] != 42 || id.internal[127] != 42) return 4;
  *comm = &place;
  return 0;
}
int ncclAllReduce(const void *in, void *out, size_t len, int type, int operation, void *comm, void *stream) {
  if (type != 7 || operation != 0 || comm != &place || stream != (void *)9) return 4;
  for (size_t i = 0; i < len; i++) ((float *)out)[i] = 3 * ((const float *)in)[i];
  return 0;
}
int ncclCommGetAsyncError(void *comm, int *error) { *error = asynchronous; return comm != &place; }
int ncclCommFinalize(void *comm) { finalized += comm == &place; return 0; }
int ncclCommDestroy(void *comm) { destroyed += comm == &place; return 0; }
int ncclCommAbort(void *comm) { aborted += comm == &place; return 0; }
const char *ncclGetErrorString(int result) { return result == 6 ? "remote process exited" : "invalid argument"; }
"#;

/// Returns a folder for this test that contains the fake under NCCL's usual name. Returns `None`
/// without a C compiler.
fn stand_in(test: &str) -> Option<PathBuf> {
    let folder = env::temp_dir().join(format!("lockstep-nccl-{}-{test}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let source = folder.join("nccl.c");
    let library = folder.join(NAMES[0]);
    fs::write(&source, STAND_IN).unwrap();
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    match compiled {
        Ok(status) => assert!(status.success(), "the stand-in does not compile"),
        Err(_) => println!("SKIPPED: no C compiler"),
    }
    library.exists().then_some(library)
}

fn number(api: &Api, name: &str) -> *mut c_int {
    // SAFETY: the fake defines these names as numbers.
    unsafe { *api._library.get::<*mut c_int>(name).unwrap() }
}

fn counts(api: &Api) -> [c_int; 3] {
    // SAFETY: as above, and no other thread uses the library at the same time.
    ["finalized", "destroyed", "aborted"].map(|name| unsafe { *number(api, name) })
}

fn opened(library: &Path) -> &'static Api {
    Box::leak(Box::new(
        Api::open(&[Path::new("/nonexistent/libnccl.so.2"), library]).unwrap(),
    ))
}

fn connected(api: &'static Api) -> Connection {
    let Ok(connection) = Connection::new(api, 1, 3, api.unique_id().unwrap()) else {
        panic!("not connected")
    };
    connection
}

#[test]
fn the_library_of_packages_is_loaded_its_functions_get_what_they_expect_and_a_healthy_connection_is_finalized()
 {
    let Some(library) = stand_in("healthy") else {
        return;
    };
    let api = opened(&library);
    assert!(matches!(api.version(), Ok(22705)));
    let mut connection = connected(api);
    let (values, mut sums) = ([1.0_f32, 2.0], [0.0_f32; 2]);
    let places = [values.as_ptr() as u64, sums.as_mut_ptr() as u64];
    // SAFETY: the fake computes in host memory.
    assert!(unsafe { connection.sum(places, 2, 9 as *mut c_void) }.is_ok());
    assert!(connection.check().is_ok());
    assert_eq!((values, sums), ([1.0, 2.0], [3.0, 6.0]));
    drop(connection);
    assert_eq!(counts(api), [1, 1, 0]);
    fs::remove_dir_all(library.parent().unwrap()).unwrap();
}

#[test]
fn an_error_between_calls_is_seen_and_aborts_the_connection_once() {
    let Some(library) = stand_in("broken") else {
        return;
    };
    let api = opened(&library);
    let mut connection = connected(api);
    // SAFETY: no other thread uses the fake.
    let set = |error| unsafe { *number(api, "asynchronous") = error };
    set(IN_PROGRESS);
    assert!(connection.check().is_ok());
    set(6);
    let Failure { call, text } = connection.check().unwrap_err();
    assert_eq!(
        (call, text.as_str()),
        ("ncclAllReduce", "remote process exited (ncclResult_t 6)")
    );
    set(SUCCESS);
    assert_eq!(counts(api), [0, 0, 1]);
    // SAFETY: no call reaches the fake any more.
    let refused = unsafe { connection.sum([0; 2], 1, 9 as *mut c_void) };
    assert!(refused.is_err() && connection.check().is_err());
    drop(connection);
    assert_eq!(counts(api), [0, 0, 1]);
    fs::remove_dir_all(library.parent().unwrap()).unwrap();
}

#[test]
fn a_library_that_is_not_there_or_is_not_nccl_says_so() {
    let missing = Api::open(&["/nonexistent/libnccl.so.2"]).unwrap_err();
    assert!(missing.contains("/nonexistent/libnccl.so.2"), "{missing}");
    let other = Api::open(&["libc.so.6"]).unwrap_err();
    assert!(
        other.starts_with("expected NCCL 2.14 or newer") && other.contains("ncclGetVersion"),
        "{other}"
    );
}
