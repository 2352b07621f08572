"""PyTorch's time for networks of several families, forward and backward, in f32 on one thread, channels-last.

Rounds of PyTorch and of the example `networks` of layers alternate; a time is the minimum over the steps of a round. With --compile,
PyTorch runs each network eagerly and by torch.compile. Prints rows of docs/results/bench.csv, and ratios to the standard error.

    cargo build -p lockstep-layers --example network_bench
    python networks.py --ours target/debug/examples/network_bench --compile gpt mixer
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from datetime import date

import torch
import torch.nn.functional as F
from torch import nn

SECONDS = 2
MIN_STEPS = 3


def conv_norm(c_in, c_out, side, stride=1, groups=1, norm=nn.BatchNorm2d):
    return nn.Sequential(conv(c_in, c_out, side, stride, groups), norm(c_out))


def conv(c_in, c_out, side, stride=1, groups=1):
    return nn.Conv2d(c_in, c_out, side, stride, side // 2, groups=groups, bias=False)


class Gate(nn.Module):
    def __init__(self, channels, squeezed, function):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(channels, squeezed), function, nn.Linear(squeezed, channels), nn.Sigmoid())

    def forward(self, x):
        return x * self.layers(x.mean((2, 3)))[:, :, None, None]


class Residual(nn.Module):
    def __init__(self, body, shortcut=None, last=None):
        super().__init__()
        self.body, self.shortcut, self.last = body, shortcut or nn.Identity(), last or nn.Identity()

    def forward(self, x):
        return self.last(self.body(x) + self.shortcut(x))


class Dense(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return torch.cat([x, self.body(x)], 1)


class Classifier(nn.Module):
    """Loss of classified images of 32 x 32 pixels."""

    def __init__(self, layers, channels, images):
        super().__init__()
        self.layers, self.last = nn.Sequential(*layers), nn.Linear(channels, 10)
        self.images = torch.randn(images, 3, 32, 32).to(memory_format=torch.channels_last)
        self.targets = torch.arange(images) % 10

    def forward(self):
        return F.cross_entropy(self.last(self.layers(self.images).mean((2, 3))), self.targets, reduction="sum")


def se_resnext():
    layers, c_in = [conv_norm(3, 64, 3), nn.ReLU()], 64
    for c_out, first_stride in ((256, 1), (512, 2), (1024, 2)):
        for block in range(3):
            width, stride = c_out // 2, first_stride if block == 0 else 1
            body = nn.Sequential(
                conv_norm(c_in, width, 1),
                nn.ReLU(),
                conv_norm(width, width, 3, stride, 32),
                nn.ReLU(),
                conv_norm(width, c_out, 1),
                Gate(c_out, c_out // 16, nn.ReLU()),
            )
            layers.append(Residual(body, conv_norm(c_in, c_out, 1, stride) if c_in != c_out else None, nn.ReLU()))
            c_in = c_out
    return Classifier(layers, c_in, 16)


def group_norm_resnet():
    def layer(c_in, c_out, side, stride):
        return conv_norm(c_in, c_out, side, stride, norm=lambda channels: nn.GroupNorm(8, channels))

    layers, c_in = [layer(3, 16, 3, 1), nn.ReLU()], 16
    for c_out in (16, 32, 64):
        for _ in range(3):
            stride = 1 if c_in == c_out else 2
            body = nn.Sequential(layer(c_in, c_out, 3, stride), nn.ReLU(), layer(c_out, c_out, 3, 1))
            layers.append(Residual(body, layer(c_in, c_out, 1, stride) if c_in != c_out else None, nn.ReLU()))
            c_in = c_out
    return Classifier(layers, c_in, 64)


def densenet():
    growth, channels = 12, 24
    layers = [conv(3, channels, 3)]
    for stage in range(3):
        for _ in range(6):
            first = [nn.BatchNorm2d(channels), nn.ReLU(), conv(channels, 4 * growth, 1)]
            second = [nn.BatchNorm2d(4 * growth), nn.ReLU(), conv(4 * growth, growth, 3)]
            layers.append(Dense(nn.Sequential(*first, *second)))
            channels += growth
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        if stage < 2:
            layers += [conv(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
    return Classifier(layers, channels, 32)


def efficientnet():
    layers, c_in = [conv_norm(3, 32, 3), nn.SiLU()], 32
    for c_out, widening, count, first_stride, side in (
        (16, 1, 1, 1, 3), (24, 6, 2, 1, 3), (40, 6, 2, 2, 5), (80, 6, 3, 2, 3), (112, 6, 3, 1, 5), (192, 6, 2, 2, 5)
    ):
        for block in range(count):
            wide, stride = c_in * widening, first_stride if block == 0 else 1
            body = [conv_norm(c_in, wide, 1), nn.SiLU()] if widening > 1 else []
            body += [conv_norm(wide, wide, side, stride, wide), nn.SiLU(), Gate(wide, c_in // 4, nn.SiLU()), conv_norm(wide, c_out, 1)]
            body = nn.Sequential(*body)
            layers.append(Residual(body) if c_in == c_out and stride == 1 else body)
            c_in = c_out
    return Classifier([*layers, conv_norm(c_in, 640, 1), nn.SiLU()], 640, 32)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()

        def pair(c_in, c_out):
            return nn.Sequential(conv_norm(c_in, c_out, 3), nn.ReLU(), conv_norm(c_out, c_out, 3), nn.ReLU())

        self.down = nn.ModuleList([pair(3, 32), pair(32, 64), pair(64, 128)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(128, 64, 2, 2), nn.ConvTranspose2d(64, 32, 2, 2)])
        self.joined = nn.ModuleList([pair(128, 64), pair(64, 32)])
        self.last = nn.Conv2d(32, 1, 1)
        self.images = torch.randn(8, 3, 64, 64).to(memory_format=torch.channels_last)
        self.masks = (torch.rand(8, 1, 64, 64) < 0.5).float()

    def forward(self):
        outer = self.down[0](self.images)
        middle = self.down[1](F.max_pool2d(outer, 2))
        y = self.down[2](F.max_pool2d(middle, 2))
        for up, pair, skip in zip(self.up, self.joined, (middle, outer), strict=True):
            y = pair(torch.cat([skip, up(y)], 1))
        return F.binary_cross_entropy_with_logits(self.last(y), self.masks, reduction="sum")


def mlp(channels, wide):
    return nn.Sequential(nn.Linear(channels, wide), nn.GELU(), nn.Linear(wide, channels))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.mlp = nn.LayerNorm(width), mlp(width, 4 * width)

    def forward(self, x):
        n, tokens, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, tokens, width)
        x = x + self.proj(mixed)
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, blocks, heads, width, tokens, samples):
        super().__init__()
        self.characters, self.positions = nn.Embedding(128, width), nn.Embedding(tokens, width)
        for table in (self.characters, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.blocks = nn.Sequential(*[GptBlock(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.inputs = (torch.arange(samples * tokens) * 7 % 128).view(samples, tokens)

    def forward(self):
        x = self.blocks(self.characters(self.inputs) + self.positions.weight)
        logits = F.linear(self.norm(x), self.characters.weight)
        return F.cross_entropy(logits.flatten(0, 1), self.inputs.flatten(), reduction="sum")


class MixerBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.tokens = nn.LayerNorm(width), mlp(64, 256)
        self.norm2, self.channels = nn.LayerNorm(width), mlp(width, 4 * width)

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class MixerTrunk(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.patches = nn.Linear(48, width)
        self.blocks = nn.Sequential(*[MixerBlock(width) for _ in range(4)])
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        n = len(x)
        windows = x.permute(0, 2, 3, 1).reshape(n, 8, 4, 8, 4, 3).permute(0, 1, 3, 2, 4, 5).reshape(n, 64, 48)
        return self.norm(self.blocks(self.patches(windows))).view(n, 8, 8, -1).permute(0, 3, 1, 2)


NETWORKS = {
    "se-resnext29": se_resnext,
    "gpt": lambda: Gpt(4, 4, 128, 64, 12),
    "gpt-wide": lambda: Gpt(3, 12, 768, 128, 2),
    "mixer": lambda: Classifier([MixerTrunk(512)], 512, 16),
    "unet": UNet,
    "group-norm-resnet20": group_norm_resnet,
    "densenet-bc40": densenet,
    "efficientnet": efficientnet,
}


def best_ms(step, parameters):
    """The minimum over at least MIN_STEPS steps and about SECONDS."""
    best, end, count = float("inf"), time.perf_counter() + SECONDS, 0
    while count < MIN_STEPS or time.perf_counter() < end:
        for parameter in parameters:
            parameter.grad = None
        start = time.perf_counter()
        step().backward()
        best, count = min(best, time.perf_counter() - start), count + 1
    return best * 1e3


def ours(command, names):
    out = subprocess.run([*shlex.split(command), *names], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {line["network"]: line for line in map(json.loads, out.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all programs (default: %(default)s)")
    parser.add_argument("--ours", metavar="COMMAND", required=True, help="the example `networks`")
    parser.add_argument("--machine", default="zen4", help="name in docs/results/machines.csv (default: %(default)s)")
    parser.add_argument("--compile", action="store_true", help="torch.compile, too")
    parser.add_argument("names", nargs="*", help="measure only these networks")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    for name, make in NETWORKS.items():
        if arguments.names and name not in arguments.names:
            continue
        network = make()
        if name not in ("gpt", "gpt-wide", "mixer"):
            network.to(memory_format=torch.channels_last)
        parameters = list(network.parameters())
        programs = {"PyTorch default": network}
        if arguments.compile:
            programs["PyTorch compiled"] = torch.compile(network)
        for step in programs.values():
            step().backward()
        times = {program: [] for program in ("Lockstep", *programs)}
        for _ in range(arguments.rounds):
            line = ours(arguments.ours, [name])[name]
            times["Lockstep"].append(line["ms"])
            for program, step in programs.items():
                times[program].append(best_ms(step, parameters))
        # burn counts running statistics, too.
        count = sum(tensor.numel() for tensor in [*parameters, *network.buffers()] if tensor.dim())
        assert count == line["parameters"], (name, count, line["parameters"])
        pixels = {"unet": 64, "gpt": "", "gpt-wide": ""}.get(name, 32)
        for program, values in times.items():
            speeds = " ".join(f"{line['samples'] / ms * 1e3:.4g}" for ms in values)
            row = [name, pixels, line["samples"], 1, "", arguments.machine, "f32", program, "", speeds, "", "", date.today(), commit, "networks"]
            print(*row, sep=",", flush=True)
            ratios = [theirs / own for theirs, own in zip(values, times["Lockstep"], strict=True)]
            ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            print(f"    {program}: {ratio}, kernels {line['kernels_ms']:.1f} of {line['ms']:.1f} ms {line['fallbacks']}", file=sys.stderr)


if __name__ == "__main__":
    main()
