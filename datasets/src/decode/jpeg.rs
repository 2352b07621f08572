//! What is to be known of a JPEG file before it is decoded: whether it is whole, how large it is, and which of its rows are wanted.
//!
//! In: the bytes of a file. Out: the same bytes, with a lower height in their header where the last rows are not wanted.
//! Invariant: the rows that are kept decode to the same pixels; no byte of the file is trusted.
//! No decoder that we would take cuts out a part: `zune-jpeg`, which `image` has, does not know how, and the one that does takes longer
//! for a part than for the whole. But the coded blocks lie from top to bottom, so that a decoder stops where it believes the image to end.

const START_OF_SCAN: u8 = 0xDA;

/// Baseline and extended, both of one pass with Huffman codes.
const SEQUENTIAL: [u8; 2] = [0xC0, 0xC1];

/// Markers of frames; three numbers between them mean other things.
const FRAMES: std::ops::RangeInclusive<u8> = 0xC0..=0xCF;
const NO_FRAMES: [u8; 3] = [0xC4, 0xC8, 0xCC];

/// The header of an image whose rows come one after the other in a single scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Where its height is, two bytes.
    height_at: usize,
    width: u16,
    height: u16,
    /// Rows of pixels that are coded together.
    block_rows: u32,
}

impl Frame {
    /// That of a file; none where rows may not be left out, or where this is no such file.
    pub(super) fn find(bytes: &[u8]) -> Option<Self> {
        let mut found = None;
        for (marker, at) in Segments::of(bytes) {
            let body = bytes.get(at..)?;
            if marker == START_OF_SCAN {
                let (frame, num_components) = found?;
                // A scan of some of the components is followed by others.
                return (body.first() == Some(&num_components)).then_some(frame);
            }
            if FRAMES.contains(&marker) && !NO_FRAMES.contains(&marker) {
                let &[_, h1, h0, w1, w0, num_components, ..] = body else {
                    return None;
                };
                if found.is_some() || !SEQUENTIAL.contains(&marker) {
                    return None;
                }
                let samplings = body.get(6..6 + 3 * usize::from(num_components))?.chunks_exact(3);
                let most = samplings.map(|component| u32::from(component[1] & 15)).max()?;
                let (height, width) = (u16::from_be_bytes([h1, h0]), u16::from_be_bytes([w1, w0]));
                let frame = Self { height_at: at + 1, width, height, block_rows: 8 * most.clamp(1, 4) };
                found = (width > 0 && height > 0).then_some((frame, num_components));
                found?;
            }
        }
        None
    }

    /// Width and height, above 0.
    pub(super) fn size(self) -> [u32; 2] {
        [u32::from(self.width), u32::from(self.height)]
    }

    /// Leaves out the blocks below the first `rows` rows, but for those that the filter of the colours reads.
    pub(super) fn keep_rows(self, bytes: &mut [u8], rows: u32) {
        let kept = (rows + 1).next_multiple_of(self.block_rows).min(u32::from(self.height)) as u16;
        bytes[self.height_at..self.height_at + 2].copy_from_slice(&kept.to_be_bytes());
    }
}

/// Whether an end-of-image marker follows the start of the scan.
///
/// The decoder fills what is missing of a truncated file with grey and reports nothing. Inside a scan 0xFF is always escaped, so
/// the marker's bytes cannot be data; before the scan they could (an EXIF thumbnail is a JPEG), so segments are skipped.
pub(super) fn is_whole(bytes: &[u8]) -> bool {
    let mut segments = Segments::of(bytes);
    match segments.find(|(marker, _)| *marker == START_OF_SCAN) {
        // From the end, where it is.
        Some(_) => bytes.get(segments.position..).unwrap_or_default().windows(2).rev().any(|pair| pair == [0xFF, 0xD9]),
        // Whatever this is, the decoder has an error for it.
        None => segments.position < bytes.len(),
    }
}

/// The segments of a file up to its first scan: marker, and where what it says begins.
struct Segments<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Segments<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 2 }
    }
}

impl Iterator for Segments<'_> {
    type Item = (u8, usize);

    fn next(&mut self) -> Option<(u8, usize)> {
        loop {
            let [0xFF, marker, rest @ ..] = self.bytes.get(self.position..)? else {
                return None;
            };
            if *marker == 0xFF {
                self.position += 1; // A fill byte before a marker.
                continue;
            }
            let Some(&[high, low]) = rest.get(..2) else {
                self.position = self.bytes.len();
                return None;
            };
            let at = self.position + 4;
            self.position += 2 + usize::from(u16::from_be_bytes([high, low]));
            return Some((*marker, at));
        }
    }
}
