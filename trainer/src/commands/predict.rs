//! `trainer predict`: classifies image files with a checkpoint.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use burn::tensor::activation::softmax;
use burn::tensor::{FloatDType, Tensor};
use datasets::decode::EXTENSIONS;
use datasets::{
    HostBatch, ImageShape, ImageShift, Pixels, RawPixels, Sizing, load_image,
    normalize::NormalizationTable,
};
use layers::PassContext;
use serde::Serialize;

use crate::config::cli::PredictArgs;
use crate::config::{Family, InputKind, WeightSource, invalid};
use crate::measure::report::{Reporter, printable};
use crate::model::family::{ModelFamily, ModelRequest};
use crate::model::{ImageClassifier, data};
use crate::run::trained_model::TrainedModel;
use crate::task::Classification;
use crate::world::ranks::World;

/// Output of `--json`: one entry per image.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predictions {
    /// Predictions in the order of the command line; images of a folder sorted by name.
    pub images: Vec<Prediction>,
}

impl Predictions {
    /// Returns 1 if an image could not be read, otherwise 0.
    pub fn exit_code(&self) -> ExitCode {
        if self.images.iter().any(|image| image.error.is_some()) {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        }
    }
}

/// Most likely classes of one image.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// Path of the file as named.
    pub path: String,
    /// Most likely first; empty after an error.
    pub classes: Vec<ClassProbability>,
    /// Reason that the image was not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A class and its softmax probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassProbability {
    /// Name in the data set.
    pub class: String,
    /// Position in the label order of the data set.
    pub label: usize,
    /// Probability in 0..1.
    pub probability: f32,
}

/// Classifies the images on one rank. Reports an image that cannot be read, and continues with the
/// next image.
///
/// # Errors
/// If the checkpoint or all images cannot be read, or there is more than one rank.
pub fn predict<F: ModelFamily>(args: &PredictArgs, world: &World) -> Result<Predictions> {
    if args.top == 0 {
        return Err(invalid("--top", "a whole number from 1", 0).into());
    }
    let compute = args
        .compute
        .decide_for(&Family::of::<Classification<F>>())?;
    let (device, _) = world.prepare_compute(&compute)?;
    let saved = TrainedModel::find(&WeightSource::Checkpoint(args.checkpoint.clone()), world)?;
    let trained = saved
        .trained()?
        .context("predict: the checkpoint has no configuration")?;
    let state = saved.state.as_ref();
    let input = state.and_then(|state| state.input.as_ref());
    let input = input.context("predict: the checkpoint has no description of its input")?;
    let request = ModelRequest {
        in_channels: input.channels,
        image_sizes: &[[input.height, input.width]],
        ..ModelRequest::new(input.class_names.len(), &compute, &device)
    };
    let family = Family::of::<Classification<F>>();
    let model_args: F::Args = trained.model_of(&family)?.read()?;
    let task = Classification::<F>::default();
    let model = saved.model(&task, &model_args, &request, world)?;
    let shape = ImageShape {
        height: input.height,
        width: input.width,
        channels: input.channels,
    };
    let table = Arc::new(NormalizationTable::new(&input.normalization()));
    let sizing = Sizing {
        size: input.height,
        shorter_side: trained
            .data
            .image_files()
            .and_then(|files| data::sizing(&files.size).shorter_side),
    };

    let mut images = Vec::new();
    for path in expanded(&args.images, &world.reporter) {
        let name = path
            .as_ref()
            .unwrap_or_else(|(path, _)| path)
            .display()
            .to_string();
        ensure!(
            !world.stop.is_raised(),
            "predict: stopped by a signal before {name}"
        );
        let read = path
            .map_err(|(_, error)| error)
            .and_then(|path| Ok(load_image(path, sizing, input.channels)?));
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => {
                let error = format!("{error:#}");
                world.reporter.warn(&error);
                images.push(Prediction {
                    path: name,
                    classes: Vec::new(),
                    error: Some(error),
                });
                continue;
            }
        };
        let raw = RawPixels {
            bytes,
            shifts: vec![ImageShift::default()],
            table: Arc::clone(&table),
        };
        let pixels = match compute.input {
            InputKind::Host => Pixels::Normalised(raw.normalised(shape)),
            InputKind::Device => Pixels::Raw(raw),
        };
        let batch = HostBatch {
            pixels,
            labels: vec![0],
            mixed: None,
            indices: vec![0],
            shape,
        }
        .to_device(&device);
        let context = PassContext::from(compute.computation()?);
        let logits = context.scope(|| model.forward(batch.images));
        let expected = [1, input.class_names.len()];
        ensure!(
            logits.dims() == expected,
            "model: expected logits {expected:?}, got {:?}",
            logits.dims()
        );
        let classes = likeliest(logits, &input.class_names, args.top)?;
        world.reporter.note(&name);
        for class in &classes {
            world.reporter.note(&format!(
                "  {:6.2} %  {}",
                100.0 * class.probability,
                printable(&class.class)
            ));
        }
        images.push(Prediction {
            path: name,
            classes,
            error: None,
        });
    }
    let predictions = Predictions { images };
    if args.json {
        world.reporter.json(&predictions)?;
    }
    let images = &predictions.images;
    let failed = images.iter().filter(|image| image.error.is_some()).count();
    ensure!(failed < images.len(), "predict: no image could be read");
    if failed > 0 {
        world.reporter.warn(&format!(
            "predict: {failed} of {} images or folders could not be read",
            images.len()
        ));
    }
    Ok(predictions)
}

/// An image file, or an unreadable path with the reason.
type Found = Result<PathBuf, (PathBuf, anyhow::Error)>;

/// Returns each file of `paths` once, including the files in folders. Reports the number of skipped
/// hidden entries.
fn expanded(paths: &[PathBuf], reporter: &Reporter) -> Vec<Found> {
    let mut seen = HashSet::new();
    let mut num_hidden = 0;
    let mut files = Vec::new();
    for path in paths {
        let found = if path.is_dir() {
            images_below(path, &mut num_hidden)
        } else {
            Ok(vec![path.clone()])
        };
        match found {
            Ok(found) => files.extend(
                found
                    .into_iter()
                    .filter(|file| seen.insert(file.clone()))
                    .map(Ok),
            ),
            Err(error) => files.push(Err((path.clone(), error))),
        }
    }
    if num_hidden > 0 {
        reporter.note(&format!(
            "predict: left out: hidden images or folders, .NAME ({num_hidden})"
        ));
    }
    files
}

/// Returns the image files below a folder, sorted by name. Counts hidden entries, which training
/// skips, too.
fn images_below(folder: &Path, num_hidden: &mut usize) -> Result<Vec<PathBuf>> {
    let context = || format!("cannot read {}", folder.display());
    let mut images = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(context)? {
            let entry = entry.with_context(context)?;
            let path = entry.path();
            let is_folder = entry.file_type().with_context(context)?.is_dir();
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                *num_hidden += usize::from(is_folder || has_image_extension(&path));
                continue;
            }
            // Do not follow a link to a folder: it may form a cycle.
            if is_folder {
                folders.push(path);
            } else if has_image_extension(&path) {
                images.push(path);
            }
        }
    }
    images.sort();
    ensure!(
        !images.is_empty(),
        "{}: expected images ({}) in the folder, got none",
        folder.display(),
        EXTENSIONS.join(", ")
    );
    Ok(images)
}

fn has_image_extension(path: &Path) -> bool {
    let extension = path
        .extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default();
    EXTENSIONS
        .iter()
        .any(|known| extension.eq_ignore_ascii_case(known))
}

/// Returns the `top` classes of logits `[1, K]`, most likely first; for equal logits, the lower
/// class first.
fn likeliest(
    logits: Tensor<2>,
    class_names: &[String],
    top: usize,
) -> Result<Vec<ClassProbability>> {
    let probabilities = softmax(logits.cast(FloatDType::F32), 1)
        .into_data()
        .convert::<f32>();
    let probabilities = probabilities
        .as_slice::<f32>()
        .map_err(|error| anyhow!("probabilities: {error:?}"))?;
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
    Ok(order
        .into_iter()
        .take(top)
        .map(|label| ClassProbability {
            class: class_names[label].clone(),
            label,
            probability: probabilities[label],
        })
        .collect())
}
