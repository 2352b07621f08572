//! Bucket plans of all small layouts, and of layouts around the limits.
//!
//! Invariant: every parameter lies whole in exactly one bucket, buckets are contiguous and go from
//! the last parameter to the first.

use distributed::gradients::BucketPlan;
use distributed::replica::ParameterLayout;

const F32_BYTES: usize = size_of::<f32>();

fn layout(sizes: &[usize]) -> ParameterLayout {
    ParameterLayout::from_shapes(
        sizes
            .iter()
            .enumerate()
            .map(|(index, &size)| (format!("p{index}"), vec![size])),
    )
}

/// Checks every claim the module's text makes.
fn check(sizes: &[usize], cap_bytes: usize) {
    let layout = layout(sizes);
    let plan = BucketPlan::new(&layout, cap_bytes);
    let context = format!("sizes {sizes:?}, cap {cap_bytes} bytes, plan {plan:?}");
    let mut elements_end = layout.num_elements();
    let mut parameters_end = sizes.len();
    for (index, bucket) in plan.buckets().iter().enumerate() {
        assert!(
            !bucket.parameters.is_empty() && !bucket.elements.is_empty(),
            "empty bucket: {context}"
        );
        assert_eq!(
            bucket.elements.end, elements_end,
            "gap or overlap: {context}"
        );
        assert_eq!(
            bucket.parameters.end, parameters_end,
            "gap or overlap: {context}"
        );
        let num_elements: usize = sizes[bucket.parameters.clone()].iter().sum();
        assert_eq!(
            bucket.elements.len(),
            num_elements,
            "a parameter is cut: {context}"
        );
        let cap_bytes = if index == 0 {
            cap_bytes.min(1 << 18)
        } else {
            cap_bytes
        };
        let alone = bucket.parameters.len() == 1;
        assert!(
            alone || num_elements * F32_BYTES <= cap_bytes,
            "over the limit: {context}"
        );
        if bucket.parameters.start > 0 {
            let grown = num_elements + sizes[bucket.parameters.start - 1];
            assert!(
                grown * F32_BYTES > cap_bytes,
                "room left for the next parameter: {context}"
            );
        }
        elements_end = bucket.elements.start;
        parameters_end = bucket.parameters.start;
    }
    assert_eq!(
        (elements_end, parameters_end),
        (0, 0),
        "parameters left out: {context}"
    );
}

#[test]
fn all_small_layouts_are_covered_once_in_reverse_order() {
    for num_parameters in 0..=5 {
        for code in 0..5_usize.pow(num_parameters) {
            let sizes: Vec<usize> = (0..num_parameters)
                .map(|place| 1 + code / 5_usize.pow(place) % 5)
                .collect();
            for cap_elements in 0..=12 {
                check(&sizes, cap_elements * F32_BYTES);
            }
            check(&sizes, 7);
            check(&sizes, usize::MAX);
        }
    }
}

#[test]
fn by_default_a_bucket_is_an_eighth_of_the_gradients_within_64_and_512_kib() {
    let default = BucketPlan::default_cap_bytes;
    assert_eq!(
        (default(1 << 10), default(1 << 19), default(1 << 20)),
        (1 << 16, 1 << 16, 1 << 17)
    );
    assert_eq!((default(1 << 22), default(1 << 30)), (1 << 19, 1 << 19));
}

#[test]
fn the_first_bucket_holds_the_last_parameters_and_at_most_a_quarter_of_a_mebibyte() {
    let quarter = (1 << 18) / F32_BYTES / 4;
    let layout = layout(&[quarter; 12]);
    let plan = BucketPlan::new(&layout, 2 << 18);
    let parameters: Vec<_> = plan
        .buckets()
        .iter()
        .map(|bucket| bucket.parameters.clone())
        .collect();
    assert_eq!(parameters, [8..12, 0..8]);
    check(&[quarter; 12], 2 << 18);
    check(
        &[
            quarter,
            4 * quarter,
            4 * quarter + 1,
            quarter,
            9 * quarter,
            1,
        ],
        2 << 18,
    );
}

#[test]
fn a_parameter_over_the_limit_is_a_bucket_of_its_own() {
    let plan = BucketPlan::new(&layout(&[1, 1, 9, 1, 1]), 4 * F32_BYTES);
    let parameters: Vec<_> = plan
        .buckets()
        .iter()
        .map(|bucket| bucket.parameters.clone())
        .collect();
    assert_eq!(parameters, [3..5, 2..3, 0..2]);
}

#[test]
fn a_layout_without_parameters_has_no_bucket() {
    assert!(BucketPlan::new(&layout(&[]), 1 << 20).buckets().is_empty());
}

#[test]
fn the_hash_tells_paths_shapes_order_and_limits_apart_but_not_ids() {
    let of = |shapes: &[(&str, &[usize])], cap_bytes| {
        let shapes = shapes
            .iter()
            .map(|(path, shape)| ((*path).to_owned(), shape.to_vec()));
        BucketPlan::new(&ParameterLayout::from_shapes(shapes), cap_bytes).hash()
    };
    let plans = [
        of(&[("a", &[2, 3]), ("b", &[6])], 1024),
        of(&[("a", &[3, 2]), ("b", &[6])], 1024),
        of(&[("b", &[2, 3]), ("a", &[6])], 1024),
        of(&[("a", &[6]), ("b", &[2, 3])], 1024),
        of(&[("a", &[2, 3]), ("b", &[6])], 24),
        of(&[("a", &[2, 3, 1]), ("b", &[6])], 1024),
        of(&[("ab", &[2, 3]), ("", &[6])], 1024),
    ];
    for (index, plan) in plans.iter().enumerate() {
        assert!(
            !plans[..index].contains(plan),
            "plan {index} has the hash of an earlier one"
        );
    }
    // Two layouts have different random ids, and the same hash.
    assert_eq!(plans[0], of(&[("a", &[2, 3]), ("b", &[6])], 1024));
}
