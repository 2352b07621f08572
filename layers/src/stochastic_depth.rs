//! Stochastic depth: skips the branch of a residual block for some samples.
//!
//! In: the output of a branch, with samples on the first axis.
//! Out: zero for some samples, scaled values for the others.
//! Invariant: only in training; the mean over draws is the input.
//! Source: Huang et al. 2016, arXiv 1603.09382, as torchvision's `stochastic_depth` in mode "row"
//! and timm's `DropPath`.

use burn::tensor::{Distribution, Tensor};

/// Sets each sample of `branch` to zero with `probability`, and divides the other samples by `1 -
/// probability`. Outside training, on a device without autodiff, it returns the unchanged branch.
///
/// The random numbers are burn's, as in burn's `Dropout`, and differ between ranks.
///
/// # Panics
/// If `probability` is not in `[0, 1)`.
pub fn stochastic_depth<const D: usize>(branch: Tensor<D>, probability: f64) -> Tensor<D> {
    assert!(
        (0.0..1.0).contains(&probability),
        "probability: expected 0 up to but not 1, got {probability}"
    );
    let device = branch.device();
    if probability == 0.0 || !device.is_autodiff() {
        return branch;
    }
    let mut shape = [1; D];
    shape[0] = branch.dims()[0];
    let stays = Tensor::<D>::random(
        shape,
        Distribution::Bernoulli(1.0 - probability),
        (&device, branch.dtype()),
    );
    branch * stays.div_scalar(1.0 - probability)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn a_sample_stays_whole_and_scaled_or_is_zero_and_evaluation_sees_nothing_of_it() {
        let device = Device::flex().autodiff();
        let branch = Tensor::<3>::ones([4000, 3, 2], &device).require_grad();
        let output = stochastic_depth(branch.clone(), 0.2);
        let values = output
            .clone()
            .into_data()
            .convert::<f32>()
            .try_into_vec::<f32>()
            .unwrap();
        let samples: Vec<&[f32]> = values.chunks(6).collect();
        assert!(
            samples
                .iter()
                .all(|sample| *sample == [0.0; 6] || *sample == [1.25; 6])
        );
        let num_zero = samples.iter().filter(|sample| sample[0] == 0.0).count();
        // Five standard deviations of a binomial with n = 4,000 and p = 1/5 are 126.
        assert!(num_zero.abs_diff(800) < 126, "{num_zero}");
        let gradient = branch
            .grad(&output.sum().backward())
            .unwrap()
            .into_data()
            .convert::<f32>();
        assert_eq!(
            gradient.as_slice::<f32>().unwrap(),
            values,
            "a branch that is left out has no gradient"
        );
        let still = stochastic_depth(branch.inner(), 0.2).into_data();
        assert_eq!(still.as_slice::<f32>().unwrap(), [1.0; 24_000]);
    }
}
