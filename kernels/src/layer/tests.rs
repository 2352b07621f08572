//! A layer's passes equal the separate ones one after the other, whatever the groups; the same bits
//! for any number of threads.

use half::bf16;

use super::*;
use crate::batch_norm::{Affine, backward, backward_sums, normalize};
use crate::tests::{assert_close, dirty, rounded, shape_of, values};

/// Surroundings of a layer: its input's normalisation and residual, its own.
#[derive(Clone, Copy, Debug)]
struct Case {
    shape: Conv2dShape,
    /// Images of a group.
    images: usize,
    input: Reads,
    residual: Adds,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reads {
    /// Values of which nothing else is known.
    Values,
    /// Values normalised before a residual was added.
    Stored,
    /// A raw result, to be normalised; whether a ReLU6 follows, else a ReLU.
    Raw(bool),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Adds {
    Nothing,
    Identity,
    ShortcutA,
}

struct Results<E> {
    z: Vec<E>,
    moments: Vec<f64>,
    dx: Vec<E>,
    dw: Vec<f32>,
    residual: Vec<E>,
    input_sums: Vec<f64>,
}

struct Parameters([Vec<f32>; 4]);

impl Parameters {
    fn new(channels: usize, seed: u64) -> Self {
        let positive = |seed| {
            values(channels, seed)
                .iter()
                .map(|value| 1.0 + value.abs())
                .collect()
        };
        Self([
            values(channels, seed),
            positive(seed + 1),
            positive(seed + 2),
            values(channels, seed + 3),
        ])
    }

    fn affine(&self) -> Affine<'_> {
        let [mean, invstd, gamma, beta] = &self.0;
        Affine {
            mean,
            invstd,
            gamma,
            beta,
        }
    }
}

/// Everything a layer reads, made of a seed.
struct Given<E> {
    case: Case,
    x: Vec<E>,
    x_raw: Vec<E>,
    before: Parameters,
    own: Parameters,
    z: Vec<E>,
    y: Vec<E>,
    dy: Vec<E>,
    addend: Vec<E>,
    weights: Vec<f32>,
    sums: Vec<f64>,
    isa: Isa,
}

impl<E: Element> Given<E> {
    fn new(case: Case, isa: Isa, store: impl Fn(&[f32]) -> Vec<E>) -> Self {
        let s = case.shape;
        let made = |len, seed| store(&values(len, seed));
        let before = Parameters::new(s.in_channels, 3);
        let own = Parameters::new(s.out_channels, 13);
        let x_raw = made(s.input_len(), 1);
        let mut x = made(s.input_len(), 2);
        match case.input {
            Reads::Values => {}
            Reads::Stored => {
                let residual = x.clone();
                normalize(
                    isa,
                    &before.affine(),
                    &x_raw,
                    Residual::Identity(&residual),
                    Rectifier::Relu,
                    &mut x,
                );
            }
            Reads::Raw(six) => {
                let rectifier = if six {
                    Rectifier::Relu6
                } else {
                    Rectifier::Relu
                };
                normalize(
                    isa,
                    &before.affine(),
                    &x_raw,
                    Residual::None,
                    rectifier,
                    &mut x,
                );
            }
        }
        Self {
            case,
            x,
            x_raw,
            before,
            own,
            z: made(s.output_len(), 5),
            y: made(s.output_len(), 6),
            dy: made(s.output_len(), 7),
            addend: made(s.input_len(), 8),
            weights: values(s.weight_len(), 9),
            sums: values(2 * s.out_channels, 10)
                .into_iter()
                .map(f64::from)
                .collect(),
            isa,
        }
    }

    fn count(&self) -> f64 {
        (self.case.shape.output_len() / self.case.shape.out_channels) as f64
    }

    fn input(&self) -> Input<'_, E> {
        let norm = |gate| {
            Some(Saved {
                affine: self.before.affine(),
                x: &self.x_raw,
                gate,
            })
        };
        match self.case.input {
            Reads::Values => Input {
                stored: Some(&self.x),
                norm: None,
            },
            Reads::Stored => Input {
                stored: Some(&self.x),
                norm: norm(Gate::Output(&self.x)),
            },
            Reads::Raw(six) => Input {
                stored: None,
                norm: norm(if six {
                    Gate::Recomputed6
                } else {
                    Gate::Recomputed
                }),
            },
        }
    }

    fn norm(&self) -> Saved<'_, E> {
        let gate = if self.case.residual == Adds::Nothing {
            Gate::Recomputed
        } else {
            Gate::Output(&self.y)
        };
        Saved {
            affine: self.own.affine(),
            x: &self.z,
            gate,
        }
    }

    fn residual<'a>(&self, values: &'a mut Vec<E>) -> ResidualGradient<'a, E> {
        let s = self.case.shape;
        match self.case.residual {
            Adds::Nothing => ResidualGradient::None,
            Adds::Identity => {
                values.resize(s.output_len(), E::default());
                ResidualGradient::Write(values)
            }
            Adds::ShortcutA => {
                let shape = ShortcutA {
                    num_images: s.batch,
                    height: 2 * s.out_height(),
                    width: 2 * s.out_width() - 1,
                    channels_in: s.out_channels.div_ceil(2),
                    channels: s.out_channels,
                };
                values.resize(s.batch * shape.image_in(), E::default());
                ResidualGradient::WriteOptionA(shape, values)
            }
        }
    }

    fn nothing(&self) -> Results<E> {
        let s = self.case.shape;
        let nan = E::from_f32(f32::NAN);
        Results {
            z: vec![nan; s.output_len()],
            moments: vec![0.5; 2 * s.out_channels],
            dx: vec![nan; s.input_len()],
            dw: vec![f32::NAN; s.weight_len()],
            residual: Vec::new(),
            input_sums: vec![0.0; 2 * s.in_channels],
        }
    }

    fn layer(&self) -> Layer {
        let s = self.case.shape;
        let plan = |shape| Conv2d::new(shape, Algorithm::Auto, self.isa, Storage::of::<E>());
        let whole = plan(s);
        Layer {
            isa: self.isa,
            whole,
            groups: Groups::of_images(&whole, plan, self.case.images),
        }
    }

    /// All passes of the layer; scratch memory is dirty before.
    fn by_layer(&self) -> Results<E> {
        let layer = self.layer();
        let mut results = self.nothing();
        let mut packed = dirty(layer.conv().packed_forward_len());
        layer.conv().pack_forward(&self.weights, &mut packed);
        let mut workspace = dirty(layer.forward_workspace_len());
        layer.forward(
            self.input(),
            &packed,
            &mut results.z,
            &mut workspace,
            &mut results.moments,
        );
        let mut packed = dirty(layer.conv().packed_data_gradient_len());
        layer.conv().pack_data_gradient(&self.weights, &mut packed);
        let given = Backward {
            input: self.input(),
            norm: self.norm(),
            sums: &self.sums,
            count: self.count(),
            dy: &self.dy,
            packed: &packed,
            addend: Some(&self.addend),
        };
        let Results {
            dx,
            dw,
            residual,
            input_sums,
            ..
        } = &mut results;
        let wanted = Gradients {
            dx: Some(dx),
            dw,
            residual: self.residual(residual),
            input_sums,
        };
        layer.backward(&given, wanted, &mut dirty(layer.backward_workspace_len()));
        results
    }

    /// The same by the separate passes over the whole batch.
    fn one_after_the_other(&self) -> Results<E> {
        let s = self.case.shape;
        let conv = Conv2d::new(s, Algorithm::Auto, self.isa, Storage::of::<E>());
        let mut results = self.nothing();
        let mut packed = dirty(conv.packed_forward_len());
        conv.pack_forward(&self.weights, &mut packed);
        let mut workspace = dirty(conv.forward_workspace_len());
        conv.forward(
            &self.x,
            &packed,
            &mut results.z,
            &mut workspace,
            Epilogue::Moments(&mut results.moments),
        );
        let mut dz = vec![E::default(); s.output_len()];
        let residual = self.residual(&mut results.residual);
        backward(
            self.isa,
            &self.norm(),
            &self.sums,
            self.count(),
            &self.dy,
            &mut dz,
            residual,
        );
        conv.weight_gradient(
            &self.x,
            &dz,
            &mut results.dw,
            &mut dirty(conv.weight_gradient_workspace_len()),
        );
        let mut packed = dirty(conv.packed_data_gradient_len());
        conv.pack_data_gradient(&self.weights, &mut packed);
        let mut workspace = dirty(conv.data_gradient_workspace_len());
        conv.data_gradient(
            &dz,
            &packed,
            Addend::Gradient(&self.addend),
            &mut results.dx,
            &mut workspace,
        );
        if let Some(norm) = &self.input().norm {
            let mut workspace =
                vec![0.0; workspace_len(s.input_len() / s.in_channels, s.in_channels)];
            backward_sums(
                self.isa,
                norm,
                &results.dx,
                &mut results.input_sums,
                &mut workspace,
            );
        }
        results
    }
}

fn cases() -> impl Iterator<Item = Case> {
    let shape =
        |side, [in_channels, out_channels]: [usize; 2], [kernel, stride, padding]: [usize; 3]| {
            shape_of(
                [5, side, side, in_channels],
                out_channels,
                [kernel, stride, padding],
            )
        };
    let shapes = [
        shape(8, [16, 16], [3, 1, 1]),
        shape(9, [5, 17], [3, 2, 1]),
        shape(6, [33, 16], [1, 1, 0]),
        shape(12, [16, 33], [3, 1, 1]),
        Conv2dShape {
            groups: 18,
            ..shape(9, [18, 18], [3, 1, 1])
        },
        Conv2dShape {
            groups: 32,
            ..shape(8, [32, 32], [5, 2, 2])
        },
    ];
    let surroundings = [
        (Reads::Values, Adds::Nothing),
        (Reads::Stored, Adds::Nothing),
        (Reads::Raw(false), Adds::Identity),
        (Reads::Raw(true), Adds::ShortcutA),
        (Reads::Stored, Adds::Identity),
    ];
    shapes.into_iter().flat_map(move |shape| {
        surroundings.into_iter().flat_map(move |(input, residual)| {
            [1, 2, 5].map(|images| Case {
                shape,
                images,
                input,
                residual,
            })
        })
    })
}

fn check<E: Element + Into<f64>>(store: impl Fn(&[f32]) -> Vec<E> + Copy + Sync, tolerance: f64) {
    let pools = [1, 2, 3].map(|threads| {
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap()
    });
    for case in cases() {
        for isa in Isa::available() {
            let given = Given::new(case, isa, store);
            let expected = given.one_after_the_other();
            let [got, two, three] = pools
                .each_ref()
                .map(|pool| pool.install(|| given.by_layer()));
            for other in [two, three] {
                assert!(
                    got.z == other.z && got.dx == other.dx && got.dw == other.dw,
                    "{case:?} {isa:?}: threads"
                );
                assert!(
                    got.moments == other.moments && got.input_sums == other.input_sums,
                    "{case:?} {isa:?}: threads"
                );
                assert!(got.residual == other.residual, "{case:?} {isa:?}: threads");
            }
            let what = |name: &str| format!("{name} of {case:?} {isa:?}");
            assert_close(&what("z"), &got.z, &expected.z, tolerance);
            assert_close(
                &what("moments"),
                &got.moments,
                &expected.moments,
                100.0 * tolerance,
            );
            assert_close(&what("dx"), &got.dx, &expected.dx, tolerance);
            assert_close(&what("dw"), &got.dw, &expected.dw, 100.0 * tolerance);
            assert_close(&what("residual"), &got.residual, &expected.residual, 0.0);
            assert_close(
                &what("input's sums"),
                &got.input_sums,
                &expected.input_sums,
                100.0 * tolerance,
            );
        }
    }
}

#[test]
fn a_layers_passes_equal_the_separate_ones_in_f32() {
    check::<f32>(<[f32]>::to_vec, 1e-5);
}

#[test]
fn a_layers_passes_equal_the_separate_ones_in_bf16() {
    check::<bf16>(rounded, 1e-5);
}

#[test]
fn an_image_without_a_wanted_input_gradient_gives_the_weights_alone() {
    let case = Case {
        images: 2,
        input: Reads::Values,
        residual: Adds::Nothing,
        ..cases().next().unwrap()
    };
    let given = Given::<f32>::new(case, Isa::detect(), <[f32]>::to_vec);
    let layer = given.layer();
    let mut dw = vec![f32::NAN; case.shape.weight_len()];
    let input = given.input();
    let norm = given.norm();
    let sums = &given.sums;
    let count = given.count();
    let read = Backward {
        input,
        norm,
        sums,
        count,
        dy: &given.dy,
        packed: &[],
        addend: None,
    };
    let wanted = Gradients {
        dx: None,
        dw: &mut dw,
        residual: ResidualGradient::None,
        input_sums: &mut [],
    };
    layer.backward(&read, wanted, &mut dirty(layer.backward_workspace_len()));
    assert_eq!(dw, given.by_layer().dw);
}

#[test]
fn groups_of_real_networks_stay_in_l2_and_cover_the_batch() {
    let isa = Isa::detect();
    for (side, channels, storage, images) in [
        (32, 16, Storage::F32, 2),
        (16, 32, Storage::F32, 4),
        (8, 64, Storage::F32, 8),
        (32, 16, Storage::Bf16, 4),
    ] {
        let shape = shape_of([127, side, side, channels], channels, [3, 1, 1]);
        let layer = Layer::new(shape, Algorithm::Auto, isa, storage);
        let groups = layer.groups;
        assert_eq!(groups.get(0).images, 0..images);
        let pieces: Vec<usize> = (0..groups.num_pieces())
            .flat_map(|piece| groups.of_piece(piece))
            .collect();
        assert_eq!(pieces, (0..groups.num_groups()).collect::<Vec<_>>());
        assert_eq!(groups.get(groups.num_groups() - 1).images.end, 127);
    }
}
