//! A custom training loop with burn's optimizers, on any number of ranks. Numbers mark the lines
//! that a single-process loop does not have.
//!
//!     cargo run --release -p trainer --example own_loop
//!     mpirun -n 2 target/release/examples/own_loop

#![allow(clippy::print_stdout, reason = "an example that says what it did")]

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::AdamWConfig;
use burn::tensor::Device;
use burn_resnet::ResNetConfig;
use datasets::{ImageSamples, Loader, LoaderConfig, ShapesDataset, ShardConfig, ShardPlan};
use distributed::gradients::{GradientReducer, ReducerConfig};
use distributed::replica::{broadcast_module, check_fingerprint};
use distributed::{Communicator, ROOT, launch};
use layers::PassContext;
use layers::backend::gradient_hook;

fn main() -> ExitCode {
    launch(train) // 1: joins the ranks; an error on one rank ends all ranks
}

fn train(communicator: &Arc<dyn Communicator>) -> Result<()> {
    let device = Device::flex().autodiff();
    let data = ImageSamples::splits(ShapesDataset::new(2400, 10, 0)?, false);
    let model = ResNetConfig::cifar(8)?.init(0, &device);
    let mut model = broadcast_module(model, &**communicator, ROOT)?; // 2
    let mut reducer =
        GradientReducer::new(&model, Arc::clone(communicator), &ReducerConfig::default())?; // 3
    let collector = reducer.collector();
    let hook = gradient_hook(move |parameter, gradient| {
        // 4: layers call the hook during the backward pass
        collector.take(parameter, gradient.as_slice().expect("gradients are f32"));
    });
    let context = PassContext {
        hook: Some(hook),
        ..PassContext::default()
    };

    let mut optimizer = AdamWConfig::new().init();
    for epoch in 0..3 {
        let shard = ShardConfig {
            num_shards: communicator.world_size(),
            shard_index: communicator.rank(),
            epoch,
            shuffle: true,
            drop_last: true,
            ..ShardConfig::new(data.train.dataset.len(), 48)
        };
        let loader = LoaderConfig {
            epoch,
            ..LoaderConfig::new(48)
        };
        let mut sum = 0.0;
        for step in Loader::start(Arc::clone(&data.train), ShardPlan::new(shard)?, loader) {
            let step = step?;
            for micro in step.micro_batches {
                let share = micro.num_samples as f64 / step.global_num_samples as f64;
                let batch = micro.batch.to_device(&device);
                let loss = context.clone().scope(|| {
                    let logits = model.forward(batch.images);
                    CrossEntropyLossConfig::new()
                        .init(&device)
                        .forward(logits, batch.targets.labels)
                });
                sum += share * loss.clone().into_scalar::<f32>() as f64;
                let gradients = reducer.backward(&model, loss, share)?; // 5
                model = optimizer.step(1e-3, model, gradients);
            }
        }
        let mut losses = [sum * 48.0 / 2400.0];
        communicator.all_reduce_sum_f64(&mut losses)?;
        // All ranks have the same bits.
        let parameters = check_fingerprint(&model, &**communicator, epoch)?;
        if communicator.rank() == ROOT {
            println!(
                "epoch {epoch}: loss {:.4}, parameters {parameters}",
                losses[0]
            );
        }
    }
    Ok(())
}
