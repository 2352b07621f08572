//! What stands before the codes of a JPEG file: size, colours, tables.
//!
//! In: the bytes of a file. Out: a [`Header`], where it is of the common kinds. Invariant: no byte is trusted.
//! Source: ITU-T T.81, annex B.

use super::huffman::{Class, Table};

const START_OF_SCAN: u8 = 0xDA;
pub(super) const END_OF_IMAGE: u8 = 0xD9;

/// Baseline and extended, both of one pass with Huffman codes.
const SEQUENTIAL: [u8; 2] = [0xC0, 0xC1];

/// Markers of frames; three numbers between them mean other things.
const FRAMES: std::ops::RangeInclusive<u8> = 0xC0..=0xCF;
const NO_FRAMES: [u8; 3] = [0xC4, 0xC8, 0xCC];

/// One colour of an image.
pub(super) struct Component {
    id: u8,
    /// Blocks of it across and down in each unit of the scan.
    pub(super) sampling: [usize; 2],
    /// The number of its quantization.
    pub(super) quantization: usize,
    /// Those of its tables of codes, of means and of the rest.
    pub(super) tables: [usize; 2],
}

/// All that comes before the codes of an image.
pub(in crate::decode) struct Header {
    pub(super) size: [usize; 2],
    pub(super) components: Vec<Component>,
    /// Whether these are red, green and blue, as large as the image.
    pub(super) is_rgb: bool,
    /// For each place of a block, in the file's order.
    pub(super) quantizations: [Option<[i32; 64]>; 4],
    pub(super) tables: [Option<Table>; 8],
    /// Units between two restarts; 0 for none.
    pub(super) restart_interval: usize,
    /// Where the codes begin.
    pub(super) codes_at: usize,
}

impl Header {
    /// That of a file, where it is of the common kinds.
    pub(in crate::decode) fn read(bytes: &[u8]) -> Option<Self> {
        let mut tables: [Option<Table>; 8] = [const { None }; 8];
        let mut quantizations = [None; 4];
        let (mut frame, mut restart_interval) = (None, 0);
        let (mut is_jfif, mut adobe) = (false, None);
        let mut segments = Segments::of(bytes);
        while let Some((marker, body)) = segments.next() {
            match marker {
                START_OF_SCAN => {
                    let (size, mut components): ([usize; 2], Vec<Component>) = frame?;
                    read_scan(body, &mut components)?;
                    let is_rgb = is_rgb(&components, is_jfif, adobe);
                    if is_rgb && components[0].sampling != [1; 2] {
                        return None;
                    }
                    let codes_at = segments.position;
                    return Some(Self { size, components, is_rgb, quantizations, tables, restart_interval, codes_at });
                }
                // What has no length is not among segments.
                0x00 | 0x01 | 0xD0..=END_OF_IMAGE => return None,
                0xDB => read_quantizations(body, &mut quantizations)?,
                0xC4 => read_tables(body, &mut tables)?,
                0xDD => restart_interval = usize::from(u16::from_be_bytes(body.try_into().ok()?)),
                0xE0 if body.starts_with(b"JFIF\0") && body.len() >= 14 => is_jfif = true,
                0xEE if body.starts_with(b"Adobe") => adobe = body.get(11).copied().or(adobe),
                _ if FRAMES.contains(&marker) && !NO_FRAMES.contains(&marker) => {
                    if frame.is_some() || !SEQUENTIAL.contains(&marker) {
                        return None;
                    }
                    frame = Some(read_frame(body)?);
                }
                _ => {}
            }
        }
        None
    }

    /// Width and height, above 0.
    pub(in crate::decode) fn size(&self) -> [u32; 2] {
        self.size.map(|side| side as u32)
    }

    /// The bytes of memory that decoding takes, beside those of a copy of the file.
    pub(in crate::decode) fn memory(&self) -> u64 {
        let [width, height] = self.size;
        // Sides up to 15 pixels longer, three colours, as planes and as pixels.
        6 * (width as u64 + 15) * (height as u64 + 15)
    }
}

/// Whether three colours are red, green and blue, as libjpeg tells it: JFIF has none such, Adobe's last byte says it, else names do.
fn is_rgb(components: &[Component], is_jfif: bool, adobe: Option<u8>) -> bool {
    let is_named_so = || components.iter().map(|component| component.id).eq(*b"RGB");
    components.len() == 3 && !is_jfif && adobe.map_or_else(is_named_so, |transform| transform == 0)
}

/// SOF: the size of the image and its components.
fn read_frame(body: &[u8]) -> Option<([usize; 2], Vec<Component>)> {
    let (&[precision, h1, h0, w1, w0, num_components], rest) = body.split_first_chunk()?;
    let size = [[w1, w0], [h1, h0]].map(|side| usize::from(u16::from_be_bytes(side)));
    if precision != 8 || size.contains(&0) || rest.len() != 3 * usize::from(num_components) {
        return None;
    }
    let mut components: Vec<Component> = rest
        .as_chunks()
        .0
        .iter()
        .map(|&[id, sampling, quantization]| Component {
            id,
            sampling: [sampling >> 4, sampling & 15].map(usize::from),
            quantization: usize::from(quantization),
            tables: [0; 2],
        })
        .collect();
    match &mut components[..] {
        // Alone, it is a block a unit whatever is said of it.
        [grey] => grey.sampling = [1; 2],
        [first, others @ ..] if others.len() == 2 && others.iter().all(|other| other.sampling == [1; 2]) => {
            if !matches!(first.sampling, [1, 1] | [2, 1 | 2]) {
                return None;
            }
        }
        _ => return None,
    }
    Some((size, components))
}

/// SOS: the tables of each component, all of which are in this scan, whole.
fn read_scan(body: &[u8], components: &mut [Component]) -> Option<()> {
    let (&num_components, rest) = body.split_first()?;
    let (ids, spectrum) = rest.split_at_checked(2 * usize::from(num_components))?;
    if usize::from(num_components) != components.len() || spectrum != [0, 63, 0] {
        return None;
    }
    for (component, &[id, tables]) in components.iter_mut().zip(ids.as_chunks().0) {
        let [dc, ac] = [tables >> 4, tables & 15].map(usize::from);
        if component.id != id || dc > 3 || ac > 3 {
            return None;
        }
        component.tables = [dc, 4 + ac];
    }
    Some(())
}

/// DQT: any number of tables.
fn read_quantizations(mut body: &[u8], quantizations: &mut [Option<[i32; 64]>; 4]) -> Option<()> {
    while let Some((&kind, rest)) = body.split_first() {
        let bytes = if kind >> 4 == 0 { 1 } else { 2 };
        let (values, rest) = rest.split_at_checked(64 * bytes)?;
        let value = |place: usize| {
            values[place * bytes..(place + 1) * bytes].iter().fold(0, |value, byte| value << 8 | i32::from(*byte))
        };
        *quantizations.get_mut(usize::from(kind & 15))? = Some(std::array::from_fn(value));
        body = rest;
    }
    Some(())
}

/// DHT: any number of tables.
fn read_tables(mut body: &[u8], tables: &mut [Option<Table>; 8]) -> Option<()> {
    while let Some((&kind, rest)) = body.split_first() {
        let (counts, rest) = rest.split_first_chunk()?;
        let (symbols, rest) = rest.split_at_checked(counts.iter().map(|count| usize::from(*count)).sum())?;
        if symbols.len() > 256 {
            return None;
        }
        let class = if kind >> 4 == 0 { Class::Dc } else { Class::Ac };
        let place = 4 * usize::from(kind >> 4) + usize::from(kind & 15);
        if kind & 15 > 3 {
            return None;
        }
        *tables.get_mut(place)? = Some(Table::new(class, counts, symbols)?);
        body = rest;
    }
    Some(())
}

/// Whether an end-of-image marker follows the start of the scan.
///
/// `zune-jpeg` fills what is missing of a truncated file with grey and reports nothing. Inside a scan 0xFF is always escaped, so
/// the marker's bytes cannot be data; before the scan they could (an EXIF thumbnail is a JPEG), so segments are skipped.
pub(in crate::decode) fn is_whole(bytes: &[u8]) -> bool {
    let mut segments = Segments::of(bytes);
    match segments.find(|(marker, _)| *marker == START_OF_SCAN) {
        // From the end, where it is.
        Some(_) => {
            bytes.get(segments.position..).unwrap_or_default().windows(2).rev().any(|pair| pair == [0xFF, END_OF_IMAGE])
        }
        // Whatever this is, the decoder has an error for it.
        None => segments.position < bytes.len(),
    }
}

/// The segments of a file up to its first scan: marker, and what it says.
struct Segments<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Segments<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 2 }
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        loop {
            let [first, marker, rest @ ..] = self.bytes.get(self.position..)? else {
                return None;
            };
            if *first != 0xFF || *marker == 0xFF {
                self.position += 1; // A byte between segments, as libjpeg passes it over, or one that fills up before a marker.
                continue;
            }
            let Some(&[high, low]) = rest.get(..2) else {
                self.position = self.bytes.len();
                return None;
            };
            let len = usize::from(u16::from_be_bytes([high, low]));
            self.position += 2 + len;
            return Some((*marker, rest.get(2..len).unwrap_or_default()));
        }
    }
}
