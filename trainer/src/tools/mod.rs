//! What looks at a job or a machine beside training: measurements, checks, predictions.

pub mod bench;
pub mod check;
pub mod device_kernels;
pub mod doctor;
pub mod job;
pub mod predict_scaling;
pub mod verify;
pub mod verify_run;
