//! Simulated times and predictions.

#![allow(clippy::unwrap_used, reason = "test code")]

mod predictions;
mod servers;
mod virtual_time;
