//! The passes of a convolution and the packing of its weights; the convolutions of the CIFAR
//! ResNets and of ResNet-50.
//!
//! In: `cifar`, `resnet50`, `all`, or names such as `256->512@56k1s2`; `144->144@32k3s1g144` is
//! depthwise.
//! Out: measurements. `lab/peers/onednn_layers.py` has the same lists.
//! Source: He et al., arXiv 1512.03385, table 1 and section 4.2; strides of ResNet-50 as in
//! PyTorch.

use kernels::conv2d::{Addend, Conv2d, Conv2dShape, Epilogue};
use kernels::{Element, Storage};

use crate::{Bench, Work};

/// Images in a batch of ResNet-50, at most: with 128 a pass would take half a second.
const RESNET50_BATCH: usize = 8;
/// Channels of an image: no training needs its gradient.
const IMAGE_CHANNELS: usize = 3;

const CIFAR: &str = "3->16@32k3s1,16->16@32k3s1,16->32@32k3s2,32->32@16k3s1,32->64@16k3s2,64->64@8k3s1,16->32@32k1s2,32->64@16k1s2";
const RESNET50: &str = "64->64@56k1s1,64->256@56k1s1,256->64@56k1s1,256->128@56k1s1,512->128@28k1s1,128->512@28k1s1,\
1024->256@14k1s1,256->1024@14k1s1,512->2048@7k1s1,2048->512@7k1s1,256->512@56k1s2,512->1024@28k1s2,1024->2048@14k1s2,\
64->64@56k3s1,128->128@28k3s1,256->256@14k3s1,512->512@7k3s1,128->128@56k3s2,256->256@28k3s2,512->512@14k3s2,3->64@224k7s2";

/// Returns the shape of each convolution that `--layers` names.
pub(crate) fn named(layers: &str, batch: usize) -> Result<Vec<Conv2dShape>, String> {
    let of = |names: &str, batch: usize| -> Result<Vec<_>, String> {
        names.split(',').map(|name| shape(name, batch)).collect()
    };
    let large = batch.min(RESNET50_BATCH);
    match layers {
        "cifar" => of(CIFAR, batch),
        "resnet50" => of(RESNET50, large),
        "all" => Ok([of(CIFAR, batch)?, of(RESNET50, large)?].concat()),
        names => of(names, batch),
    }
}

fn shape(name: &str, batch: usize) -> Result<Conv2dShape, String> {
    let numbers: Option<Vec<usize>> = name
        .replace("->", " ")
        .split([' ', '@', 'k', 's', 'g'])
        .map(|number| number.parse().ok().filter(|number| *number > 0))
        .collect();
    let numbers = match numbers {
        Some(mut numbers) if matches!(numbers.len(), 5 | 6) && numbers[4] <= 2 => {
            numbers.resize(6, 1);
            numbers
        }
        _ => {
            return Err(format!(
                "--layers: expected cifar, resnet50, all, or names such as 256->512@56k1s2, got '{name}'"
            ));
        }
    };
    Ok(Conv2dShape {
        batch,
        height: numbers[2],
        width: numbers[2],
        in_channels: numbers[0],
        out_channels: numbers[1],
        kernel: [numbers[3]; 2],
        stride: numbers[4],
        padding: [numbers[3] / 2; 2],
        groups: numbers[5],
    })
}

/// Measures a layer, and its neighbours if asked for.
pub(crate) fn measure_among_neighbours<E: Element>(bench: &Bench, shape: Conv2dShape) {
    let channels = [shape.in_channels, shape.out_channels];
    bench.among_neighbours(channels, |[in_channels, out_channels]| {
        let groups = if shape.groups > 1 { in_channels } else { 1 };
        let shape = Conv2dShape {
            in_channels,
            out_channels,
            groups,
            ..shape
        };
        let mut layer = format!(
            "{in_channels}->{out_channels}@{}k{}s{}",
            shape.height, shape.kernel[0], shape.stride
        );
        if groups > 1 {
            layer += &format!("g{groups}");
        }
        measure::<E>(bench, &layer, shape);
    });
}

fn measure<E: Element>(bench: &Bench, layer: &str, shape: Conv2dShape) {
    let conv = Conv2d::new(shape, bench.algorithm, bench.isa, Storage::of::<E>());
    let measure = |operation: &str, storage, bytes, flops, call: &mut dyn FnMut()| {
        let batch = Some(shape.batch);
        bench.measure(
            Work {
                layer,
                batch,
                operation,
                storage,
                bytes,
                flops,
                copy: None,
            },
            call,
        );
    };
    let packing = |operation: &str, packed: usize, call: &mut dyn FnMut()| {
        measure(
            operation,
            Storage::F32,
            size_of::<f32>() * (shape.weight_len() + packed),
            None,
            call,
        );
    };
    let pass = |operation: &str, call: &mut dyn FnMut()| {
        let activations = size_of::<E>() * (shape.input_len() + shape.output_len());
        let bytes = activations + size_of::<f32>() * shape.weight_len();
        measure(
            operation,
            Storage::of::<E>(),
            bytes,
            Some(shape.flops()),
            call,
        );
    };
    let x = bench.values::<E>(shape.input_len());
    let dy = bench.values::<E>(shape.output_len());
    let weights = bench.values::<f32>(shape.weight_len());
    {
        let mut packed = bench.values(conv.packed_forward_len());
        packing("pack forward", packed.len(), &mut || {
            conv.pack_forward(&weights, &mut packed)
        });
        let mut y = bench.values::<E>(shape.output_len());
        let mut workspace = bench.values(conv.forward_workspace_len());
        let mut moments = vec![0.0; 2 * shape.out_channels];
        pass("forward", &mut || {
            conv.forward(&x, &packed, &mut y, &mut workspace, Epilogue::None)
        });
        pass("forward with moments", &mut || {
            let epilogue = Epilogue::Moments(&mut moments);
            conv.forward(&x, &packed, &mut y, &mut workspace, epilogue);
        });
    }
    if shape.in_channels != IMAGE_CHANNELS {
        let mut packed = bench.values(conv.packed_data_gradient_len());
        packing("pack data gradient", packed.len(), &mut || {
            conv.pack_data_gradient(&weights, &mut packed)
        });
        let mut dx = bench.values::<E>(shape.input_len());
        let mut workspace = bench.values(conv.data_gradient_workspace_len());
        pass("data gradient", &mut || {
            conv.data_gradient(&dy, &packed, Addend::None, &mut dx, &mut workspace);
        });
    }
    let mut dw = bench.values(shape.weight_len());
    let mut workspace = bench.values(conv.weight_gradient_workspace_len());
    pass("weight gradient", &mut || {
        conv.weight_gradient(&x, &dy, &mut dw, &mut workspace)
    });
}
