//! Numbers as they travel between ranks.
//!
//! In, out: `f32`s and their bytes, little endian. Invariant: every bit survives.

/// Returns the bytes of `values`, four each.
pub fn floats_to_bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Returns the inverse of [`floats_to_bytes`]; bytes after the last whole number are left out.
pub fn bytes_to_floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|bytes| f32::from_le_bytes(*bytes))
        .collect()
}
