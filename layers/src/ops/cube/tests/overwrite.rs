//! A recording on any adapter that makes one.

#![allow(clippy::unwrap_used, clippy::print_stderr)] // A failed unwrap here is a failed test.

use burn::tensor::{Device, DeviceKind, Tensor};

use super::adapter;
use crate::backend::overwrite;
use gpu::CapturedStep;

#[test]
fn a_replay_reads_what_was_overwritten_and_writes_where_the_next_one_reads() {
    let Some((_alone, _)) = adapter() else { return };
    let device = Device::wgpu(DeviceKind::DefaultDevice);
    let full = |value: f32| Tensor::<1>::from_data([value; 1001], &device);
    let input = full(1.0);
    let state = full(0.0);
    let step = {
        let input = input.clone();
        let state = state.clone();
        move || {
            let new = state.clone() * 0.5 + input.clone();
            (overwrite(&state, new.clone()), new)
        }
    };
    let Some(mut recorded) = CapturedStep::capture(&device, step) else {
        eprintln!("NOT CHECKED: captured steps, which this adapter does not support");
        return;
    };
    let _restored = overwrite(&state, full(0.0));
    let mut expected = 0.0;
    for value in [1.0, 3.0, -2.0] {
        let _given = overwrite(&input, full(value));
        let (_, made) = recorded.replay();
        expected = expected * 0.5 + value;
        let read = |tensor: &Tensor<1>| tensor.clone().into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(read(made), vec![expected; 1001]);
        assert_eq!(read(&state), vec![expected; 1001]);
    }
}
