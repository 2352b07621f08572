//! Export of the measured job for other programs: `--export-job`.
//!
//! In: the job of `trainer bench`. Out: these files.
//!
//! - `job.json`: the options of the job
//! - `weights.safetensors`: the initial weights under PyTorch's names
//! - `batches-rank<R>.safetensors` of each rank: normalised `images` `[B, N, H, W, C]`, and
//!   `labels` `[B, N]`
//!
//! Batches are in the order of use. The first batch follows the last.
//! Invariant: the numbers have the same bits as in this program. A file is complete or absent.

use std::path::Path;

use anyhow::Result;
use burn::module::Module;
use burn_resnet::save_safetensors;
use datasets::LoadedStep;
use distributed::Communicator;
use records::{ExportedJob, JOB_SCHEMA, SgdFacts, file};
use safetensors::tensor::{Dtype, TensorView};

use crate::config::cli::ModelArgs;
use crate::config::{BenchConfig, SgdConfig};

/// Returns the job of a residual network that trains with these options on `ranks` ranks.
pub fn job(
    config: &BenchConfig,
    ranks: usize,
    num_batches: usize,
    learning_rate: f64,
    sgd: &SgdConfig,
) -> Result<ExportedJob> {
    let model: ModelArgs = config.model.read()?;
    let network = model.residual()?;
    let SgdConfig {
        momentum,
        nesterov,
        weight_decay,
        decay_norm_and_bias,
    } = *sgd;
    Ok(ExportedJob {
        schema: JOB_SCHEMA.to_owned(),
        model: model.name(),
        depth: network.depth(),
        shortcut: network.shortcut().to_string(),
        num_classes: config.num_classes,
        image_size: config.image_size,
        ranks,
        batch_size_per_rank: config.batch_size_per_rank,
        num_batches,
        learning_rate,
        sgd: SgdFacts {
            momentum,
            nesterov,
            weight_decay,
            decay_norm_and_bias: decay_norm_and_bias != Some(false),
        },
    })
}

/// Creates a directory and writes the job of all ranks into it.
pub fn export(
    directory: &Path,
    job: &ExportedJob,
    model: &impl Module,
    batches: &[LoadedStep],
    communicator: &dyn Communicator,
) -> Result<()> {
    file::create_folder(directory)?;
    let path = directory.join(format!("batches-rank{}.safetensors", communicator.rank()));
    file::replace(&path, &batches_to_bytes(job, batches)?)?;
    if communicator.rank() == 0 {
        save_safetensors(model, directory.join("weights.safetensors"))?;
        file::replace_json(&directory.join("job.json"), job)?;
    }
    Ok(())
}

fn batches_to_bytes(job: &ExportedJob, batches: &[LoadedStep]) -> Result<Vec<u8>> {
    let parts = || batches.iter().flat_map(|step| &step.micro_batches);
    let pixels = parts().map(|part| part.batch.normalised_pixels());
    let pixels: Vec<u8> = pixels
        .flat_map(|pixels| {
            pixels
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect::<Vec<u8>>()
        })
        .collect();
    let labels: Vec<u8> = parts()
        .flat_map(|part| &part.batch.labels)
        .flat_map(|&label| (label as i32).to_le_bytes())
        .collect();
    let rows = [batches.len(), job.batch_size_per_rank];
    let images = [&rows[..], &[job.image_size, job.image_size, 3]].concat();
    let views = [
        ("images", TensorView::new(Dtype::F32, images, &pixels)?),
        (
            "labels",
            TensorView::new(Dtype::I32, rows.to_vec(), &labels)?,
        ),
    ];
    Ok(safetensors::serialize(views, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datasets::{HostBatch, ImageShape, MicroBatch, Pixels};
    use safetensors::SafeTensors;

    fn two_ranks() -> ExportedJob {
        let sgd = SgdFacts {
            momentum: 0.9,
            nesterov: false,
            weight_decay: 1e-4,
            decay_norm_and_bias: true,
        };
        ExportedJob {
            schema: JOB_SCHEMA.to_owned(),
            model: "resnet20".into(),
            depth: 20,
            shortcut: "a".to_owned(),
            num_classes: 10,
            image_size: 2,
            ranks: 2,
            batch_size_per_rank: 1,
            num_batches: 2,
            learning_rate: 0.01,
            sgd,
        }
    }

    #[test]
    fn batches_are_written_in_their_order_and_bit_by_bit() {
        let step = |start: usize, label| LoadedStep {
            step_in_epoch: start,
            global_num_samples: 2,
            global_weight: 2.0,
            micro_batches: vec![MicroBatch {
                num_samples: 1,
                weight: 1.0,
                batch: HostBatch {
                    pixels: Pixels::Normalised(
                        (0..12)
                            .map(|value| (start * 12 + value) as f32 / 3.0)
                            .collect(),
                    ),
                    labels: vec![label],
                    mixed: None,
                    indices: vec![start],
                    shape: ImageShape {
                        height: 2,
                        width: 2,
                        channels: 3,
                    },
                },
            }],
        };
        let bytes = batches_to_bytes(&two_ranks(), &[step(0, 7), step(1, 3)]).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let images = read.tensor("images").unwrap();
        let labels = read.tensor("labels").unwrap();
        assert_eq!(
            (images.shape(), labels.shape()),
            (&[2, 1, 2, 2, 3][..], &[2, 1][..])
        );
        let expected: Vec<u8> = (0..24)
            .flat_map(|value| (value as f32 / 3.0).to_le_bytes())
            .collect();
        assert_eq!(images.data(), expected);
        assert_eq!(labels.data(), [7_i32, 3].map(i32::to_le_bytes).concat());
    }
}
