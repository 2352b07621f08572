//! The input of a trained model: what makes it usable without its data set.
//!
//! In: the train and the evaluated split. Out: shape, normalisation and classes, as a checkpoint
//! has them.
//! Invariant: pure.

use anyhow::{Result, ensure};
use datasets::{ImageSamples, Normalization, normal_form};
use serde::{Deserialize, Serialize};

use crate::config::{MAX_CLASSES, MAX_IMAGE_SIDE};

/// Input and classes of a trained model, which make it usable without its data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelInput {
    /// Height of an image, pixels.
    pub height: usize,
    /// Width of an image, pixels.
    pub width: usize,
    /// Number of channels, 3 for RGB.
    pub channels: usize,
    /// Mean of each channel, subtracted from pixels in 0..1.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel, by which pixels are divided.
    pub std: Vec<f32>,
    /// Class names, in the order of the logits.
    pub class_names: Vec<String>,
}

impl ModelInput {
    /// Returns the input of models that are trained on `train`, with the shape of `evaluated`.
    pub fn of(train: &ImageSamples, evaluated: &ImageSamples) -> Self {
        let shape = evaluated.dataset.image_shape();
        Self {
            height: shape.height,
            width: shape.width,
            channels: shape.channels,
            mean: train.normalization.mean.clone(),
            std: train.normalization.std.clone(),
            class_names: train.dataset.class_names().to_vec(),
        }
    }

    /// Returns the normalisation of its pixels.
    pub fn normalization(&self) -> Normalization {
        Normalization {
            mean: self.mean.clone(),
            std: self.std.clone(),
        }
    }

    /// Checks that a checkpoint can hold it.
    ///
    /// # Errors
    /// If a size or value is out of its range.
    pub fn check(&self) -> Result<()> {
        for side in [self.height, self.width] {
            ensure!(
                (1..=MAX_IMAGE_SIDE).contains(&side),
                "input: expected sides of 1 to {MAX_IMAGE_SIDE} pixels, got {side}"
            );
        }
        ensure!(
            self.height == self.width,
            "input: expected square images, got {}x{}",
            self.height,
            self.width
        );
        let channels = self.channels;
        ensure!(channels > 0, "input: expected at least 1 channel, got 0");
        let mean = &self.mean;
        let std = &self.std;
        ensure!(
            mean.len() == channels && std.len() == channels,
            "input: expected mean and std of {channels} channels, got {} and {}",
            mean.len(),
            std.len()
        );
        ensure!(
            mean.iter().all(|value| value.is_finite())
                && std.iter().all(|value| value.is_finite() && *value > 0.0),
            "input: expected finite means and positive std, got {mean:?} and {std:?}"
        );
        let num_classes = self.class_names.len();
        ensure!(
            (1..=MAX_CLASSES).contains(&num_classes),
            "input: expected 1 to {MAX_CLASSES} classes, got {num_classes}"
        );
        Ok(())
    }

    /// Describes the first class that differs in `now`, if there is one. Names in different Unicode
    /// forms are equal.
    pub fn other_class(&self, now: &[String]) -> Option<String> {
        let trained = &self.class_names;
        let form = |name: Option<&String>| name.map(|name| normal_form(name));
        let differs = |&class: &usize| {
            trained.get(class) != now.get(class) && form(trained.get(class)) != form(now.get(class))
        };
        let first = (0..trained.len().max(now.len())).find(differs)?;
        let named = |names: &[String]| {
            names
                .get(first)
                .map_or("none".to_owned(), |name| format!("\"{name}\""))
        };
        Some(format!(
            "class {first} of {}: expected {}, got {} (class {first} of {})",
            trained.len(),
            named(trained),
            named(now),
            now.len()
        ))
    }
}
