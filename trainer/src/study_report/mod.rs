//! dev
pub mod chart;
pub mod document;
