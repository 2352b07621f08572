"""Prints what every_layer.rs expects: for each layer the checksum of its output and of the gradients of input and parameters, in f64.

In: nothing. Out: a Rust constant. Values are `pattern(count, seed)`, the input's with seed 0, parameter k's with seed k + 1 in burn's order and
layout; a checksum is the product with another pattern. Activations are `[N, H, W, C]` outside the layers.
Needs: torch.
"""

import torch
import torch.nn.functional as F
from torch import nn


def pattern(count, seed):
    return (((torch.arange(count) * 37 + seed * 11) % 101).double() - 50.5) / 64


def checksum(tensor, seed):
    flat = tensor.reshape(-1)
    return float((flat * pattern(flat.numel(), seed)).sum())


def planes(x):
    return x.permute(0, 3, 1, 2)


def last(x):
    return x.permute(0, 2, 3, 1)


def conv(c_in, c_out, kernel, stride=1, groups=1, bias=True):
    return nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=bias)


def attention(x):
    n, tokens, width = x.shape
    q, k, v = x.reshape(n, tokens, 3, 2, width // 6).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width // 3)


def shortcut(x):
    return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))


def norm(channels):
    return nn.BatchNorm2d(channels)


def last_of(*modules):
    return modules, lambda x: last(nn.Sequential(*modules)(planes(x)))


C = 8
IMAGES = (2, 6, 5, C)
a, b = conv(C, C, 3, bias=False), norm(C)
c, d = conv(C, C + 4, 3, 2, bias=False), norm(C + 4)
e, f = norm(C), conv(C, C, 1, bias=False)
linear, layer_norm = nn.Linear(C, 12), nn.LayerNorm(C, eps=1e-5)
LAYERS = [
    ("convolution", IMAGES, *last_of(conv(C, 12, 3))),
    ("convolution 1x1, stride 2", IMAGES, *last_of(conv(C, 12, 1, 2, bias=False))),
    ("depthwise 5x5, stride 2", IMAGES, *last_of(conv(C, C, 5, 2, C))),
    ("depthwise 7x7", IMAGES, *last_of(conv(C, C, 7, 1, C, bias=False))),
    ("depthwise 3x3, stride 2", IMAGES, *last_of(conv(C, C, 3, 2, C, bias=False))),
    ("depthwise 5x5", IMAGES, *last_of(conv(C, C, 5, 1, C))),
    ("depthwise 7x7, stride 2", IMAGES, *last_of(conv(C, C, 7, 2, C))),
    ("batch norm", IMAGES, *last_of(norm(C))),
    ("convolution, norm", IMAGES, *last_of(conv(C, 12, 3, bias=False), norm(12))),
    ("convolution, norm, residual, ReLU", IMAGES, (a, b), lambda x: last(F.relu(b(a(planes(x))) + planes(x)))),
    ("convolution, norm, shortcut A, ReLU", IMAGES, (c, d), lambda x: last(F.relu(d(c(planes(x))) + shortcut(planes(x))))),
    ("depthwise 3x3, norm, ReLU6", IMAGES, *last_of(conv(C, C, 3, 1, C, False), norm(C), nn.ReLU6())),
    ("norm, ReLU, convolution", IMAGES, (e, f), lambda x: last(f(F.relu(e(planes(x)))))),
    ("linear layer", IMAGES, (linear,), linear),
    ("layer norm", IMAGES, (layer_norm,), layer_norm),
    ("GELU", IMAGES, (), F.gelu),
    ("SiLU", IMAGES, (), F.silu),
    ("ReLU", IMAGES, (), F.relu),
    ("ReLU6", IMAGES, (), lambda x: F.relu6(8 * x)),
    ("attention", (2, 7, 48), (), attention),
    ("max pool", IMAGES, (), lambda x: last(F.max_pool2d(planes(x), 3, 2, 1))),
    ("average pool", IMAGES, (), lambda x: last(F.avg_pool2d(planes(x), 2, 2))),
    ("global average pool", IMAGES, (), lambda x: x.mean((1, 2))),
]

if __name__ == "__main__":
    for name, shape, modules, forward in LAYERS:
        x = pattern(torch.Size(shape).numel(), 0).reshape(shape).requires_grad_()
        parameters = [(p, isinstance(m, nn.Linear)) for m in modules for p in m.double().parameters()]
        for index, (parameter, is_linear) in enumerate(parameters):
            values = pattern(parameter.numel(), index + 1)
            turned = is_linear and parameter.dim() == 2
            parameter.data = values.reshape(parameter.T.shape).T if turned else values.reshape(parameter.shape)
        y = forward(x)
        loss = (y.reshape(-1) * pattern(y.numel(), 50)).sum()
        loss.backward()
        gradients = [x.grad] + [p.grad.T if is_linear and p.dim() == 2 else p.grad for p, is_linear in parameters]
        sums = [loss.item()] + [checksum(gradient, 60) for gradient in gradients]
        print(f'    ("{name}", &[{", ".join(repr(value) for value in sums)}]),')
