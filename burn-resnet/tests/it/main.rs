//! Tests of the networks: PyTorch's numbers, equal ways to compute, reading and writing weights.

#![allow(clippy::unwrap_used)] // A failed unwrap here is a failed test.

mod checkpoints;
mod fused;
mod golden;
mod gradient_hook;
mod half;
mod imagenet;
mod known_answer;
mod network;
mod support;
mod sync_batch_norm;
mod weights;
