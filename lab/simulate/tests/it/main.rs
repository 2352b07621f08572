//! What holds in virtual time: times, predictions, and that its communicator is one.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "../../../../distributed/tests/conformance/mod.rs"]
mod conformance;
mod conforms;
mod predictions;
mod servers;
mod virtual_time;
