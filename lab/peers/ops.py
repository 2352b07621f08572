"""PyTorch's time for operations outside convolution layers, forward and backward, on one thread, channels-last, eager.

A time is the minimum over repetitions. With --ours, rounds of PyTorch and of the example `ops` alternate, and each time is the
minimum over the rounds. Prints the table "operation, format, ours ms, PyTorch ms, ratio".

    cargo build --release -p lockstep-layers --example ops
    python ops.py --ours target/release/examples/ops softmax
"""

import argparse
import json
import shlex
import subprocess
import time

import torch
import torch.nn.functional as F

IMAGES = (16, 64, 32, 32)
SECONDS = 0.4


def best_ms(work):
    """The minimum over at least five repetitions and about SECONDS."""
    work()
    best, end, count = float("inf"), time.perf_counter() + SECONDS, 0
    while count < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best, count = min(best, time.perf_counter() - start), count + 1
    return best * 1e3


def attention(x, causal):
    """All heads of [N, tokens, 3 * heads * width], as `layers::attention`."""
    n, tokens, channels = x.shape
    q, k, v = x.view(n, tokens, 3, 4, channels // 12).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).reshape(n, tokens, channels // 3)


def conv(*args, **kwargs):
    """A convolution without bias, its weights channels-last."""
    return torch.nn.Conv2d(*args, **kwargs, bias=False).to(memory_format=torch.channels_last)


class SeResNeXt(torch.nn.Module):
    """The block of that name in layers/benches/ops.rs."""

    def __init__(self):
        super().__init__()

        def layer(channels, side, groups):
            conv = torch.nn.Conv2d(*channels, side, padding=side // 2, groups=groups, bias=False)
            return torch.nn.Sequential(conv, torch.nn.BatchNorm2d(channels[1]))

        self.layers = torch.nn.Sequential(
            layer((256, 128), 1, 1), torch.nn.ReLU(), layer((128, 128), 3, 32), torch.nn.ReLU(), layer((128, 256), 1, 1)
        )
        self.gate = torch.nn.Sequential(torch.nn.Linear(256, 16), torch.nn.ReLU(), torch.nn.Linear(16, 256), torch.nn.Sigmoid())

    def forward(self, x):
        y = self.layers(x)
        return torch.relu(y * self.gate(y.mean((2, 3)))[:, :, None, None] + x)


def operations():
    """The shape of x and the operation, by the names in layers/benches/ops.rs."""
    return {
        "dropout": (IMAGES, torch.nn.Dropout(0.1)),
        "leaky relu": (IMAGES, torch.nn.LeakyReLU(0.01)),
        "sigmoid": (IMAGES, torch.nn.Sigmoid()),
        "tanh": (IMAGES, torch.nn.Tanh()),
        "hard swish": (IMAGES, torch.nn.Hardswish()),
        "gelu": (IMAGES, torch.nn.GELU()),
        "silu": (IMAGES, torch.nn.SiLU()),
        "softmax": ((512, 1000), torch.nn.Softmax(1)),
        "softmax of 10": ((65536, 10), torch.nn.Softmax(1)),
        "log softmax": ((512, 1000), torch.nn.LogSoftmax(1)),
        "cross entropy": ((512, 1000), lambda x, t=torch.eye(512, 1000): F.cross_entropy(x, t.to(x.dtype), reduction="sum")),
        "attention": ((8, 256, 768), lambda x: attention(x, False)),
        "causal attention": ((8, 256, 768), lambda x: attention(x, True)),
        "group norm": (IMAGES, torch.nn.GroupNorm(8, 64)),
        "layer norm": ((16, 256, 256), torch.nn.LayerNorm(256)),
        "max pool 2x2": (IMAGES, torch.nn.MaxPool2d(2)),
        "average pool 2x2": (IMAGES, torch.nn.AvgPool2d(2)),
        "relu": (IMAGES, torch.nn.ReLU()),
        "cat": (IMAGES, lambda x: torch.cat([x, x], 1)),
        "nearest x2": (IMAGES, torch.nn.Upsample(scale_factor=2)),
        "bilinear x2": (IMAGES, torch.nn.Upsample(scale_factor=2, mode="bilinear")),
        "convolution 4 groups": (IMAGES, conv(64, 64, 3, padding=1, groups=4)),
        "convolution 32 groups": ((8, 128, 28, 28), conv(128, 128, 3, padding=1, groups=32)),
        "convolution stride 3": (IMAGES, conv(64, 64, 3, stride=3)),
        "convolution dilated": (IMAGES, conv(64, 64, 3, padding=2, dilation=2)),
        "convolution 1x7": (IMAGES, conv(64, 64, (1, 7), padding=(0, 3))),
        "convolution 7x1": (IMAGES, conv(64, 64, (7, 1), padding=(3, 0))),
        "depthwise 9x9": (IMAGES, conv(64, 64, 9, padding=4, groups=64)),
        "depthwise doubled": (IMAGES, conv(64, 128, 3, padding=1, groups=64)),
        "SE-ResNeXt block": ((8, 256, 28, 28), SeResNeXt().to(memory_format=torch.channels_last)),
        "transposed convolution 2x2": (
            IMAGES,
            torch.nn.ConvTranspose2d(64, 64, 2, stride=2).to(memory_format=torch.channels_last),
        ),
    }


def theirs(words):
    """PyTorch's times by operation and format."""
    times = {}
    for name, (shape, operation) in operations().items():
        if words and not any(word in name for word in words):
            continue
        for label, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            x = torch.randn(shape, dtype=dtype)
            if len(shape) == 4:
                x = x.to(memory_format=torch.channels_last)
            x.requires_grad_()
            if isinstance(operation, torch.nn.Module):
                operation.to(dtype)
            wanted = [x, *(operation.parameters() if isinstance(operation, torch.nn.Module) else [])]

            dy = torch.ones_like(operation(x))

            def work(x=x, operation=operation, wanted=wanted, dy=dy):
                torch.autograd.grad(operation(x), wanted, dy)

            times[name, label] = best_ms(work)
    return times


def ours(command, words):
    """The times of the example `ops`, and whether burn computed it."""
    out = subprocess.run([*shlex.split(command), *words], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {(line["operation"], line["dtype"]): line for line in map(json.loads, out.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of both programs (default: %(default)s)")
    parser.add_argument("--ours", metavar="COMMAND", default="", help="the example `ops`, run in turn with PyTorch")
    parser.add_argument("words", nargs="*", help="measure only operations whose name contains a word")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rounds = []
    for _ in range(arguments.rounds):
        mine = ours(arguments.ours, arguments.words) if arguments.ours else {}
        rounds.append((theirs(arguments.words), mine))
    print("| operation | format | ours, ms | PyTorch, ms | ratio |\n|---|---|---|---|---|")
    for key in rounds[0][0]:
        torch_ms = min(times[key] for times, _ in rounds)
        mine = [lines[key] for _, lines in rounds if key in lines]
        if mine:
            ms = min(line["ms"] for line in mine)
            name = key[0] + (" (burn)" if mine[0]["fallback"] else "")
            print(f"| {name} | {key[1]} | {ms:.3f} | {torch_ms:.3f} | {ms / torch_ms:.2f} |")
        else:
            print(f"| {key[0]} | {key[1]} | | {torch_ms:.3f} | |")


if __name__ == "__main__":
    main()
