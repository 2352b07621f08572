//! The error of an image size.

/// Images of a size that a network does not accept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("image size: expected {expected} for {network}, got {height} x {width} pixels")]
pub struct ImageSizeError {
    pub(crate) network: &'static str,
    pub(crate) expected: &'static str,
    pub(crate) height: usize,
    pub(crate) width: usize,
}
