//! Presence of NVIDIA's libraries. cudarc panics if the driver is missing, so the driver is checked
//! first.
//!
//! Out: yes or no, a version. Invariant: no function of CUDA or NCCL is called before its library
//! is loaded.

use super::api::{Api, NAMES};
use super::readiness::Readiness;

/// NCCL, if the driver loads too, or what is missing.
pub(super) fn load() -> Result<&'static Api, Readiness> {
    if !driver_loads() {
        return Err(Readiness::Lacking {
            problem: "expected NVIDIA's driver to load (libcuda.so.1), got none in the loader's path".to_owned(),
            remedy: "Run on nodes with GPUs; in a container, give it the GPUs (docker run --gpus all, apptainer exec --nv)"
                .to_owned(),
        });
    }
    Api::get().map_err(|reason| Readiness::Lacking {
        problem: format!("expected NCCL to load ({}), got {reason}", NAMES.join(" or ")),
        remedy: "Install NCCL, or add its folder to LD_LIBRARY_PATH (in PyTorch's wheels: site-packages/nvidia/nccl/lib)"
            .to_owned(),
    })
}

/// Returns the version of the NCCL that this process would use, such as `2.21.5`; `None` where it
/// does not load.
pub fn library_version() -> Option<String> {
    Some(version_text(Api::get().ok()?.version().ok()?))
}

/// NCCL's number of its version in words: up to 2.8 the minor version had one digit less.
fn version_text(code: i32) -> String {
    let thousands = if code < 10_000 { 1_000 } else { 10_000 };
    format!(
        "{}.{}.{}",
        code / thousands,
        code % thousands / 100,
        code % 100
    )
}

fn driver_loads() -> bool {
    // SAFETY: loading runs the library's own initialisers; every CUDA program, also burn's, runs
    // those of this one.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

#[cfg(test)]
mod tests {
    use super::version_text;

    #[test]
    fn versions_are_read_in_both_of_their_forms() {
        assert_eq!(version_text(2708), "2.7.8");
        assert_eq!(version_text(22105), "2.21.5");
        assert_eq!(version_text(23203), "2.32.3");
    }
}
