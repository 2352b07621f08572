//! Predictions for more ranks from the measured step of one rank: `trainer predict-scaling`.
//!
//! In: a measured step, networks, methods of synchronisation; measured runs. Out:
//! [`records::PredictionFile`]s, tables.
//! Invariant: predictions are marked as predictions. Published figures are marked with their
//! source.
//! Source: Li et al. 2020, PyTorch Distributed (2006.15704), section 5; Karp & Flatt 1990,
//! Measuring parallel processor performance.

mod forecast;
mod measured;
mod profile_file;
mod render;

pub use forecast::{Forecast, forecast};
pub use measured::{Measured, read as read_measured};
pub use profile_file::{read_profile, step_of, work_of};
pub use render::{forecast_lines, measured_lines, published_lines};
