//! Where tuning results and compiled kernels are kept between runs.
//!
//! In: cubecl's own configuration (`cubecl.toml` in the working folder or above it, `CUBECL_*` variables). Out: the same, with the
//! user's cache folder instead of cubecl's default, the folder `target` of the cargo workspace that the program happens to run in.
//! Invariant: must be chosen before the first device is used; what was chosen elsewhere before stays.

use cubecl::config::cache::CacheConfig;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

/// Keeps them in `$XDG_CACHE_HOME/cubecl` (else `~/.cache/cubecl`), unless `cubecl.toml` names a folder under `[environment]`.
pub fn use_the_users_folder() {
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Global;
    }
    // Off by default; compiling takes most of a first run's time beside tuning.
    config.compilation.cache = true;
    // A second device of this process finds the configuration set.
    CubeClRuntimeConfig::try_set(config);
}
