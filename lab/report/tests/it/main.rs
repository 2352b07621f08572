//! The report's tests on folders as programs leave them, in one program.

#![allow(clippy::unwrap_used, reason = "a failed unwrap here is a failed test")]

mod pages;
