//! Every placement against the definition, bit by bit.

use super::*;
use crate::testing::{rounded, same_everywhere};
use half::bf16;

const MEAN: [f32; 3] = [0.4914, 0.4822, 0.4465];
const STD: [f32; 3] = [0.2470, 0.2435, 0.2616];

#[test]
fn every_placement_has_the_bits_of_the_formula() {
    let (height, width) = (3, 5);
    let mut placements = Vec::new();
    for dy in -4..=4 {
        for dx in -6..=6 {
            placements.extend([false, true].map(|flip| Placement { dy, dx, flip }));
        }
    }
    let extreme = Placement { dy: isize::MAX, dx: isize::MIN, flip: true };
    placements.push(extreme);
    let source: Vec<u8> = (0..placements.len() * height * width * 3).map(|i| (i * 37 % 256) as u8).collect();
    let table = PixelTable::new(MEAN, STD);
    let output = same_everywhere(|_| {
        let mut output = vec![f32::NAN; source.len()];
        table.apply(&source, (height, width), &placements, &mut output);
        output
    });
    let last = placements.pop().map(|_| height * width * 3).expect("not empty");
    let inside = source.len() - last;
    let expected = reference::apply(MEAN, STD, &source[..inside], (height, width), &placements);
    assert_eq!(output[..inside], expected);
    let mut stored = vec![bf16::NAN; source.len()];
    table.apply(&source, (height, width), &[&placements[..], &[extreme]].concat(), &mut stored);
    assert_eq!(stored, rounded(&output), "bf16 is the rounded formula");
    assert!(output[inside..].chunks(3).all(|pixel| pixel == table.black()));
}

#[test]
fn padding_is_black_before_normalisation() {
    let table = PixelTable::new([0.25, 0.5], [0.5, 0.125]);
    assert_eq!(table.black(), [-0.5, -4.0]);
}

#[test]
#[should_panic(expected = "expected 12 source values, got 11")]
fn a_wrong_length_is_named() {
    PixelTable::new(MEAN, STD).apply(&[0; 11], (2, 2), &[Placement::default()], &mut [0.0; 12]);
}
