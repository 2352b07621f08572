//! Colours, sizes and markers of all charts.
//!
//! In: the number of a series. Out: how it looks. Invariant: the colours are told apart with the common kinds of colour blindness,
//! and no two of the first seven series share a marker.
//! Source: Okabe & Ito 2008, Color Universal Design.

use plotters::style::RGBColor;

/// A colour on white and its counterpart on black.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Colour {
    pub(crate) light: [u8; 3],
    pub(crate) dark: [u8; 3],
}

/// Colours of the series, then of everything else: `INK`, `MUTED`, `GRID`, `SURFACE`, `BAND`, `QUIET`.
pub(crate) const COLOURS: [Colour; 13] = [
    Colour {
        light: [0x00, 0x72, 0xb2],
        dark: [0x4d, 0xb0, 0xf0],
    },
    Colour {
        light: [0xd5, 0x5e, 0x00],
        dark: [0xff, 0x8c, 0x42],
    },
    Colour {
        light: [0x00, 0x9e, 0x73],
        dark: [0x2e, 0xd1, 0xa2],
    },
    Colour {
        light: [0xb8, 0x5c, 0x94],
        dark: [0xe5, 0x9a, 0xc6],
    },
    Colour {
        light: [0xc9, 0x8a, 0x00],
        dark: [0xf2, 0xb8, 0x3a],
    },
    Colour {
        light: [0x3f, 0xa3, 0xdd],
        dark: [0x8a, 0xd0, 0xf7],
    },
    Colour {
        light: [0x5b, 0x5b, 0x66],
        dark: [0xb4, 0xb4, 0xc0],
    },
    Colour {
        light: [0x1c, 0x1e, 0x21],
        dark: [0xe8, 0xe9, 0xec],
    },
    Colour {
        light: [0x63, 0x68, 0x70],
        dark: [0xa3, 0xa8, 0xb2],
    },
    Colour {
        light: [0xe3, 0xe5, 0xe9],
        dark: [0x34, 0x38, 0x40],
    },
    Colour {
        light: [0xff, 0xff, 0xff],
        dark: [0x17, 0x19, 0x1d],
    },
    Colour {
        light: [0xee, 0xf1, 0xf4],
        dark: [0x24, 0x28, 0x2f],
    },
    Colour {
        light: [0xb4, 0xba, 0xc2],
        dark: [0x58, 0x5f, 0x6b],
    },
];

/// How many series look different from each other.
pub(super) const NUM_SERIES: usize = 7;

pub(super) const INK: RGBColor = of(NUM_SERIES);
pub(super) const MUTED: RGBColor = of(NUM_SERIES + 1);
pub(super) const GRID: RGBColor = of(NUM_SERIES + 2);
pub(super) const SURFACE: RGBColor = of(NUM_SERIES + 3);
pub(super) const BAND: RGBColor = of(NUM_SERIES + 4);
pub(super) const QUIET: RGBColor = of(NUM_SERIES + 5);

/// Size of ordinary text, pixels.
pub(super) const TEXT: f64 = 13.0;
/// Size of the heading, pixels.
pub(super) const HEADING: f64 = 15.0;
/// Height of a line of text, pixels.
pub(super) const LINE_HEIGHT: i32 = 18;
/// Half the width of a marker, pixels.
pub(super) const MARKER: i32 = 4;

const fn of(index: usize) -> RGBColor {
    let [red, green, blue] = COLOURS[index].light;
    RGBColor(red, green, blue)
}

/// The colour of a series.
pub(super) fn colour(style: usize) -> RGBColor {
    of(style % NUM_SERIES)
}

/// The outline of a series' marker around the origin, pixels.
pub(super) fn marker(style: usize) -> Vec<(i32, i32)> {
    let m = MARKER;
    match style % NUM_SERIES {
        0 => circle(m),
        1 => vec![(-m, -m), (m, -m), (m, m), (-m, m)],
        2 => vec![(0, -m - 1), (m + 1, m), (-m - 1, m)],
        3 => vec![(0, -m - 2), (m + 2, 0), (0, m + 2), (-m - 2, 0)],
        4 => vec![(-m - 1, -m), (m + 1, -m), (0, m + 1)],
        5 => cross(m),
        _ => vec![(-2, -m - 1), (2, -m - 1), (2, m + 1), (-2, m + 1)],
    }
}

/// An x whose arms are thick enough to be seen alone.
fn cross(m: i32) -> Vec<(i32, i32)> {
    let (out, inner) = (m + 1, m - 1);
    vec![
        (-out, -inner),
        (-inner, -out),
        (0, -2),
        (inner, -out),
        (out, -inner),
        (2, 0),
        (out, inner),
        (inner, out),
        (0, 2),
        (-inner, out),
        (-out, inner),
        (-2, 0),
    ]
}

/// Twelve corners look round at this size.
fn circle(radius: i32) -> Vec<(i32, i32)> {
    let corner = |index: i32| {
        let angle = f64::from(index) * std::f64::consts::TAU / 12.0;
        let at = |value: f64| (value * (f64::from(radius) + 0.5)).round() as i32;
        (at(angle.cos()), at(angle.sin()))
    };
    (0..12).map(corner).collect()
}

/// The width that a text is likely to take, pixels; rather too much than too little.
pub(super) fn text_width(text: &str, size: f64) -> i32 {
    let width = |c: char| match c {
        'i' | 'l' | 'j' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' | ' ' | '\u{202f}' | '('
        | ')' | 't' | 'f' | 'I' => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' => 0.92,
        c if c.is_uppercase() => 0.70,
        c if (c as u32) > 0x2e80 => 1.0,
        _ => 0.58,
    };
    (text.chars().map(width).sum::<f64>() * size).ceil() as i32
}

/// The text in lines that are likely to be no wider than this; a long word is broken.
pub(super) fn wrapped(text: &str, size: f64, most: i32) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let longer = if line.is_empty() {
            word.to_owned()
        } else {
            format!("{line} {word}")
        };
        if text_width(&longer, size) <= most {
            line = longer;
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        for c in word.chars() {
            if !line.is_empty() && text_width(&format!("{line}{c}"), size) > most {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_no_wider_than_asked_and_lose_nothing() {
        let text = "one two three /a/very/long/path/that/is/wider/than/the/line four";
        let lines = wrapped(text, TEXT, 100);
        assert!(
            lines.iter().all(|line| text_width(line, TEXT) <= 100),
            "{lines:?}"
        );
        assert_eq!(lines.concat().replace(' ', ""), text.replace(' ', ""));
        assert!(wrapped("", TEXT, 100).is_empty());
    }

    #[test]
    fn the_first_series_differ_in_marker_and_colour() {
        for one in 0..NUM_SERIES {
            for other in 0..one {
                assert_ne!(marker(one), marker(other));
                assert_ne!(colour(one), colour(other));
            }
        }
    }
}
