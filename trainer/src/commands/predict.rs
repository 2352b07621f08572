//! `trainer predict`: the classes of image files, by a checkpoint.

use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use burn::tensor::Tensor;
use burn::tensor::activation::softmax;
use datasets::{
    HostBatch, ImageShape, Pixels, Placement, RawPixels, Sizing, load_image, normalize::NormalizationTable,
};
use serde::Serialize;

use crate::config::cli::PredictArgs;
use crate::config::{Family, Filled, InputKind, PredictConfig, WeightSource};
use crate::model::ImageClassifier;
use crate::model::family::{ModelFamily, ModelRequest};
use crate::run::saved_model::SavedModel;
use crate::world::ranks::World;

/// What `--json` prints: one entry an image.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predictions {
    /// In the order of the command line.
    pub images: Vec<Prediction>,
}

/// The likeliest classes of one image.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The file as named.
    pub path: String,
    /// Likeliest first.
    pub classes: Vec<ClassProbability>,
}

/// A class and its softmax probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassProbability {
    /// Name as in the data set.
    pub class: String,
    /// Position in the data set's label order.
    pub label: usize,
    /// 0..1.
    pub probability: f32,
}

/// Names the classes of the images, on root alone.
///
/// # Errors
/// When the checkpoint or an image cannot be read, or there is more than one rank.
pub fn predict<F: ModelFamily>(args: &PredictArgs, world: &World) -> Result<Predictions> {
    world.expect_one_process("predict")?;
    let config = PredictConfig::resolve(args, &Family::of::<F>())?;
    let (device, _) = world.prepare_compute(&config.compute)?;
    let saved = SavedModel::find(&WeightSource::Checkpoint(config.checkpoint.clone()), world)?;
    let trained = saved.trained()?.context("predict: a checkpoint tells its configuration")?;
    let input = &saved.state.as_ref().context("predict: a checkpoint tells what it takes")?.input;
    let num_classes = input.class_names.len();
    let request =
        ModelRequest { in_channels: input.channels, ..ModelRequest::new(num_classes, &config.compute, &device) };
    let model = saved.model::<F>(&trained.model_of(&Family::of::<F>())?, &request, world)?;
    let shape = ImageShape { height: input.height, width: input.width, channels: input.channels };
    let table = Arc::new(NormalizationTable::new(&input.normalization()));

    let sizing = Sizing { size: input.height, shorter_side: trained.data.eval_resize };

    let mut images = Vec::new();
    for path in &config.images {
        ensure!(!world.stop.is_raised(), "predict: stopped by a signal before {}", path.display());
        let bytes = load_image(path, sizing, input.channels)?;
        let raw = RawPixels { bytes, placements: vec![Placement::default()], table: Arc::clone(&table) };
        let pixels = match config.compute.input.filled() {
            InputKind::Host => Pixels::Normalised(raw.normalised(shape)),
            InputKind::Device => Pixels::Raw(raw),
        };
        let batch = HostBatch { pixels, labels: vec![0], mixed: None, indices: vec![0], shape }.to_device(&device);
        let logits = model.forward(batch.images);
        let expected = [1, input.class_names.len()];
        ensure!(logits.dims() == expected, "model: expected logits {expected:?}, got {:?}", logits.dims());
        let classes = likeliest(logits, &input.class_names, config.top.filled())?;
        world.reporter.note(&path.display().to_string());
        for class in &classes {
            world.reporter.note(&format!("  {:6.2} %  {}", 100.0 * class.probability, class.class));
        }
        images.push(Prediction { path: path.display().to_string(), classes });
    }
    let predictions = Predictions { images };
    if config.json {
        world.reporter.json(&predictions)?;
    }
    Ok(predictions)
}

/// The `top` classes of logits `[1, K]`, likeliest first; of equals the lower class comes first.
fn likeliest(logits: Tensor<2>, class_names: &[String], top: usize) -> Result<Vec<ClassProbability>> {
    let probabilities = softmax(logits, 1).into_data().convert::<f32>();
    let probabilities = probabilities.as_slice::<f32>().map_err(|error| anyhow!("probabilities: {error:?}"))?;
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
    Ok(order
        .into_iter()
        .take(top)
        .map(|label| ClassProbability { class: class_names[label].clone(), label, probability: probabilities[label] })
        .collect())
}
