//! Tests without MPI and GPU: ranks are threads.

#![allow(clippy::unwrap_used, reason = "test code")]

mod bucket;
mod communicators;
mod compression;
#[path = "../conformance/mod.rs"]
mod conformance;
mod gradients;
mod modules;
mod reductions;
mod watchdog;
mod watchdog_refusals;
