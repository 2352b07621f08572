"""Prints the expected values of trainer/src/step/optimizer/tests.rs.

In: nothing. Out: for each setting the parameters after five steps of timm's LARS and LAMB.
The steps are in f64. Parameters are printed flat, in module order, rounded to f32.
Needs: torch, timm 1.0, numpy.

The settings of timm give Lockstep's rules:
- LARS adds no epsilon to the norms.
- LAMB does not clip.
- Weights without decay have the trust ratio too.
- Parameters that are exempt from decay form a separate group without a ratio.
"""

import numpy
import torch
from timm.optim import Lamb, Lars

# A weight, a bias, and a zero weight, which has no trust ratio in the first step.
SHAPES = ((2, 2), (2,), (2, 1))
# LARS's paper includes the learning rate in the velocity. Only changing rates show the difference.
RATES = (0.1, 0.1, 0.05, 0.02, 0.2)


def parameters():
    """Returns the parameters of tests.rs."""
    values = torch.tensor([0.5, -1.25, 2.0, 0.75, 1.5, -0.5, 0.0, 0.0], dtype=torch.float64)
    return [part.reshape(shape).clone() for part, shape in zip(values.split([4, 2, 2]), SHAPES)]


def gradients(step):
    """Returns the gradients of tests.rs: eighths, which f32 represents exactly.

    In step 2 the first weight's gradient is zero, so that the weight has no ratio in LARS.
    """
    values = [((5 * index + 9 * step) % 11 - 5) / 8 for index in range(8)]
    values[:4] = [0.0] * 4 if step == 2 else values[:4]
    parts = torch.tensor(values, dtype=torch.float64).split([4, 2, 2])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES)]


def after_five_steps(make, weight_decay, decays_bias, **settings):
    """Returns the result of timm's single-tensor and multi-tensor steps, which must agree."""
    found = []
    for foreach in (False, True):
        first, bias, second = tensors = parameters()
        of_bias = {"weight_decay": weight_decay if decays_bias else 0.0, "always_adapt": decays_bias}
        groups = [
            {"params": [first, second], "weight_decay": weight_decay, "always_adapt": True}, {"params": [bias], **of_bias}
        ]
        optimizer = make(groups, foreach=foreach, **settings)
        for step, rate in enumerate(RATES):
            for group in optimizer.param_groups:
                group["lr"] = rate
            for tensor, gradient in zip(tensors, gradients(step)):
                tensor.grad = gradient
            optimizer.step()
        found.append(torch.cat([tensor.flatten() for tensor in tensors]))
    assert torch.allclose(*found, rtol=1e-12, atol=1e-14), found
    return ", ".join(str(value) for value in found[0].numpy().astype(numpy.float32))


if __name__ == "__main__":
    for nesterov, decays_bias, trust_coeff, weight_decay in (
        (False, False, 0.5, 0.01), (True, True, 0.5, 0.01), (False, False, 0.001, 0.01), (True, False, 0.5, 0.0)
    ):
        settings = {"momentum": 0.9, "nesterov": nesterov, "trust_coeff": trust_coeff, "eps": 0.0}
        values = after_five_steps(Lars, weight_decay, decays_bias, **settings)
        print("lars", nesterov, decays_bias, trust_coeff, weight_decay, f"[{values}]")
    for decays_bias, weight_decay in ((False, 0.01), (True, 0.01), (False, 0.0)):
        settings = {"betas": (0.9, 0.999), "eps": 1e-6, "max_grad_norm": None}
        values = after_five_steps(Lamb, weight_decay, decays_bias, **settings)
        print("lamb", decays_bias, weight_decay, f"[{values}]")
