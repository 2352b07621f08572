//! The definition in [`Placement`], one value at a time.

use super::Placement;

pub(super) fn apply<const C: usize>(
    mean: [f32; C],
    std: [f32; C],
    source: &[u8],
    (height, width): (usize, usize),
    placements: &[Placement],
) -> Vec<f32> {
    let mut output = Vec::new();
    for (image, placement) in placements.iter().enumerate() {
        for y in 0..height {
            for x in 0..width {
                let column = if placement.flip { width - 1 - x } else { x };
                let (sy, sx) = (y as isize + placement.dy, column as isize + placement.dx);
                let inside = (0..height as isize).contains(&sy) && (0..width as isize).contains(&sx);
                for channel in 0..C {
                    let pixel = if inside {
                        source[((image * height + sy as usize) * width + sx as usize) * C + channel]
                    } else {
                        0
                    };
                    output.push((f32::from(pixel) / 255.0 - mean[channel]) / std[channel]);
                }
            }
        }
    }
    output
}
