//! ViT-Ti/4: a vision transformer over patches of 4x4 pixels.
//!
//! In: `[N, H, W, C]` images of one size. Out: `[N, num_classes]` logits. The layers are timm's:
//! pre-normalisation, a class token and learned positions.
//! Source: Dosovitskiy et al. 2020, arXiv 2010.11929. Size Ti: Touvron et al. 2020, arXiv
//! 2012.12877, table 1. Initial positions: Beyer et al. 2022, arXiv 2205.01580.

use burn::module::{Initializer, Module, Param, ParamGroup};
use burn::optim::{AdamWConfig, AdjustLrFn, ModuleOptimizer, MuonConfig};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use layers::{
    LayerNorm, Linear, LinearConfig, attention, gelu, stochastic_depth, with_gradient_hook,
};

use crate::ImageSizeError;
use crate::parts::{drop_rates, input, layer_norm, linear};

const PATCH: usize = 4;
const CHANNELS: usize = 192;
const DEPTH: usize = 12;
const HEADS: usize = 3;

/// Returns the initial positions `[1 + rows * columns, CHANNELS]`. The class token has zeros. Each
/// patch has sines and cosines of its row and column.
///
/// timm draws positions with a deviation of 0.02, which is small compared with patches of 0.6. With
/// timm's positions the network stays at chance for its first 550 steps on shapes. With these
/// positions the loss begins to fall at step 350 (docs/benchmarks.md).
fn positions([rows, columns]: [usize; 2], device: &Device) -> Param<Tensor<2>> {
    let frequencies = CHANNELS / 4;
    let mut values = vec![0.0_f32; CHANNELS];
    for patch in 0..rows * columns {
        for place in [patch / columns, patch % columns] {
            for index in 0..frequencies {
                let angle =
                    place as f32 * libm::powf(1e-4, index as f32 / (frequencies - 1) as f32);
                values.extend([libm::sinf(angle), libm::cosf(angle)]);
            }
        }
    }
    Param::from_data(
        TensorData::new(values, [rows * columns + 1, CHANNELS]),
        device,
    )
}

/// Attention between tokens, then two linear layers per token, each with a shortcut.
#[derive(Module, Debug)]
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    drop: f64,
}

impl Block {
    fn new(drop: f64, device: &Device) -> Self {
        Self {
            norm1: layer_norm(CHANNELS, device),
            qkv: linear(CHANNELS, 3 * CHANNELS, device),
            proj: linear(CHANNELS, CHANNELS, device),
            norm2: layer_norm(CHANNELS, device),
            fc1: linear(CHANNELS, 4 * CHANNELS, device),
            fc2: linear(4 * CHANNELS, CHANNELS, device),
            drop,
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let mixed = attention(self.qkv.forward(self.norm1.forward(x.clone())), HEADS);
        let x = x + stochastic_depth(self.proj.forward(mixed), self.drop);
        let hidden = gelu(self.fc1.forward(self.norm2.forward(x.clone())));
        x + stochastic_depth(self.fc2.forward(hidden), self.drop)
    }
}

/// The ViT-Ti/4 network.
#[derive(Module, Debug)]
pub struct VisionTransformer {
    patches: Linear,
    cls_token: Param<Tensor<1>>,
    positions: Param<Tensor<2>>,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

impl VisionTransformer {
    /// Returns a network for images of this height and width. Except for the positions, weights
    /// have timm's initial values from an untruncated normal distribution. The last block's
    /// branches are skipped with probability `drop`, earlier branches with less.
    ///
    /// # Panics
    /// If [`expect_image_size`](Self::expect_image_size) rejects the size, or unless `drop` is 0 up
    /// to but not 1.
    pub fn new(
        image_size: [usize; 2],
        in_channels: usize,
        num_classes: usize,
        drop: f64,
        device: &Device,
    ) -> Self {
        if let Err(error) = Self::expect_image_size(image_size) {
            panic!("{error}");
        }
        Self {
            patches: LinearConfig::new(PATCH * PATCH * in_channels, CHANNELS).init(device),
            cls_token: Initializer::Normal {
                mean: 0.0,
                std: 1e-6,
            }
            .init([CHANNELS], device),
            positions: positions(image_size.map(|side| side / PATCH), device),
            blocks: drop_rates(drop, DEPTH)
                .map(|drop| Block::new(drop, device))
                .collect(),
            norm: layer_norm(CHANNELS, device),
            head: linear(CHANNELS, num_classes, device),
        }
    }

    /// Rejects images that do not consist of patches.
    ///
    /// # Errors
    /// Unless the height and the width are multiples of 4 pixels, and not 0.
    pub fn expect_image_size([height, width]: [usize; 2]) -> Result<(), ImageSizeError> {
        if [height, width]
            .iter()
            .all(|side| *side > 0 && side.is_multiple_of(PATCH))
        {
            return Ok(());
        }
        Err(ImageSizeError {
            network: "ViT-Ti/4",
            expected: "multiples of 4 pixels",
            height,
            width,
        })
    }

    /// Returns the number of values in the network's weights file, without making the network. The
    /// largest result is `u64::MAX`.
    pub fn num_values([height, width]: [usize; 2], in_channels: usize, num_classes: usize) -> u64 {
        let linear = |c_in: usize, c_out: usize| c_in.saturating_add(1).saturating_mul(c_out);
        let norm = 2 * CHANNELS;
        let block = 2 * norm
            + linear(CHANNELS, 3 * CHANNELS)
            + linear(CHANNELS, CHANNELS)
            + linear(CHANNELS, 4 * CHANNELS)
            + linear(4 * CHANNELS, CHANNELS);
        let num_patches = (height / PATCH).saturating_mul(width / PATCH);
        // The positions are those of the class token and of the patches.
        let tokens = num_patches.saturating_add(2).saturating_mul(CHANNELS);
        let parts = [
            linear(in_channels.saturating_mul(PATCH * PATCH), CHANNELS),
            tokens,
            DEPTH * block + norm,
            linear(CHANNELS, num_classes),
        ];
        parts.into_iter().fold(0, usize::saturating_add) as u64
    }

    /// Returns true if the network has stochastic depth, so a forward pass draws random numbers.
    pub fn draws(&self) -> bool {
        self.blocks.iter().any(|block| block.drop > 0.0)
    }

    /// Returns an optimizer for this network. Muon (Jordan et al. 2024) updates the
    /// matrices of the blocks, with steps of AdamW's size (Liu et al. 2025, arXiv 2502.16982).
    /// AdamW updates all other parameters.
    pub fn optimizer() -> ModuleOptimizer {
        let muon = MuonConfig::new()
            .with_adjust_lr_fn(AdjustLrFn::MatchRmsAdamW)
            .build();
        let matrices = ParamGroup::from_predicates(vec!["blocks", "weight"]);
        AdamWConfig::new()
            .with_weight_decay(0.0)
            .init()
            .with_group(matrices, muon, None)
    }

    /// Returns the logits.
    ///
    /// # Panics
    /// If the images differ from the size that the network was created for.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let images = input(images);
        let x = self.tokens(self.patches.forward(windows(images)));
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let [n, ..] = x.dims();
        let of_class = x.slice([0..n, 0..1]).reshape([n, CHANNELS]);
        self.head
            .forward(self.norm.forward(of_class).cast(FloatDType::F32))
    }

    /// Returns the class token and the patches `[N, 1 + P, CHANNELS]`, with their positions.
    fn tokens(&self, patches: Tensor<3>) -> Tensor<3> {
        let [n, num_patches, _] = patches.dims();
        let [num_positions, _] = self.positions.shape().dims();
        assert!(
            num_patches + 1 == num_positions,
            "images: expected {} patches of 4 x 4 pixels as in the network's positions, got {num_patches}",
            num_positions - 1
        );
        let cls = with_gradient_hook(&self.cls_token, &patches)
            .val()
            .reshape([1, 1, CHANNELS])
            .expand([n, 1, CHANNELS]);
        let positions = with_gradient_hook(&self.positions, &patches)
            .val()
            .unsqueeze::<3>();
        let dtype = FloatDType::from(patches.dtype());
        Tensor::cat(vec![cls.cast(dtype), patches], 1) + positions.cast(dtype)
    }
}

/// Returns the pixels of each patch `[N, P, PATCH * PATCH * C]`, row by row.
fn windows(images: Tensor<4>) -> Tensor<3> {
    let [n, height, width, channels] = images.dims();
    let rows = height / PATCH;
    let columns = width / PATCH;
    images
        .reshape([n, rows, PATCH, columns, PATCH, channels])
        .permute([0, 1, 3, 2, 4, 5])
        .reshape([n, rows * columns, PATCH * PATCH * channels])
}
