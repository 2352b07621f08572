//! Layouts of real modules, flat copies in and out, and what keeps replicas equal.
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Tensor, TensorData};
use distributed::communicator::SingleCommunicator;
use distributed::gradients::{GradientReducer, MicroStepConfig, ReducerConfig};
use distributed::replica::{
    ParameterLayout, average_norm_statistics, broadcast_module, check_fingerprint, fingerprint,
    read, write,
};
use distributed::{CollectiveError, Communicator, run_ranks};

#[derive(Module, Debug)]
struct Net {
    blocks: Vec<Linear>,
    norm: BatchNorm,
    head: Option<Linear>,
}

impl Net {
    fn new(width: usize, device: &Device) -> Self {
        Self {
            blocks: vec![
                LinearConfig::new(3, width).with_bias(false).init(device),
                LinearConfig::new(width, 4).init(device),
            ],
            norm: BatchNormConfig::new(4).init(device),
            head: Some(LinearConfig::new(4, 2).with_bias(false).init(device)),
        }
    }

    fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let hidden = self.blocks[1].forward(self.blocks[0].forward(input));
        self.head
            .as_ref()
            .unwrap()
            .forward(self.norm.forward(hidden))
    }
}

fn paths(layout: &ParameterLayout) -> Vec<&str> {
    layout
        .entries()
        .iter()
        .map(|entry| entry.path.as_str())
        .collect()
}

fn autodiff() -> Device {
    Device::flex().autodiff()
}

const PARAMETERS: [&str; 6] = [
    "blocks.0.weight",
    "blocks.1.weight",
    "blocks.1.bias",
    "norm.gamma",
    "norm.beta",
    "head.weight",
];
const STATISTICS: [&str; 2] = ["norm.running_mean", "norm.running_var"];

#[test]
fn parameters_and_statistics_are_told_apart_in_training_and_in_validation() {
    let net = Net::new(5, &autodiff());
    for net in [
        net.clone(),
        net.valid(),
        net.valid().train(),
        Net::new(5, &Device::flex()),
    ] {
        assert_eq!(paths(&ParameterLayout::new(&net)), PARAMETERS);
        assert_eq!(paths(&ParameterLayout::state(&net)), STATISTICS);
        assert_eq!(paths(&ParameterLayout::statistics(&net)), STATISTICS);
    }
    let layout = ParameterLayout::new(&net);
    assert_eq!(layout.entries()[1].shape, [5, 4]);
    assert_eq!(layout.entries()[1].range(), 15..35);
    assert_eq!(layout.num_elements(), 15 + 20 + 4 + 4 + 4 + 8);
}

#[test]
fn a_frozen_parameter_comes_from_root_and_is_no_statistic() {
    let outcomes = run_ranks(3, |communicator| {
        let mut net = Net::new(5, &autodiff());
        net.head = net.head.map(Module::no_grad);
        assert!(!paths(&ParameterLayout::new(&net)).contains(&"head.weight"));
        for net in [net.clone(), net.valid(), net.valid().train()] {
            assert_eq!(
                paths(&ParameterLayout::state(&net)),
                [&STATISTICS[..], &["head.weight"]].concat()
            );
            assert_eq!(paths(&ParameterLayout::statistics(&net)), STATISTICS);
        }
        let net = broadcast_module(net, &communicator, 0).unwrap();
        read(&net, &ParameterLayout::state(&net))
    });
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcomes[0], outcomes[2]);
}

#[test]
fn a_parameter_that_two_modules_share_is_refused_with_both_names() {
    let mut net = Net::new(4, &autodiff());
    ParameterLayout::new(&net).expect_unshared().unwrap();
    net.blocks.push(net.blocks[1].clone());
    let error = GradientReducer::new(
        &net,
        Arc::new(SingleCommunicator::new()),
        &ReducerConfig::default(),
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("blocks.1.weight and blocks.2.weight are one parameter"),
        "{error}"
    );
}

#[test]
fn equal_modules_hash_alike_and_different_ones_do_not() {
    let hash = |width| ParameterLayout::new(&Net::new(width, &autodiff())).hash();
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

#[test]
fn what_is_written_is_read_back_and_ids_and_gradients_stay() {
    for device in [autodiff(), Device::flex()] {
        let net = Net::new(5, &device);
        let layout = ParameterLayout::new(&net);
        let values: Vec<f32> = (0..layout.num_elements())
            .map(|index| index as f32 * 0.01 - 0.2)
            .collect();
        let net = write(net, &layout, &values);
        assert_eq!(read(&net, &layout), values);
        assert_eq!(read(&net.valid(), &layout), values);
        assert_eq!(
            ParameterLayout::new(&net),
            layout,
            "ids, paths and gradient requirements stay"
        );
        assert_eq!(net.devices(), std::slice::from_ref(&device));
        let tracked = net.blocks[0].weight.is_require_grad();
        assert_eq!(tracked, device.is_autodiff());
        if tracked {
            let gradients = net.forward(Tensor::ones([2, 3], &device)).sum().backward();
            assert!(net.blocks[0].weight.val().grad(&gradients).is_some());
        }
    }
}

#[test]
fn a_bare_parameter_is_a_module_too() {
    let bare: Param<Tensor<1>> = Param::from_tensor(Tensor::ones([3], &autodiff()));
    let layout = ParameterLayout::new(&bare);
    assert_eq!(
        read(&write(bare, &layout, &[1.0, 2.0, 3.0]), &layout),
        [1.0, 2.0, 3.0]
    );
}

/// Returns a batch of four rows whose mean over rows is `mean` in each column.
fn batch(mean: f32, device: &Device) -> Tensor<2> {
    let spread = [-1.0, 1.0, -2.0, 2.0];
    let rows: Vec<f32> = spread
        .into_iter()
        .flat_map(|offset| [mean + offset; 4])
        .collect();
    Tensor::<1>::from_floats(rows.as_slice(), device).reshape([4, 4])
}

#[test]
fn statistics_are_read_with_the_last_forward_pass() {
    let device = autodiff();
    let norm = BatchNormConfig::new(4).init(&device);
    let layout = ParameterLayout::state(&norm);
    for (mean, expected) in [(1.0, 0.1), (3.0, 0.39), (0.0, 0.351)] {
        norm.forward(batch(mean, &device));
        let running_mean = read(&norm, &layout)[0];
        assert!(
            (running_mean - expected).abs() < 1e-5,
            "expected {expected}, got {running_mean}"
        );
    }
}

#[test]
fn written_statistics_survive_the_next_forward_pass() {
    let device = autodiff();
    let norm = BatchNormConfig::new(4).init(&device);
    let layout = ParameterLayout::state(&norm);
    norm.forward(batch(5.0, &device));
    let norm = write(norm, &layout, &[2.0; 8]);
    assert_eq!(read(&norm, &layout), [2.0; 8]);
    norm.forward(batch(1.0, &device));
    let running_mean = read(&norm, &layout)[0];
    assert!(
        (running_mean - 1.9).abs() < 1e-5,
        "expected 0.9 * 2 + 0.1 * 1, got {running_mean}"
    );
}

#[test]
fn writing_parameters_leaves_pending_statistics_in_place() {
    let device = autodiff();
    let norm = BatchNormConfig::new(4).init(&device);
    let layout = ParameterLayout::new(&norm);
    let state = ParameterLayout::state(&norm);
    norm.forward(batch(1.0, &device));
    let norm = write(norm, &layout, &[0.5; 8]);
    assert!((read(&norm, &state)[0] - 0.1).abs() < 1e-6);
}

#[test]
fn a_broadcast_gives_roots_parameters_and_statistics_to_all() {
    for root in 0..3 {
        let states = run_ranks(3, |communicator| {
            let device = autodiff();
            let net = Net::new(5, &device);
            net.norm.forward(batch(communicator.rank() as f32, &device));
            let before = fingerprint(&net);
            let net = broadcast_module(net, &communicator, root).unwrap();
            assert_eq!(fingerprint(&net) == before, communicator.rank() == root);
            let agreed = check_fingerprint(&net, &communicator, 0).unwrap();
            assert_eq!(agreed, fingerprint(&net));
            (agreed, read(&net, &ParameterLayout::state(&net)))
        });
        assert!(states.iter().all(|state| *state == states[0]));
        assert!((states[0].1[0] - 0.1 * root as f32).abs() < 1e-6);
    }
}

#[test]
fn a_broadcast_between_different_modules_fails_on_all_ranks() {
    let errors = run_ranks(2, |communicator| {
        let net = Net::new(5 + communicator.rank(), &autodiff());
        broadcast_module(net, &communicator, 0).unwrap_err()
    });
    assert_eq!(errors[0], errors[1]);
    let text = errors[0].to_string();
    assert!(
        text.starts_with("module differs: ") && text.contains("(rank 1)"),
        "{text}"
    );
}

#[test]
fn statistics_are_averaged_plainly_over_ranks() {
    let means = run_ranks(4, |communicator| {
        let device = autodiff();
        let norm = BatchNormConfig::new(4).init(&device);
        norm.forward(batch(communicator.rank() as f32 * 10.0, &device));
        let norm = average_norm_statistics(norm, &communicator).unwrap();
        read(&norm, &ParameterLayout::state(&norm))[0]
    });
    for mean in means {
        assert!(
            (mean - 1.5).abs() < 1e-5,
            "expected the mean of 0, 1, 2, 3, got {mean}"
        );
    }
}

#[test]
fn averaging_a_validation_copy_leaves_the_model_in_training_alone() {
    run_ranks(2, |communicator| {
        let device = autodiff();
        let norm = BatchNormConfig::new(4).init(&device);
        norm.forward(batch(communicator.rank() as f32 * 10.0, &device));
        average_norm_statistics(norm.valid(), &communicator).unwrap();
        let own = read(&norm, &ParameterLayout::state(&norm))[0];
        assert!((own - communicator.rank() as f32).abs() < 1e-5);
    });
}

#[test]
fn one_rank_keeps_every_bit() {
    let communicator = SingleCommunicator::new();
    let net = Net::new(5, &autodiff());
    let layout = ParameterLayout::state(&net);
    let odd = [f32::MIN_POSITIVE / 3.0, -0.0, 0.1, 1.0, 2.0, 3.0, 4.0, 5.0];
    let net = write(net, &layout, &odd);
    let before = fingerprint(&net);
    let net = broadcast_module(net, &communicator, 0).unwrap();
    let net = average_norm_statistics(net, &communicator).unwrap();
    assert_eq!(fingerprint(&net), before);
    let bits = |values: &[f32]| {
        values
            .iter()
            .map(|value| value.to_bits())
            .collect::<Vec<_>>()
    };
    assert_eq!(bits(&read(&net, &layout)), bits(&odd));
}

#[test]
fn a_fingerprint_is_of_parameter_bits_only_and_drifted_ranks_are_named() {
    let device = autodiff();
    let net = Net::new(5, &device);
    let before = fingerprint(&net);
    assert_eq!(before.as_str().len(), 64);
    net.norm.forward(batch(3.0, &device));
    assert_eq!(fingerprint(&net), before);
    assert_eq!(fingerprint(&net.valid()), before);

    let errors = run_ranks(4, |communicator| {
        let norm = BatchNormConfig::new(4).init(&autodiff());
        let layout = ParameterLayout::new(&norm);
        let mut values = read(&norm, &layout);
        if communicator.rank() % 2 == 1 {
            values[5] = f32::from_bits(values[5].to_bits() + 1);
        }
        check_fingerprint(&write(norm, &layout, &values), &communicator, 6).unwrap_err()
    });
    for error in errors {
        let text = error.to_string();
        assert!(
            text.starts_with("epoch 7: ") && text.contains("on ranks 1, 3, expected "),
            "{text}"
        );
    }
}

/// Runs three steps of linear layers: their gradients add up over parts of a batch.
fn three_steps_of_adamw(
    communicator: Arc<dyn Communicator>,
    parts: &[Range<usize>],
) -> Result<Vec<f32>, CollectiveError> {
    let device = autodiff();
    let mut model = write_ramp(LinearConfig::new(3, 2).init(&device));
    let mut reducer =
        GradientReducer::new(&model, Arc::clone(&communicator), &ReducerConfig::default())?;
    let mut optimizer = AdamWConfig::new().init();
    let own = parts[communicator.rank()].clone();
    for _ in 0..3 {
        let inputs: Vec<f32> = own
            .clone()
            .flat_map(|i| (0..3).map(move |j| ((5 * i + j) as f32).sin()))
            .collect();
        let inputs = Tensor::<2>::from_data(TensorData::new(inputs, [own.len(), 3]), &device);
        let loss = model.forward(inputs).powi_scalar(2).mean();
        let gradients = reducer.backward(&model, loss, own.len() as f64 / 8.0)?;
        assert_eq!(gradients.len(), 2);
        model = optimizer.step(0.1, model, gradients);
    }
    Ok(read(&model, &ParameterLayout::new(&model)))
}

fn write_ramp(model: Linear) -> Linear {
    let layout = ParameterLayout::new(&model);
    let ramp: Vec<f32> = (0..layout.num_elements())
        .map(|i| 0.1 * i as f32 - 0.3)
        .collect();
    write(model, &layout, &ramp)
}

#[test]
fn a_loop_over_burns_optimizers_takes_the_steps_of_one_rank_whatever_the_shares() {
    let expected_all =
        three_steps_of_adamw(Arc::new(SingleCommunicator::new()), &[0..8, 0..0]).unwrap();
    let ranks = run_ranks(3, |communicator| {
        three_steps_of_adamw(Arc::new(communicator), &[0..5, 5..6, 6..8])
    });
    for rank in &ranks {
        let rank = rank.as_ref().unwrap();
        assert_eq!(rank, ranks[0].as_ref().unwrap());
        for (found, expected) in rank.iter().zip(&expected_all) {
            assert!(
                (found - expected).abs() <= 1e-5 * expected.abs().max(0.1),
                "{rank:?} against {expected_all:?}"
            );
        }
    }
    assert!(
        expected_all
            .iter()
            .zip(0..)
            .any(|(value, i)| (value - (0.1 * i as f32 - 0.3)).abs() > 0.1),
        "{expected_all:?}"
    );
}

#[test]
fn shares_that_are_not_the_whole_batch_are_refused_on_all_ranks_and_a_rank_may_have_none() {
    let backward = |shares: [Option<f64>; 3]| {
        run_ranks(3, |communicator| {
            let communicator: Arc<dyn Communicator> = Arc::new(communicator);
            let model = write_ramp(LinearConfig::new(3, 2).init(&autodiff()));
            let mut reducer =
                GradientReducer::new(&model, Arc::clone(&communicator), &ReducerConfig::default())?;
            match shares[communicator.rank()] {
                Some(share) => {
                    let loss = model.forward(Tensor::<2>::ones([2, 3], &autodiff())).mean();
                    reducer.backward(&model, loss, share).map(drop)
                }
                None => reducer.reduce().map(drop),
            }
        })
    };
    for shares in [
        [Some(0.5), Some(0.25), Some(0.25)],
        [Some(0.4), None, Some(0.6)],
        [None; 3],
    ] {
        assert_eq!(backward(shares), vec![Ok(()); 3], "{shares:?}");
    }
    for (shares, total) in [([Some(1.0); 3], 3.0), ([Some(0.5), Some(0.25), None], 0.75)] {
        for result in backward(shares) {
            let expected = format!("share: the shares of all ranks add up to {total:.4}, ");
            assert!(result.unwrap_err().to_string().starts_with(&expected));
        }
    }
}

/// Returns `net` with the same values under other ids, as a record brings them.
fn loaded(net: Net) -> Net {
    let layout = ParameterLayout::new(&net);
    let other = write(Net::new(5, &autodiff()), &layout, &read(&net, &layout));
    net.load_record(other.into_record())
}

fn reducer_of(net: &Net) -> GradientReducer {
    GradientReducer::new(
        net,
        Arc::new(SingleCommunicator::new()),
        &ReducerConfig::default(),
    )
    .unwrap()
}

#[test]
fn gradients_of_hooks_belong_to_the_ids_of_the_module_that_the_step_is_given() {
    let device = autodiff();
    let net = Net::new(5, &device);
    let mut reducer = reducer_of(&net);
    let head = |net: &Net| net.head.as_ref().unwrap().weight.id;
    let loss = |net: &Net| {
        net.forward(Tensor::ones([2, 3], &device))
            .powi_scalar(2)
            .sum()
    };
    let net = loaded(net);
    reducer.backward(&net, loss(&net), 1.0).unwrap();
    reducer.begin_micro_step(MicroStepConfig::default());
    reducer.collector().take(head(&net), &[3.0; 8]);
    reducer.accumulate_params(&net, GradientsParams::new(), 1.0);
    let flat = reducer.reduce().unwrap().to_flat();
    assert_eq!(flat[flat.len() - 8..], [3.0; 8]);

    let again = loaded(net.clone());
    reducer.begin_micro_step(MicroStepConfig::default());
    reducer.collector().take(head(&again), &[3.0; 8]);
    let lost = catch_unwind(AssertUnwindSafe(|| {
        reducer.accumulate_params(&again, GradientsParams::new(), 1.0)
    }));
    let text = *lost.unwrap_err().downcast::<&str>().unwrap();
    assert!(
        text.contains("parameter ids have changed") && text.contains("Call `rename`"),
        "{text}"
    );
}

#[test]
fn modules_loaded_from_one_file_are_refused_as_one_parameter() {
    let device = autodiff();
    let mut net = Net::new(4, &device);
    net.blocks.push(LinearConfig::new(4, 4).init(&device));
    let mut reducer = reducer_of(&net);
    let record = net.blocks[1].clone().into_record();
    net.blocks[2] = net.blocks[2].clone().load_record(record);
    let error = reducer
        .backward(&net, net.forward(Tensor::ones([2, 3], &device)).sum(), 1.0)
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("blocks.1.weight and blocks.2.weight are one parameter"),
        "{error}"
    );
}

#[test]
fn what_is_frozen_later_has_no_gradient_and_what_is_unfrozen_later_is_refused() {
    let device = autodiff();
    let net = Net::new(5, &device);
    let loss = |net: &Net| net.forward(Tensor::ones([2, 3], &device)).sum();
    let mut reducer = reducer_of(&net);
    let frozen = Net {
        head: net.head.clone().map(Module::no_grad),
        ..net.clone()
    };
    let gradients = reducer.backward(&frozen, loss(&frozen), 1.0).unwrap();
    assert_eq!(gradients.len(), PARAMETERS.len() - 1);
    let error = reducer_of(&frozen)
        .backward(&net, loss(&net), 1.0)
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.starts_with("head.weight requires a gradient"),
        "{text}"
    );
}

#[test]
fn parameters_that_no_pass_has_used_are_named_once_there_are_gradients() {
    let device = autodiff();
    let mut net = Net::new(4, &device);
    net.blocks
        .push(LinearConfig::new(4, 4).with_bias(false).init(&device));
    let mut reducer = reducer_of(&net);
    assert_eq!(reducer.unused_parameters(), [""; 0]);
    reducer
        .backward(&net, net.forward(Tensor::ones([2, 3], &device)).sum(), 1.0)
        .unwrap();
    assert_eq!(reducer.unused_parameters(), ["blocks.2.weight"]);
    reducer
        .backward(
            &net,
            net.blocks[2]
                .forward(Tensor::<2>::ones([2, 4], &device))
                .sum(),
            1.0,
        )
        .unwrap();
    assert_eq!(reducer.unused_parameters(), [""; 0]);
}
