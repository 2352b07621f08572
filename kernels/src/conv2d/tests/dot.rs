//! bf16 dot products against the reference, with every instruction set that has them.

use super::reference;
use super::{
    Random, Results, check_statistics, equal_results, odd_numbers_of_pixels, operands, padded,
    pool, random_shape, run_all,
};
use crate::conv2d::pass::{Pass, WeightPass};
use crate::conv2d::{Algorithm, Conv2d, Conv2dShape, Epilogue};
use crate::simd::Isa;
use crate::tests::{dirty, rounded, shape_of, widened};
use crate::{Element, Storage};
use half::bf16;

const EMULATED: &str = "with emulated tiles";

/// Every way to multiply pairs of bf16 on this machine, planned for `shape`, and the emulation of
/// tiles.
fn every_way(shape: Conv2dShape) -> Vec<(String, Conv2d)> {
    let of_isa = |isa| (format!("{shape:?} {isa:?}"), dot(shape, isa));
    let emulated = |isa| {
        Some((
            format!("{shape:?} {isa:?} {EMULATED}"),
            Conv2d::with_emulated_tiles(shape, isa)?,
        ))
    };
    let multiplies_pairs = |conv: &Conv2d| {
        [conv.forward, conv.data_gradient]
            .iter()
            .all(|p| matches!(p, Pass::Dot(_)))
    };
    let ways = Isa::available()
        .filter(|isa| isa.has_dot_products())
        .map(of_isa);
    let ways = ways.filter(|(_, conv)| multiplies_pairs(conv));
    ways.chain(
        [Isa::detect(), Isa::Portable]
            .into_iter()
            .filter_map(emulated),
    )
    .collect()
}

fn dot(shape: Conv2dShape, isa: Isa) -> Conv2d {
    Conv2d::new(shape, Algorithm::Direct, isa, Storage::Bf16)
}

/// Asserts |got - expected| <= 2^-8 |expected| + `terms` 2^-23 `magnitude`: the rounding to bf16 if
/// it is stored so, and twice that of each addition in f32, relative to the sum of the products'
/// magnitudes.
#[track_caller]
fn assert_within_bound<E: Element>(
    what: &str,
    terms: usize,
    got: &[E],
    expected: &[f64],
    magnitude: &[f64],
) {
    for (index, ((got, expected), magnitude)) in got.iter().zip(expected).zip(magnitude).enumerate()
    {
        let got = got.to_f32();
        let error = (f64::from(got) - expected).abs();
        let rounding = if E::STORAGE == Storage::Bf16 {
            expected.abs() / 256.0
        } else {
            0.0
        };
        let bound = rounding + terms as f64 * magnitude / f64::from(1 << 23) + 1e-30;
        assert!(
            error <= bound,
            "{what}: element {index} is {got}, expected {expected} within {bound:e}"
        );
    }
}

fn check(shape: Conv2dShape, random: &mut Random, pools: &[rayon::ThreadPool]) {
    let (x, w, dy) = rounded_operands(&shape, random);
    let operands = [widened(&x), widened(&rounded(&w)), widened(&dy)];
    let magnitudes = operands
        .clone()
        .map(|values| values.into_iter().map(f32::abs).collect::<Vec<f32>>());
    let [y, y_magnitude] =
        [&operands, &magnitudes].map(|[x, w, _]| reference::forward(&shape, &x[1..], &w[1..]));
    let [dx, dx_magnitude] = [&operands, &magnitudes]
        .map(|[_, w, dy]| reference::data_gradient(&shape, &dy[1..], &w[1..]));
    let [dw, dw_magnitude] = [&operands, &magnitudes]
        .map(|[x, _, dy]| reference::weight_gradient(&shape, &x[1..], &dy[1..]));
    let taps = shape.taps();
    let pixels = shape.output_len() / shape.out_channels;
    for (name, conv) in every_way(shape) {
        let first = equal_results(&name, pools, || run_all(&conv, &x, &w, &dy));
        let forward = format!("{name} forward");
        let terms = taps * shape.in_channels;
        assert_within_bound(&forward, terms, &first.y, &y, &y_magnitude);
        let data_gradient = format!("{name} data gradient");
        let terms = taps * shape.out_channels;
        assert_within_bound(&data_gradient, terms, &first.dx, &dx, &dx_magnitude);
        let weight_gradient = format!("{name} weight gradient");
        let terms = pixels.max(16);
        assert_within_bound(&weight_gradient, terms, &first.dw, &dw, &dw_magnitude);
        check_statistics(&shape, &first);
    }
}

/// Input, weights and gradient of the output; bf16 stores the first and the last.
fn rounded_operands(shape: &Conv2dShape, random: &mut Random) -> (Vec<bf16>, Vec<f32>, Vec<bf16>) {
    let [x, w, dy] = operands(shape, random);
    (rounded(&x), w, rounded(&dy))
}

#[test]
fn dot_products_equal_the_reference_on_inputs_and_weights_rounded_to_bf16_for_any_number_of_threads()
 {
    let pools = [pool(1), pool(2), pool(3)];
    let mut random = Random(17);
    let mut num_emulated = 0;
    for _ in 0..150 {
        let shape = random_shape(&mut random, 8e5);
        num_emulated += usize::from(
            every_way(shape)
                .iter()
                .any(|(name, _)| name.ends_with(EMULATED)),
        );
        check(shape, &mut random, &pools);
    }
    assert!(num_emulated > 20, "{num_emulated} shapes by tiles");
}

#[test]
fn tiles_and_their_emulation_give_the_same_bits_where_this_machine_has_tiles() {
    let mut random = Random(37);
    for _ in 0..40 {
        let shape = random_shape(&mut random, 4e5);
        let (Some(emulated), true) = (
            Conv2d::with_emulated_tiles(shape, Isa::detect()),
            Isa::Amx.is_available(),
        ) else {
            continue;
        };
        let (x, w, dy) = rounded_operands(&shape, &mut random);
        let [by_tiles, expected] =
            [dot(shape, Isa::Amx), emulated].map(|conv| run_all(&conv, &x, &w, &dy));
        let passes = |results: Results<bf16>| (results.y, results.dx, results.dw);
        assert_eq!(passes(by_tiles), passes(expected), "{shape:?}");
    }
}

#[test]
fn layers_of_resnets_and_odd_numbers_of_pixels_by_dot_products_equal_the_reference() {
    let layers = [
        (3, 32, 3, 16, 3, 1),
        (2, 32, 16, 32, 3, 2),
        (2, 16, 32, 33, 3, 1),
        (1, 56, 3, 64, 7, 2),
        (2, 14, 64, 128, 1, 2),
        (2, 14, 130, 64, 1, 1),
        (2, 7, 70, 131, 3, 1),
        (1, 9, 131, 31, 3, 2),
        // Several images make a part of the work, and fewer the last one.
        (19, 3, 176, 178, 3, 2),
        (19, 3, 530, 500, 1, 2),
        (11, 4, 176, 178, 3, 1),
        // Pixels of x so far apart that the weight gradient packs them.
        (5, 7, 1030, 40, 1, 1),
    ];
    let pools = [pool(1), pool(2), pool(3)];
    for shape in layers
        .map(padded)
        .into_iter()
        .chain(odd_numbers_of_pixels())
    {
        check(shape, &mut Random(7), &pools);
    }
}

#[test]
fn an_image_gives_the_same_bits_in_any_batch() {
    let mut random = Random(23);
    for _ in 0..40 {
        let shape = Conv2dShape {
            batch: 3,
            ..random_shape(&mut random, 2e5)
        };
        let single = Conv2dShape { batch: 1, ..shape };
        let (x, w, dy) = rounded_operands(&shape, &mut random);
        for ((name, conv), (_, conv_of_one)) in every_way(shape).into_iter().zip(every_way(single))
        {
            let all = run_all(&conv, &x, &w, &dy);
            for image in 0..shape.batch {
                let [x, dy] = [(&x, single.input_len()), (&dy, single.output_len())]
                    .map(|(values, len)| &values[image * len..][..len + 1]);
                let one = run_all(&conv_of_one, x, &w, dy);
                assert_eq!(
                    one.y,
                    all.y[image * single.output_len()..][..single.output_len()],
                    "{name}: forward"
                );
                assert_eq!(
                    one.dx,
                    all.dx[image * single.input_len()..][..single.input_len()],
                    "{name}: data gradient"
                );
            }
        }
    }
}

#[test]
fn a_value_that_is_not_finite_reaches_the_windows_that_contain_it_and_no_other() {
    let mut random = Random(29);
    for _ in 0..60 {
        let shape = random_shape(&mut random, 2e5);
        // Between merged groups are products with zero.
        if shape.block().1 > 1 {
            continue;
        }
        let mut x = random.values(shape.input_len());
        let poisoned = 1 + random.next() as usize % shape.input_len();
        x[poisoned] = f32::NAN;
        let w = vec![1.0; shape.weight_len() + 1];
        let expected = reference::forward(&shape, &x[1..], &w[1..]);
        let x = rounded(&x);
        for (name, conv) in every_way(shape) {
            let mut packed = dirty(conv.packed_forward_len());
            let mut y = vec![bf16::ZERO; shape.output_len()];
            conv.pack_forward(&w[1..], &mut packed);
            let mut workspace = dirty(conv.forward_workspace_len());
            conv.forward(&x[1..], &packed, &mut y, &mut workspace, Epilogue::None);
            let same = y
                .iter()
                .zip(&expected)
                .all(|(y, expected)| y.is_nan() == expected.is_nan());
            assert!(same, "{name}: NaN at {poisoned}");
        }
    }
}

#[test]
fn without_dot_products_a_plan_for_bf16_is_that_of_f32() {
    let mut random = Random(31);
    for isa in Isa::available().filter(|isa| !isa.has_dot_products()) {
        let shape = random_shape(&mut random, 2e5);
        let (x, w, dy) = rounded_operands(&shape, &mut random);
        let [of_bf16, of_f32] = [
            dot(shape, isa),
            Conv2d::new(shape, Algorithm::Direct, isa, Storage::F32),
        ]
        .map(|conv| run_all(&conv, &x, &w, &dy));
        assert_eq!(
            (of_bf16.y, of_bf16.dx),
            (of_f32.y, of_f32.dx),
            "{shape:?} {isa:?}"
        );
    }
}

#[test]
fn a_plan_with_dot_products_refuses_f32() {
    let shape = shape_of([1, 4, 4, 32], 32, [3, 1, 1]);
    for (name, conv) in every_way(shape) {
        let packed = dirty(conv.packed_forward_len());
        let mut y = vec![0.0; shape.output_len()];
        let mut workspace = dirty(conv.forward_workspace_len());
        let forward = || conv.forward(&[0.0; 512], &packed, &mut y, &mut workspace, Epilogue::None);
        assert_refuses_storage(&name, forward);
    }
}

fn assert_refuses_storage(what: &str, run: impl FnOnce()) {
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
    let message = refused.downcast_ref::<String>().map_or("", String::as_str);
    let is_meant = message.starts_with("convolution: planned for another storage");
    assert!(is_meant, "{what}: {message}");
}

#[test]
fn direct_weight_gradients_take_dot_products_where_there_are_no_tiles_and_refuse_f32() {
    let of_kernel = |kernel, padding| shape_of([1, 5, 5, 32], 32, [kernel, 2, padding]);
    for isa in Isa::available() {
        let has_dots = |shape, storage| {
            let conv = Conv2d::new(shape, Algorithm::Auto, isa, storage);
            (
                conv,
                matches!(conv.weight_gradient, WeightPass::Direct(plan) if plan.has_dots()),
            )
        };
        for shape in [of_kernel(1, 0), of_kernel(3, 1)] {
            assert!(!has_dots(shape, Storage::F32).1, "{isa:?}");
            let (conv, takes_them) = has_dots(shape, Storage::Bf16);
            assert_eq!(
                takes_them,
                isa.has_dot_products() && !isa.has_tiles(),
                "{isa:?}"
            );
            if takes_them {
                let x = vec![0.0_f32; shape.input_len()];
                let dy = vec![0.0; shape.output_len()];
                let mut dw = vec![0.0; shape.weight_len()];
                let mut workspace = dirty(conv.weight_gradient_workspace_len());
                let gradient = || conv.weight_gradient(&x, &dy, &mut dw, &mut workspace);
                assert_refuses_storage(&format!("{isa:?}"), gradient);
            }
        }
    }
}

#[test]
fn with_tiles_auto_is_direct_wherever_a_run_fills_a_tile() {
    let planned = |channels, algorithm| {
        let shape = shape_of([1, 14, 14, channels], channels, [3, 1, 1]);
        Conv2d::new(shape, algorithm, Isa::Amx, Storage::Bf16).packed_forward_len()
    };
    for channels in [11usize, 16, 64, 131] {
        let tiles = (3 * channels).div_ceil(32) * 16;
        assert_eq!(
            planned(channels, Algorithm::Auto),
            3 * tiles * channels.next_multiple_of(16),
            "{channels} channels"
        );
        assert_eq!(
            planned(channels, Algorithm::Auto),
            planned(channels, Algorithm::Direct),
            "{channels} channels"
        );
    }
}
