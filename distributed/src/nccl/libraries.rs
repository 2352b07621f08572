//! Whether NVIDIA's libraries load here; cudarc panics where one is missing, so it is asked first.
//!
//! Out: yes or no, a version. Invariant: nothing of CUDA or NCCL is called before its library was loaded.

use super::readiness::Readiness;

/// Whether both libraries load, or what is missing.
pub(super) fn load() -> Result<(), Readiness> {
    if !driver_loads() {
        return Err(Readiness::Lacking {
            problem: "expected NVIDIA's driver to load (libcuda.so.1), got none in the loader's path".to_owned(),
            remedy: "run on nodes with GPUs, in a container with them (docker run --gpus all, apptainer exec --nv)"
                .to_owned(),
        });
    }
    if !nccl_loads() {
        return Err(Readiness::Lacking {
            problem: "expected NCCL to load (libnccl.so), got none in the loader's path".to_owned(),
            remedy: "add its folder to LD_LIBRARY_PATH; where there is only libnccl.so.2, link libnccl.so to it \
                     or install the development package"
                .to_owned(),
        });
    }
    Ok(())
}

/// The version of the NCCL that this process would use, such as `2.21.5`; `None` where it does not load.
pub fn library_version() -> Option<String> {
    let code = nccl_loads().then(|| cudarc::nccl::result::get_nccl_version().ok()).flatten()?;
    Some(version_text(code))
}

/// NCCL's number of its version in words: up to 2.8 the minor version had one digit less.
fn version_text(code: i32) -> String {
    let thousands = if code < 10_000 { 1_000 } else { 10_000 };
    format!("{}.{}.{}", code / thousands, code % thousands / 100, code % 100)
}

fn driver_loads() -> bool {
    // SAFETY: loading runs the library's own initialisers; every CUDA program, also burn's, runs those of this one.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

fn nccl_loads() -> bool {
    // SAFETY: loading runs the library's own initialisers, which need no driver and no GPU.
    unsafe { cudarc::nccl::sys::is_culib_present() }
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
