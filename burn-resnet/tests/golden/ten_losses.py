"""Prints what imagenet.rs expects: parameters and ten losses of ResNet-18 and -34 in f64.

In: nothing. Out: for each network the number of its parameters and the losses of ten steps of SGD. Weights and images are numbers without
a pattern that the test makes too, so that no file of 45 MB is kept.
Needs: torch, numpy.
"""

import numpy
import torch
import torch.nn.functional as F
from published import ResNet


def numbers(length, salt):
    """In -1..1, as numbers() of support/ten_losses.rs."""
    bits = (numpy.arange(1, length + 1, dtype=numpy.uint64) * 2654435761 + salt * 40503001) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 15)) * 2246822519) & 0xFFFFFFFF
    return (bits >> 8).astype(numpy.float32) / numpy.float32(1 << 23) - numpy.float32(1)


def number(model):
    """Gives every parameter its numbers, in f64."""
    for salt, (name, parameter) in enumerate(model.named_parameters(), 1):
        values = numbers(parameter.numel(), salt)
        if name.endswith("weight") and parameter.dim() > 1:
            values *= numpy.float32((6 / parameter[0].numel()) ** 0.5)
        elif name.endswith(("weight", "gamma")):
            values = 1 + values / 2
        parameter.data = torch.from_numpy(values).reshape(parameter.shape).double()
    return model.double().train()


def ten_losses(model, learning_rate=0.0002, size=16):
    """Of ten steps of SGD over four images of this height and width."""
    images = torch.from_numpy(numbers(4 * size * size * 3, 0)).reshape(4, size, size, 3).permute(0, 3, 1, 2).double()
    labels = torch.tensor([3, 8, 0, 5])
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, 0.9, weight_decay=1e-4)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [float(f"{loss:.7g}") for loss in losses]


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    for depth in (18, 34):
        model = number(ResNet(depth, "B"))
        print(depth, count(model), ten_losses(model))
