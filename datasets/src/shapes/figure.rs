//! The ten figures of the shapes data set.
//!
//! In: a class and a random stream. Out: the coverage of each pixel.
//! Invariant: all classes draw position and size in the same way.
//! Source: signed distances to boxes and polygons after I. Quilez, "2D distance functions".

use super::SIDE;
use crate::random::Stream;

/// The classes in label order.
pub(super) const CLASS_NAMES: [&str; 10] = [
    "disc", "ring", "square", "frame", "triangle", "cross", "star", "bars", "crescent", "angle",
];

type Point = [f32; 2];

const TRIANGLE: [Point; 3] = [[0.0, -1.0], [0.866, 0.5], [-0.866, 0.5]];

const ANGLE: [Point; 6] = [
    [-0.75, -0.75],
    [-0.25, -0.75],
    [-0.25, 0.25],
    [0.75, 0.25],
    [0.75, 0.75],
    [-0.75, 0.75],
];

/// Five tips at distance 1 and five notches at 0.42, clockwise from the top.
const STAR: [Point; 10] = [
    [0.0, -1.0],
    [0.247, -0.340],
    [0.951, -0.309],
    [0.399, 0.130],
    [0.588, 0.809],
    [0.0, 0.42],
    [-0.588, 0.809],
    [-0.399, 0.130],
    [-0.951, -0.309],
    [-0.247, -0.340],
];

/// A figure with its pose.
pub(super) struct Figure {
    class: usize,
    centre: Point,
    radius: f32,
    cos: f32,
    sin: f32,
}

impl Figure {
    /// Returns a figure with any rotation, a radius of 7 to 12 pixels, and any position inside the
    /// image.
    pub(super) fn random(class: usize, stream: &mut Stream) -> Self {
        let radius = stream.between(7.0, 12.0);
        let angle = stream.between(0.0, std::f32::consts::TAU);
        let side = SIDE as f32;
        let mut place = || stream.between(radius, side - radius) - 0.5;
        Self {
            class,
            centre: [place(), place()],
            radius,
            cos: libm::cosf(angle),
            sin: libm::sinf(angle),
        }
    }

    /// Calls `paint` for each covered pixel. The arguments are the position, the coverage in 0..=1,
    /// and a position along the figure in 0..=1.
    pub(super) fn draw(&self, mut paint: impl FnMut(usize, f32, f32)) {
        for position in 0..SIDE * SIDE {
            let x = (position % SIDE) as f32 - self.centre[0];
            let y = (position / SIDE) as f32 - self.centre[1];
            let point = [
                (x * self.cos + y * self.sin) / self.radius,
                (y * self.cos - x * self.sin) / self.radius,
            ];
            // No figure extends beyond 1.1 radii. The soft edge adds half a pixel.
            if libm::hypotf(point[0], point[1]) > 1.2 {
                continue;
            }
            let coverage = (0.5 - distance(self.class, point) * self.radius).clamp(0.0, 1.0);
            if coverage > 0.0 {
                paint(position, coverage, (point[0] * 0.5 + 0.5).clamp(0.0, 1.0));
            }
        }
    }
}

/// Returns the signed distance to a class's outline in units of the radius, negative inside the
/// figure.
fn distance(class: usize, point: Point) -> f32 {
    let [x, y] = point;
    match class {
        0 => libm::hypotf(x, y) - 0.9,
        1 => (libm::hypotf(x, y) - 0.72).abs() - 0.2,
        2 => to_box(point, [0.72, 0.72]),
        3 => to_box(point, [0.62, 0.62]).abs() - 0.16,
        4 => to_polygon(point, &TRIANGLE),
        5 => to_box(point, [0.95, 0.26]).min(to_box(point, [0.26, 0.95])),
        6 => to_polygon(point, &STAR),
        7 => [-0.62, 0.0, 0.62]
            .map(|middle| to_box([x, y - middle], [0.75, 0.17]))
            .into_iter()
            .fold(f32::MAX, f32::min),
        8 => (libm::hypotf(x, y) - 0.95).max(0.75 - libm::hypotf(x - 0.45, y)),
        9 => to_polygon(point, &ANGLE),
        _ => unreachable!("there are ten classes"),
    }
}

fn to_box([x, y]: Point, half: Point) -> f32 {
    let dx = x.abs() - half[0];
    let dy = y.abs() - half[1];
    libm::hypotf(dx.max(0.0), dy.max(0.0)) + dx.max(dy).min(0.0)
}

fn to_polygon([x, y]: Point, vertices: &[Point]) -> f32 {
    let mut nearest = f32::MAX;
    let mut inside = false;
    let mut previous = vertices[vertices.len() - 1];
    for vertex in vertices {
        let edge = [previous[0] - vertex[0], previous[1] - vertex[1]];
        let from = [x - vertex[0], y - vertex[1]];
        let share =
            (from[0] * edge[0] + from[1] * edge[1]) / (edge[0] * edge[0] + edge[1] * edge[1]);
        let share = share.clamp(0.0, 1.0);
        nearest = nearest.min(libm::hypotf(
            from[0] - edge[0] * share,
            from[1] - edge[1] * share,
        ));
        // A ray to the right crosses an odd number of edges if and only if it starts inside.
        if (vertex[1] > y) != (previous[1] > y) && from[0] < edge[0] * from[1] / edge[1] {
            inside = !inside;
        }
        previous = *vertex;
    }
    if inside { -nearest } else { nearest }
}
