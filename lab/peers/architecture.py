"""The networks of the comparison as a list of layers, for frameworks that build their own.

In: a depth. Out: convolutions with their normalisations in order of use, blocks, under the names of the exchanged weights.
Invariant: all frameworks build the same network: no layer has a bias but the last, batch normalisation has an epsilon of 1e-5 and
keeps nine tenths of its running statistics, a shortcut that changes the shape takes every second pixel and pads channels with
zeros on both sides.
Source: He et al. 2015, arXiv 1512.03385, section 4.2, option A.
"""

from typing import NamedTuple

EPSILON = 1e-5
KEPT_STATISTICS = 0.9
WIDTHS = (16, 32, 64)


class Layer(NamedTuple):
    """A 3x3 convolution with a padding of 1 and the batch normalisation after it."""

    convolution: str
    norm: str
    c_in: int
    c_out: int
    stride: int


class Block(NamedTuple):
    """Two layers and the shortcut around them; `padding` channels are added to it on each side."""

    first: Layer
    second: Layer
    stride: int
    padding: int


STEM = Layer("conv1", "bn1", 3, WIDTHS[0], 1)
HEAD = "linear"


def blocks(depth):
    """The blocks of a network with this many weighted layers."""
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth: expected 6n + 2, got {depth}")
    c_in, result = WIDTHS[0], []
    for stage, c_out in enumerate(WIDTHS):
        for index in range((depth - 2) // 6):
            stride = 2 if stage and not index else 1
            name = f"layer{stage + 1}.{index}"
            first = Layer(f"{name}.conv1", f"{name}.bn1", c_in, c_out, stride)
            second = Layer(f"{name}.conv2", f"{name}.bn2", c_out, c_out, 1)
            result.append(Block(first, second, stride, (c_out - c_in) // 2))
            c_in = c_out
    return result
