//! What the networks promise: PyTorch's numbers, equal ways to compute, weights in and out.

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
