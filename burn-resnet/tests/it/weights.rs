//! Weights files: errors name what does not fit, and a written file is whole.

use std::path::Path;
use std::process::Command;

use burn::module::{Module, ModuleMapper, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{self, BatchNorm, BatchNormConfig};
use burn::tensor::{Device, FloatDType, Tensor};
use burn_resnet::{ResNetConfig, Shortcut, WeightsError, load_weights, save_safetensors};
use safetensors::SafeTensors;

use crate::support::{gradients, relative_difference, tensors, values};

fn config() -> ResNetConfig {
    ResNetConfig::cifar(8).unwrap()
}

fn saved(config: &ResNetConfig, folder: &Path) -> std::path::PathBuf {
    let path = folder.join("weights.safetensors");
    save_safetensors(&config.init(1, &Device::flex()), &path).unwrap();
    path
}

#[test]
fn a_training_model_takes_weights_and_still_trains() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(&config(), folder.path());
    let device = Device::flex().autodiff();
    let model = load_weights(config().init(2, &device), &path).unwrap();
    assert_eq!(tensors(&model), tensors(&config().init(1, &device)));
    let loss = model.forward(Tensor::ones([2, 8, 8, 3], &device)).sum();
    let num_tensors = gradients(&model, &loss.backward()).len();
    // Seven convolutions, seven normalisations with two tensors each, weight and bias of the linear
    // layer.
    assert_eq!(num_tensors, 7 + 14 + 2);

    let back = load_weights(model.valid(), &path).unwrap().train();
    let loss = back.forward(Tensor::ones([2, 8, 8, 3], &device)).sum();
    assert_eq!(gradients(&back, &loss.backward()).len(), num_tensors);
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(&config(), folder.path());
    let device = Device::flex();

    let deeper = ResNetConfig::cifar(14).unwrap().init(0, &device);
    let error = load_weights(deeper, &path).unwrap_err();
    let text = error.to_string();
    // Of many names ten are printed.
    assert_eq!(text.matches("layer").count(), 10, "{text}");
    let end = " and 20 more]; unexpected []; misshaped []. ";
    assert!(text.contains(end), "{text}");
    let WeightsError::Mismatch { missing, .. } = error else {
        panic!("{text}")
    };
    assert_eq!(missing.len(), 3 * (2 + 8));
    assert!(missing.contains(&"layer1.1.bn1.weight".to_owned()));

    let other = config().with_num_classes(7).with_shortcut(Shortcut::B);
    let error = |config: ResNetConfig| load_weights(config.init(0, &device), &path).unwrap_err();
    let text = error(other).to_string();
    assert!(
        text.contains("linear.bias: expected [7], got [10]"),
        "{text}"
    );
    assert!(
        text.contains("missing [layer2.0.downsample.0.weight, "),
        "{text}"
    );

    saved(&config().with_shortcut(Shortcut::B), folder.path());
    let text = error(config()).to_string();
    assert!(
        text.contains("unexpected [layer2.0.downsample.0.weight, "),
        "{text}"
    );
}

/// A module with the names that the readers of published files rename.
#[derive(Module, Debug)]
struct Fields {
    module: Conv2d,
    block: Block,
}

#[derive(Module, Debug)]
struct Block {
    shortcut: (Conv2d, BatchNorm),
    downsample: (Conv2d, BatchNorm),
}

impl Fields {
    fn new(device: &Device) -> Self {
        let conv = || Conv2dConfig::new([2, 2], [1, 1]).init(device);
        let pair = || (conv(), BatchNormConfig::new(2).init(device));
        Self {
            module: conv(),
            block: Block {
                shortcut: pair(),
                downsample: pair(),
            },
        }
    }
}

#[test]
fn a_module_reads_what_it_wrote_whatever_its_fields_are_called() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let written = Fields::new(&Device::flex());
    let other = Fields::new(&Device::flex());
    assert_ne!(tensors(&written), tensors(&other));
    save_safetensors(&written, &path).unwrap();
    assert_eq!(
        tensors(&load_weights(other, &path).unwrap()),
        tensors(&written)
    );
}

/// Layers whose parameters have other names in PyTorch, and a parameter that is named like one of
/// them.
#[derive(Module, Debug)]
struct Named {
    norm: nn::InstanceNorm,
    prelu: nn::PRelu,
    gamma: Param<Tensor<1>>,
    head: nn::Linear,
}

impl Named {
    fn new(value: f64, device: &Device) -> Self {
        let all = |len: usize| Tensor::full([len], value, device);
        let mut norm = nn::InstanceNormConfig::new(3).init(device);
        norm.gamma = Some(Param::from_tensor(all(3)));
        norm.beta = Some(Param::from_tensor(all(3) + 1.0));
        let prelu = nn::PReluConfig::new().with_alpha(value).init(device);
        Self {
            norm,
            prelu,
            gamma: Param::from_tensor(all(2)),
            head: nn::LinearConfig::new(2, 2).init(device),
        }
    }
}

#[test]
fn instance_norms_and_prelus_travel_under_the_names_of_pytorch_and_the_missing_are_told_by_those_of_the_file()
 {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let device = Device::flex();
    let written = Named::new(0.5, &device);
    save_safetensors(&written, &path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "gamma",
            "head.bias",
            "head.weight",
            "norm.bias",
            "norm.weight",
            "prelu.weight"
        ]
    );
    assert_eq!(
        tensors(&load_weights(Named::new(2.0, &device), &path).unwrap()),
        tensors(&written)
    );

    let other = saved(&config(), folder.path());
    let Err(WeightsError::Mismatch { mut missing, .. }) =
        load_weights(Named::new(2.0, &device), &other)
    else {
        panic!("a module took the weights of another")
    };
    missing.sort_unstable();
    assert_eq!(missing, names);
}

#[test]
fn a_module_keeps_the_types_of_its_parameters_whatever_the_file_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let device = Device::flex();
    let linear = |dtype| {
        let weight = Tensor::<2>::from_floats([[0.5, -2.0], [1.0, 0.25]], &device).cast(dtype);
        nn::Linear {
            weight: Param::from_tensor(weight),
            bias: None,
        }
    };
    let types = [FloatDType::F64, FloatDType::F32, FloatDType::BF16];
    for of_file in types {
        save_safetensors(&linear(of_file), &path).unwrap();
        for own in types {
            let zeros = linear(own).map(&mut Zeros);
            let loaded = load_weights(zeros, &path).unwrap().weight.val();
            assert_eq!(FloatDType::from(loaded.dtype()), own, "{of_file:?}");
            assert_eq!(
                values(loaded.cast(FloatDType::F32)),
                [0.5, -2.0, 1.0, 0.25],
                "{of_file:?} to {own:?}"
            );
        }
    }
}

/// A mapper that makes every parameter zero.
struct Zeros;

impl ModuleMapper for Zeros {
    fn map_float<const D: usize>(&mut self, parameter: Param<Tensor<D>>) -> Param<Tensor<D>> {
        parameter.map(|tensor| tensor.zeros_like())
    }
}

#[test]
fn a_missing_file_is_named_once_and_a_file_without_weights_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let load = |path: &Path| load_weights(config().init(0, &Device::flex()), path).unwrap_err();
    let error = load(Path::new("/absent.pth"));
    assert!(matches!(error, WeightsError::Io { .. }));
    assert!(
        error.to_string().starts_with("/absent.pth: No such file"),
        "{error}"
    );
    assert!(
        std::error::Error::source(&error).is_none(),
        "a chain of causes would print it again"
    );
    for name in ["text.pth", "text.safetensors", "text.onnx"] {
        let path = folder.path().join(name);
        std::fs::write(&path, "no weights").unwrap();
        let error = load(&path);
        assert!(matches!(error, WeightsError::Format { .. }), "{error}");
    }
}

#[test]
fn a_pickle_that_would_start_a_program_starts_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.pth");
    let made = folder.path().join("made");
    let text = |text: &str| format!("X{}\0\0\0{text}", char::from(text.len() as u8));
    let command = text(&format!("touch {}", made.display()));
    let call = format!("cposix\nsystem\n({command}tR");
    // Python's own `pickle.load` makes the file out of either, after the two bytes of a protocol.
    for pickle in [
        format!("{call}."),
        format!("}}{}{call}s.", text("state_dict")),
    ] {
        let pickle = [b"\x80\x02", pickle.as_bytes()].concat();
        std::fs::write(&path, pickle).unwrap();
        assert!(load_weights(config().init(0, &Device::flex()), &path).is_err());
        assert!(!made.exists());
    }
}

#[test]
fn saving_replaces_an_older_file_and_leaves_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(&config(), folder.path());
    save_safetensors(&config().init(5, &Device::flex()), &path).unwrap();
    let model = load_weights(config().init(0, &Device::flex()), &path).unwrap();
    assert_eq!(tensors(&model), tensors(&config().init(5, &Device::flex())));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let absent = folder.path().join("absent").join("weights.safetensors");
    let error = save_safetensors(&model, &absent).unwrap_err();
    assert!(error.to_string().contains("absent"), "{error}");
}

#[test]
fn running_statistics_of_the_last_step_are_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights.safetensors");
    let device = Device::flex().autodiff();
    let model = config().init(1, &device);
    model.forward(Tensor::ones([2, 8, 8, 3], &device));
    save_safetensors(&model, &path).unwrap();
    let loaded = load_weights(config().init(0, &device), &path).unwrap();
    assert_eq!(tensors(&loaded), tensors(&model));
}

#[test]
fn pytorch_loads_saved_weights_strictly_and_computes_the_same() {
    let Ok(python) = std::env::var("TORCH_PYTHON") else {
        println!("skipped: TORCH_PYTHON does not name a Python with torch and safetensors");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/check_weights.py");
    let folder = tempfile::tempdir().unwrap();
    for (shortcut, letter) in [(Shortcut::A, "A"), (Shortcut::B, "B")] {
        let config = ResNetConfig::cifar(20).unwrap().with_shortcut(shortcut);
        let path = saved(&config, folder.path());
        let output = Command::new(&python)
            .arg("-B")
            .arg(&script)
            .arg(&path)
            .args(["20", letter])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).unwrap();
        let expected: Vec<f32> = text
            .split_whitespace()
            .map(|v| v.parse().unwrap())
            .collect();
        let device = Device::flex();
        let image = Tensor::full([1, 16, 16, 3], 0.5, &device);
        let found = values(config.init(1, &device).forward(image));
        let off = relative_difference(&found, &expected);
        assert!(off < 1e-5, "{off:.2e}");
    }
}
