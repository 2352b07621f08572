//! A small network against PyTorch. golden/make_fixture.py made the numbers.
//!
//! It computed them in f64, so a difference is the rounding of f32.

use std::collections::BTreeMap;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_resnet::{ResNet, ResNetConfig, Shortcut, load_weights, save_safetensors};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::support::{Named, assert_close, gradients, relative_difference, tensors, values};

// The tolerances are relative to the largest absolute value of the tensor; docs/numerics.md lists
// them.
const LOGITS_TOLERANCE: f64 = 2e-6;
const LOSS_TOLERANCE: f64 = 1e-6;
const GRADIENT_TOLERANCE: f64 = 1e-5;
const STATISTICS_TOLERANCE: f64 = 3e-6;
/// Each of the ten SGD steps starts from the rounding of the steps before.
const TEN_LOSSES_TOLERANCE: f64 = 1e-5;

const FIXTURE: &[u8] = include_bytes!("../golden/resnet8.safetensors");
const LEARNING_RATE: f64 = 0.02;

struct Fixture {
    tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)>,
    shortcut: Shortcut,
}

impl Fixture {
    fn new(shortcut: Shortcut) -> Self {
        let tensors = SafeTensors::deserialize(FIXTURE)
            .unwrap()
            .iter()
            .map(|(name, view)| {
                (
                    name.to_owned(),
                    (view.shape().to_vec(), view.data().to_vec()),
                )
            })
            .collect();
        Self { tensors, shortcut }
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let words = self.tensors[name].1.as_chunks::<4>().0;
        words.iter().map(|&word| f32::from_le_bytes(word)).collect()
    }

    fn own(&self, part: &str) -> Vec<f32> {
        self.floats(&format!("{:?}.{part}", self.shortcut))
    }

    /// Returns all tensors under a prefix, in burn's shapes.
    fn named(&self, prefix: &str) -> Named {
        let prefix = format!("{:?}.{prefix}.", self.shortcut);
        let names = self
            .tensors
            .keys()
            .filter_map(|name| name.strip_prefix(&prefix));
        names
            .map(|name| (name.to_owned(), self.in_burn_order(&prefix, name)))
            .collect()
    }

    /// Returns a tensor in burn's layout: burn keeps a linear weight as `[in, out]`, PyTorch as
    /// `[out, in]`.
    fn in_burn_order(&self, prefix: &str, name: &str) -> Vec<f32> {
        let floats = self.floats(&format!("{prefix}{name}"));
        if name != "linear.weight" {
            return floats;
        }
        let rows = 10;
        let columns = 64;
        (0..columns)
            .flat_map(|i| (0..rows).map(move |o| (i, o)))
            .map(|(i, o)| floats[o * columns + i])
            .collect()
    }

    /// Returns the bytes of PyTorch's state_dict. Shortcut B has the weights of shortcut A and its
    /// own.
    fn initial_weights(&self) -> Vec<u8> {
        let prefixes: &[&str] = match self.shortcut {
            Shortcut::A => &["A.initial."],
            Shortcut::B => &["A.initial.", "B.initial."],
        };
        let views = self.tensors.iter().filter_map(|(name, (shape, bytes))| {
            let name = prefixes
                .iter()
                .find_map(|prefix| name.strip_prefix(prefix))?;
            let view = TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap();
            Some((name, view))
        });
        safetensors::serialize(views, None).unwrap()
    }

    fn model(&self, device: &Device) -> ResNet {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("initial.safetensors");
        std::fs::write(&path, self.initial_weights()).unwrap();
        let config = ResNetConfig::cifar(8).unwrap().with_shortcut(self.shortcut);
        load_weights(config.init(0, device), path).unwrap()
    }

    fn images(&self, device: &Device) -> Tensor<4> {
        let shape = self.tensors["images"].0.clone();
        Tensor::from_data(TensorData::new(self.floats("images"), shape), device)
    }

    fn labels(&self, device: &Device) -> Tensor<1, Int> {
        let words = self.tensors["labels"].1.as_chunks::<8>().0;
        let labels: Vec<i32> = words
            .iter()
            .map(|&w| i64::from_le_bytes(w) as i32)
            .collect();
        Tensor::from_data(labels.as_slice(), device)
    }
}

fn loss(model: &ResNet, fixture: &Fixture, device: &Device) -> (Tensor<2>, Tensor<1>) {
    let logits = model.forward(fixture.images(device));
    let cross_entropy = CrossEntropyLossConfig::new().init(device);
    (
        logits.clone(),
        cross_entropy.forward(logits, fixture.labels(device)),
    )
}

fn assert_first_step(shortcut: Shortcut, device: &Device) {
    let fixture = Fixture::new(shortcut);
    let model = fixture.model(device);
    let (logits, loss) = loss(&model, &fixture, device);
    let off = relative_difference(&values(logits), &fixture.own("logits"));
    assert!(off <= LOGITS_TOLERANCE, "logits: {off:.2e}");
    let off = relative_difference(&values(loss.clone()), &fixture.own("losses")[..1]);
    assert!(off <= LOSS_TOLERANCE, "loss: {off:.2e}");

    let mut statistics = tensors(&model);
    statistics.retain(|name, _| name.contains("running_"));
    assert_close(
        &statistics,
        &fixture.named("statistics"),
        STATISTICS_TOLERANCE,
    );

    let expected = fixture.named("gradient");
    let mut found = gradients(&model, &loss.backward());
    assert!(expected.len() == found.len() || shortcut == Shortcut::B);
    found.retain(|name, _| expected.contains_key(name));
    assert_close(&found, &expected, GRADIENT_TOLERANCE);
}

fn assert_ten_losses(shortcut: Shortcut) {
    let device = Device::flex().autodiff();
    let fixture = Fixture::new(shortcut);
    let mut model = fixture.model(&device);
    // burn's default dampening is 0.1, PyTorch's is 0.
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let mut optimizer = SgdConfig::new()
        .with_momentum(Some(momentum))
        .with_weight_decay(Some(WeightDecayConfig::new(1e-4)))
        .init();
    let losses: Vec<f32> = (0..10)
        .map(|_| {
            let (_, loss) = loss(&model, &fixture, &device);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(LEARNING_RATE, model.clone(), gradients);
            values(loss)[0]
        })
        .collect();
    let off = relative_difference(&losses, &fixture.own("losses"));
    assert!(off <= TEN_LOSSES_TOLERANCE, "losses {losses:?}: {off:.2e}");
}

#[test]
fn the_first_step_equals_pytorch_with_both_shortcuts() {
    assert_first_step(Shortcut::A, &Device::flex().autodiff());
    assert_first_step(Shortcut::B, &Device::flex().autodiff());
}

#[test]
fn ten_steps_of_sgd_equal_pytorch() {
    assert_ten_losses(Shortcut::A);
    assert_ten_losses(Shortcut::B);
}

#[test]
fn saved_weights_are_the_bytes_pytorch_would_save() {
    for shortcut in [Shortcut::A, Shortcut::B] {
        let fixture = Fixture::new(shortcut);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved.safetensors");
        save_safetensors(&fixture.model(&Device::flex().autodiff()), &path).unwrap();
        let saved = std::fs::read(path).unwrap();
        let expected = fixture.initial_weights();
        let saved = SafeTensors::deserialize(&saved).unwrap();
        let expected = SafeTensors::deserialize(&expected).unwrap();
        assert_eq!(saved.len(), expected.len());
        for (name, view) in expected.iter() {
            let found = saved.tensor(name).unwrap();
            assert_eq!(found.shape(), view.shape(), "{name}");
            assert!(found.data() == view.data(), "{name}: the bytes differ");
        }
    }
}

#[cfg(feature = "ndarray")]
#[allow(deprecated, reason = "burn calls its NdArray so")]
mod second_opinion {
    use super::*;

    #[test]
    fn the_first_step_equals_pytorch_on_another_backend() {
        assert_first_step(Shortcut::A, &Device::ndarray().autodiff());
    }
}
