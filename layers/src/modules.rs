//! burn's modules with Lockstep's kernels: equal names, parameters and records, on channels-last
//! features.
//!
//! In: [`Features`] or a tensor `[N, H, W, C]`. Out: features, or a tensor `[N, K]`.
//! Invariant: each module contains the burn module. Its parameters have the same paths in records
//! and weights files as those of the burn module.

use burn::module::{Initializer, Param};
use burn::nn;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d as StockConv2d, Conv2dConfig as StockConv2dConfig};
use burn::tensor::{Device, Tensor};

use crate::context::PassContext;
use crate::features::Features;
use crate::layer::Convolved;
use crate::ops::single::{Operation, computes, single};
use crate::ops::{count_multiply_adds, gated, stock};

/// Defines a module around burn's own; visitors of parameters see burn's module.
macro_rules! around {
    ($name:ident, $stock:ty, $doc:literal) => {
        #[doc = $doc]
        ///
        /// It dereferences to burn's module, which holds the parameters. `into` converts burn's
        /// module to this one.
        #[derive(Clone, Debug)]
        pub struct $name($stock);

        impl From<$stock> for $name {
            fn from(stock: $stock) -> Self {
                Self(stock)
            }
        }

        impl std::ops::Deref for $name {
            type Target = $stock;

            fn deref(&self) -> &$stock {
                &self.0
            }
        }

        impl burn::module::Module for $name {
            fn collect_devices(&self, devices: burn::module::Devices) -> burn::module::Devices {
                self.0.collect_devices(devices)
            }

            fn fork(self, device: &burn::tensor::Device) -> Self {
                Self(self.0.fork(device))
            }

            fn to_device(self, device: &burn::tensor::Device) -> Self {
                Self(self.0.to_device(device))
            }

            fn train(self) -> Self {
                Self(self.0.train())
            }

            fn valid(&self) -> Self {
                Self(self.0.valid())
            }

            fn materialize(self) -> Self {
                Self(self.0.materialize())
            }

            fn visit<V: burn::module::ModuleVisitor>(&self, visitor: &mut V) {
                self.0.visit(visitor);
            }

            fn map<M: burn::module::ModuleMapper>(self, mapper: &mut M) -> Self {
                Self(self.0.map(mapper))
            }
        }

        impl burn::module::ModuleDisplayDefault for $name {
            fn content(&self, content: burn::module::Content) -> Option<burn::module::Content> {
                burn::module::ModuleDisplayDefault::content(&self.0, content)
            }

            fn num_params(&self) -> usize {
                burn::module::Module::num_params(&self.0)
            }
        }

        impl burn::module::ModuleDisplay for $name {
            fn custom_settings(&self) -> Option<burn::module::DisplaySettings> {
                burn::module::ModuleDisplay::custom_settings(&self.0)
            }

            fn custom_content(
                &self,
                content: burn::module::Content,
            ) -> Option<burn::module::Content> {
                burn::module::ModuleDisplay::custom_content(&self.0, content)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(&burn::module::ModuleDisplay::format(
                    self,
                    Default::default(),
                ))
            }
        }
    };
}

pub(crate) use around;

around!(
    Conv2d,
    StockConv2d,
    "A convolution of channels-last features."
);
around!(
    BatchNorm,
    nn::BatchNorm,
    "Batch normalisation of channels-last features."
);
around!(Linear, nn::Linear, "A linear layer.");

impl Conv2d {
    /// Convolves. Without bias, the convolution is computed together with the
    /// normalisation, residual and ReLU after it. Lockstep's kernels compute kernels of any extent
    /// and any groups, with a stride of 1 to 4 in both directions, a padding that is the same on
    /// opposite sides and less than the kernel, and no dilation.
    ///
    /// Not fused, but computed by these kernels, are also
    /// - several results of each channel;
    /// - a dilation that divides the padding, with stride 1;
    /// - windows that do not overlap, without padding, with other strides.
    ///
    /// burn's operation computes all others; on Flex it is several times slower.
    ///
    /// # Shapes
    /// `[N, H, W, C_in]` to `[N, H_out, W_out, C_out]`.
    pub fn forward(&self, features: impl Into<Features>) -> Features {
        Features::convolved(Convolved::new(self, features.into()))
    }
}

impl BatchNorm {
    /// Normalises each channel. In training, on an autodiff device, it uses the statistics of the
    /// batch and updates the running statistics. Otherwise it uses the running statistics.
    ///
    /// # Shapes
    /// `[N, H, W, C]` to the same.
    ///
    /// # Differs from burn
    /// The running variance uses the unbiased variance of the batch, as in PyTorch.
    ///
    /// # Differs from PyTorch
    /// A batch of one value per channel is normalised to `beta`, and its variance counts as 0.
    /// PyTorch raises an error.
    ///
    /// # Collective
    /// In training with a reducer: one sum in the forward and one in the backward pass. The reducer
    /// is that of the [`PassContext`]; if the convolution before is in the same operation, its
    /// context counts.
    pub fn forward(&self, features: impl Into<Features>) -> Features {
        features.into().normalised(self)
    }
}

impl Linear {
    /// Returns `x W + b`.
    ///
    /// # Shapes
    /// `[.., C]` to `[.., K]`.
    ///
    /// # Panics
    /// If the last axis has another length.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.forward_with(x, |parameters| parameters)
    }

    /// Returns `(x W + b) * scale`: the layer scale of a residual branch (Touvron et al. 2021,
    /// arXiv 2103.17239, equation 2). The scale is multiplied into the weights, so it needs no pass
    /// over activations.
    ///
    /// # Shapes
    /// `x`: `[.., C]`; `scale`: `[K]`. Returns `[.., K]`.
    ///
    /// # Panics
    /// As [`forward`](Self::forward).
    pub fn forward_scaled<const D: usize>(
        &self,
        x: Tensor<D>,
        scale: &Param<Tensor<1>>,
    ) -> Tensor<D> {
        let gate = x.clone();
        self.forward_with(x, |(weight, bias)| {
            let scale = gated(scale, &gate, PassContext::current().hook.as_ref());
            (
                weight * scale.clone().unsqueeze(),
                bias.map(|bias| bias * scale),
            )
        })
    }

    /// Computes the layer with parameters made from its own.
    fn forward_with<const D: usize>(
        &self,
        x: Tensor<D>,
        make: impl FnOnce((Tensor<2>, Option<Tensor<1>>)) -> (Tensor<2>, Option<Tensor<1>>),
    ) -> Tensor<D> {
        let hook = PassContext::current().hook;
        let bias = self
            .bias
            .as_ref()
            .map(|bias| gated(bias, &x, hook.as_ref()));
        let (weight, bias) = make((gated(&self.weight, &x, hook.as_ref()), bias));
        linear(x, weight, bias)
    }
}

/// Returns `x W + b` with any tensors as parameters, such as the exchanged axes of an embedding
/// (Press and Wolf 2017, arXiv 1608.05859). Parameters of a model come through
/// [`with_gradient_hook`](crate::with_gradient_hook).
///
/// # Shapes
/// `x`: `[.., C]`; `weight`: `[C, K]`; `bias`: `[K]`. Returns `[.., K]`.
///
/// # Panics
/// If a length differs.
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let [channels, outputs] = weight.dims();
    assert_eq!(
        x.dims().last(),
        Some(&channels),
        "linear layer: expected [.., {channels}], got {:?}",
        x.dims()
    );
    let positions = x.shape().num_elements() / channels.max(1);
    count_multiply_adds(channels * outputs, positions);
    let computation = PassContext::current().computation;
    if computes(&x, &computation) {
        let parameters = [
            Some(weight.into_dispatch()),
            bias.map(Tensor::into_dispatch),
        ];
        return single(x, parameters, Operation::Linear, computation.isa);
    }
    stock::linear(x, weight, bias)
}

/// A configuration around burn's own one.
macro_rules! config_around {
    ($name:ident, $stock:ty, $module:ident, [$($setter:ident: $type:ty),*] $(, $device:ident)?) => {
        #[doc = concat!("As burn's configuration of that name, of a [`", stringify!($module), "`].")]
        #[derive(Clone, Debug)]
        pub struct $name($stock);

        impl $name {
            $(
                #[doc = concat!("As burn's `", stringify!($setter), "`.")]
                pub fn $setter(self, value: $type) -> Self {
                    Self(self.0.$setter(value))
                }
            )*

            /// Returns the module, with parameters drawn from burn's random numbers.
            pub fn init(&self $(, $device: &Device)?) -> $module {
                self.0.clone().init($($device)?).into()
            }
        }
    };
}

config_around!(Conv2dConfig, StockConv2dConfig, Conv2d, [
    with_stride: [usize; 2], with_dilation: [usize; 2], with_groups: usize, with_padding: PaddingConfig2d, with_bias: bool,
    with_initializer: Initializer
], device);
config_around!(BatchNormConfig, nn::BatchNormConfig, BatchNorm, [with_epsilon: f64, with_momentum: f64], device);
config_around!(LinearConfig, nn::LinearConfig, Linear, [with_bias: bool, with_initializer: Initializer], device);

pub(crate) use config_around;

impl Conv2dConfig {
    /// Returns the configuration for `[C_in, C_out]` channels and a kernel of `kernel_size`.
    pub fn new(channels: [usize; 2], kernel_size: [usize; 2]) -> Self {
        Self(StockConv2dConfig::new(channels, kernel_size))
    }
}

impl BatchNormConfig {
    /// Returns the configuration for `num_features` channels.
    pub fn new(num_features: usize) -> Self {
        Self(nn::BatchNormConfig::new(num_features))
    }
}

impl LinearConfig {
    /// Returns the configuration from `d_input` to `d_output` values.
    pub fn new(d_input: usize, d_output: usize) -> Self {
        Self(nn::LinearConfig::new(d_input, d_output))
    }
}
