//! Dropout draws from the generator of the device. All threads of a program share that generator,
//! so this test is a separate program.

use burn::tensor::{Device, FloatDType, Tensor};
use layers::DropoutConfig;

#[test]
fn dropout_draws_the_same_mask_after_the_same_seed_in_every_format() {
    let dropout = DropoutConfig::new(0.25).init();
    let device = Device::flex().autodiff();
    let masks = |dtype: FloatDType| {
        device.seed(3);
        let x = Tensor::<3>::ones([20, 50, 3], &device).cast(dtype);
        [(); 2].map(|()| {
            let y = dropout.forward(x.clone()).inner().cast(FloatDType::F32);
            let values = y.into_data().try_to_vec::<f32>().expect("values in f32");
            values.iter().map(|y| *y != 0.0).collect::<Vec<bool>>()
        })
    };
    let [first, second] = masks(FloatDType::F32);
    assert_ne!(first, second);
    assert_eq!(masks(FloatDType::F32), [first.clone(), second.clone()]);
    assert_eq!(masks(FloatDType::BF16), [first, second]);
}
