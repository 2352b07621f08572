//! A published ResNet-20 classifies real images as it does in other programs.
//!
//! The files are in the folder that `LOCKSTEP_DATA` names, or in `../shared/data` next to the
//! repository. If that folder does not have them, the tests print that they skip, and pass. Source
//! of the answer: an independent forward pass (shared/data/README.md).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use burn::tensor::{Device, Tensor, TensorData};
use burn_resnet::{
    Activations, Computation, Convolution, Isa, Kernels, ResNet, ResNetConfig, load_weights,
};

use crate::support::values;

const NUM_IMAGES: usize = 1017;
const NUM_CORRECT: usize = 932;
/// The number of images by which bf16 may differ (docs/numerics.md).
const BF16_IMAGES: usize = 3;
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const STD: [f32; 3] = [0.229, 0.224, 0.225];
const PLANE: usize = 32 * 32;
const RECORD_BYTES: usize = 1 + 3 * PLANE;

fn shared_data() -> Option<PathBuf> {
    let named = std::env::var_os("LOCKSTEP_DATA").map(PathBuf::from);
    let is_named = named.is_some();
    let folder =
        named.unwrap_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data").into());
    let found = folder.join("resnet20-12fca82f.th").exists();
    if !found {
        assert!(
            !is_named,
            "LOCKSTEP_DATA: expected the published weights in {}",
            folder.display()
        );
        // Written directly, because the test harness captures what is printed.
        let skipped = format!(
            "SKIPPED: the published weights are not in {}; LOCKSTEP_DATA=DIR names another\n",
            folder.display()
        );
        std::io::stderr().write_all(skipped.as_bytes()).unwrap();
    }
    found.then_some(folder)
}

fn resnet20() -> ResNetConfig {
    ResNetConfig::from_name("resnet20").unwrap()
}

fn published(config: &ResNetConfig, folder: &Path, device: &Device) -> ResNet {
    let model = config.init(0, device);
    load_weights(model, folder.join("resnet20-12fca82f.th")).unwrap()
}

/// Returns the label byte and the planes R, G, B of every test image.
fn test_records(folder: &Path) -> Vec<u8> {
    let unpacked = tempfile::tempdir().unwrap();
    let member = "cifar-10-lossless-subset/test_batch.bin";
    let status = Command::new("tar")
        .arg("-xzf")
        .arg(folder.join("cifar10-lossless-subset.tar.gz"))
        .arg("-C")
        .arg(unpacked.path())
        .arg(member)
        .status()
        .unwrap();
    assert!(status.success());
    std::fs::read(unpacked.path().join(member)).unwrap()
}

/// Returns the normalised channels-last pixels of one record.
fn pixels(record: &[u8]) -> impl Iterator<Item = f32> {
    (0..PLANE).flat_map(move |pixel| {
        (0..3).map(move |c| (f32::from(record[1 + c * PLANE + pixel]) / 255.0 - MEAN[c]) / STD[c])
    })
}

fn num_correct(model: &ResNet, records: &[&[u8]], device: &Device) -> usize {
    let best = |row: &[f32]| (0..10).fold(0, |best, k| if row[k] > row[best] { k } else { best });
    let mut num_correct = 0;
    for records in records.chunks(128) {
        let images: Vec<f32> = records.iter().flat_map(|record| pixels(record)).collect();
        let data = TensorData::new(images, [records.len(), 32, 32, 3]);
        let logits = values(model.forward(Tensor::from_data(data, device)));
        for (row, record) in logits.chunks_exact(10).zip(records) {
            num_correct += usize::from(best(row) == usize::from(record[0]));
        }
    }
    num_correct
}

#[test]
fn the_published_resnet20_gets_932_of_1017_images_right() {
    let Some(folder) = shared_data() else { return };
    let device = Device::flex();
    let bytes = test_records(&folder);
    let records: Vec<&[u8]> = bytes.chunks_exact(RECORD_BYTES).collect();
    assert_eq!((records.len(), bytes.len() % RECORD_BYTES), (NUM_IMAGES, 0));
    let auto = Computation::default();
    let mut exact = vec![
        Computation {
            kernels: Kernels::Stock,
            ..auto
        },
        Computation {
            convolution: Convolution::Direct,
            ..auto
        },
    ];
    exact.extend(Isa::available().map(|isa| Computation { isa, ..auto }));
    // bf16 changes logits by up to a hundredth: the class of an image may change if two classes are
    // almost equal.
    let bf16 = Computation {
        activations: Activations::Bf16,
        ..auto
    };
    let exact = exact.into_iter().map(|computation| (computation, 0));
    for (computation, tolerance) in exact.chain([(bf16, BF16_IMAGES)]) {
        let model = published(&resnet20().with_computation(computation), &folder, &device);
        let found = num_correct(&model, &records, &device);
        assert!(
            found.abs_diff(NUM_CORRECT) <= tolerance,
            "{computation:?}: {found}"
        );
    }
}
