//! Tests of loading, on generated images and, if they are available, on real ones.

#![allow(clippy::unwrap_used, reason = "test code")]

mod any_size;
mod device_route;
mod loader;
mod odd_folders;
mod odd_images;
#[cfg(feature = "parquet")]
mod parquet_files;
mod real_data;
mod shard;
