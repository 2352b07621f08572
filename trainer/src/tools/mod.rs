//! Measurements, checks and predictions of jobs and machines.

pub mod bench;
pub mod check;
pub mod device_kernels;
pub mod doctor;
pub mod job;
pub mod predict_scaling;
pub mod verify;
pub mod verify_run;
