//! The place of each parameter in one flat tensor of a device, in which it is used without a copy.
//!
//! In: a layout. Out: flat tensors, views of them, values in module order. Invariant: every
//! parameter begins and ends with a granule; the padding is zero and stays zero under an update.
//!
//! A GPU's slice is a view if it begins and ends at multiples of 512 bytes (cubecl 0.11.3,
//! cubecl-cuda, `runtime.rs`; burn-cubecl 0.22.1, `kernel/index/slice.rs`), and one window of such
//! a slice is a view of any length. Weights of convolutions are channels-last.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, TensorData};
use distributed::replica::{ElementOrder, ParameterEntry, ParameterLayout};

use crate::model::floats;

/// 512 bytes.
pub(super) const GRANULE: usize = 128;

/// The order of elements within a parameter.
pub(in crate::step) const ORDER: ElementOrder = ElementOrder::ChannelsLast;

/// The parameters of a layout in a flat tensor.
#[derive(Clone, Debug)]
pub(in crate::step) struct FlatPlacement {
    layout: ParameterLayout,
    device: Device,
    /// Start of every parameter.
    starts: Vec<usize>,
    len: usize,
    /// Padding of a parameter's last granule, by its length; made once, as each is a launch.
    fillings: BTreeMap<usize, Tensor<1>>,
}

impl FlatPlacement {
    pub(super) fn new(layout: &ParameterLayout, device: &Device) -> Self {
        let mut len = 0;
        let mut starts = Vec::with_capacity(layout.entries().len());
        let mut fillings = BTreeMap::new();
        for entry in layout.entries() {
            starts.push(len);
            len += padded(entry);
            let missing = padded(entry) - entry.len;
            if missing > 0 {
                fillings.insert(missing, Tensor::zeros([missing], device));
            }
        }
        Self {
            layout: layout.clone(),
            device: device.clone(),
            starts,
            len,
            fillings,
        }
    }

    /// Returns the number of elements of a flat tensor, with padding.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of granules of each parameter.
    pub(super) fn num_granules(&self) -> Vec<usize> {
        let entries = self.layout.entries().iter();
        entries.map(|entry| padded(entry) / GRANULE).collect()
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    pub(in crate::step) fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    /// Joins flat tensors of all parameters, `None` for zeros, in one, with `tail` after them.
    pub(super) fn joined(
        &self,
        tensors: impl IntoIterator<Item = Option<Tensor<1>>>,
        tail: Vec<Tensor<1>>,
    ) -> Tensor<1> {
        let mut parts = Vec::with_capacity(2 * self.starts.len());
        for (entry, tensor) in self.layout.entries().iter().zip(tensors) {
            parts.push(tensor.unwrap_or_else(|| Tensor::zeros([entry.len], &self.device)));
            parts.extend(self.fillings.get(&(padded(entry) - entry.len)).cloned());
        }
        parts.extend(tail);
        Tensor::cat(parts, 0)
    }

    /// Returns every parameter of a flat tensor, flat.
    pub(in crate::step) fn views(&self, whole: &Tensor<1>) -> Vec<Tensor<1>> {
        let entries = self.layout.entries().iter().zip(&self.starts);
        let views = entries.map(|(entry, &start)| {
            let with_zeros = whole.clone().slice(start..start + padded(entry));
            with_zeros
                .unfold::<2, _>(0, entry.len, padded(entry))
                .reshape([entry.len])
        });
        views.collect()
    }

    /// Copies values in module order to a flat tensor.
    pub(in crate::step) fn upload(&self, values: &[f32]) -> Tensor<1> {
        let mut placed = vec![0.0; self.len];
        self.each(|index, place| placed[place] = values[index]);
        Tensor::from_data(TensorData::new(placed, [self.len]), &self.device)
    }

    /// Reads a flat tensor's values back, in module order.
    pub(super) fn read(&self, whole: &Tensor<1>) -> Vec<f32> {
        let placed =
            floats(whole.clone().into_data()).expect("what was computed in f32 is read as f32");
        let mut values = vec![0.0; self.layout.num_elements()];
        self.each(|index, place| values[index] = placed[place]);
        values
    }

    /// Visits every element's index in module order, and its place.
    fn each(&self, mut visit: impl FnMut(usize, usize)) {
        for (entry, start) in self.layout.entries().iter().zip(&self.starts) {
            let (inputs, pixels) = match entry.shape[..] {
                [_, inputs, height, width] => (inputs, height * width),
                _ => (1, entry.len),
            };
            for index in 0..entry.len {
                let output = index / (inputs * pixels);
                let input = index / pixels % inputs;
                let pixel = index % pixels;
                let place = start + (output * pixels + pixel) * inputs + input;
                visit(entry.offset + index, place);
            }
        }
    }
}

/// Returns the length of a parameter's granules, in elements.
fn padded(entry: &ParameterEntry) -> usize {
    entry.len.next_multiple_of(GRANULE)
}

#[cfg(feature = "flex")]
#[cfg(test)]
mod tests {
    use burn::nn::conv::{Conv2d, Conv2dConfig};
    use burn::nn::{Linear, LinearConfig};
    use distributed::replica::{read, replace, tensors};

    use super::*;

    #[derive(burn::module::Module, Debug)]
    struct Net {
        conv: Conv2d,
        linear: Linear,
    }

    fn net(device: &Device) -> Net {
        Net {
            conv: Conv2dConfig::new([3, 5], [3, 2]).init(device),
            linear: LinearConfig::new(8, 64).init(device),
        }
    }

    #[test]
    fn values_go_to_a_device_and_come_back_in_module_order_from_wherever_they_lie() {
        let device = Device::flex();
        let net = net(&device);
        let layout = ParameterLayout::new(&net);
        let placement = FlatPlacement::new(&layout, &device);
        let expected = read(&net, &layout);
        let whole = placement.joined(
            tensors(&net, &layout, ORDER).into_iter().map(Some),
            Vec::new(),
        );
        assert_eq!(placement.read(&whole), expected);
        assert_eq!(placement.read(&placement.upload(&expected)), expected);
        // 90 and 5 of the convolution, 512 and 64 of the linear layer.
        assert_eq!(
            (placement.starts.as_slice(), placement.len),
            ([0, 128, 256, 768].as_slice(), 896)
        );
        // The padding is zero.
        assert_eq!(
            whole
                .clone()
                .slice(90..128)
                .abs()
                .sum()
                .into_scalar::<f32>(),
            0.0
        );
        let other = replace(self::net(&device), &layout, ORDER, placement.views(&whole));
        assert_eq!(read(&other, &layout), expected);
    }

    #[test]
    fn a_parameter_without_a_gradient_has_zeros() {
        let device = Device::flex();
        let layout = ParameterLayout::new(&net(&device));
        let placement = FlatPlacement::new(&layout, &device);
        let ones = layout
            .entries()
            .iter()
            .map(|entry| (entry.len != 5).then(|| Tensor::ones([entry.len], &device)));
        let values = placement.read(&placement.joined(ones, Vec::new()));
        assert_eq!(values.iter().filter(|value| **value == 0.0).count(), 5);
    }
}
