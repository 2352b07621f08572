"""Prints the expected values of tasks.rs, in f64, for the networks of char_gpt, unet and several_heads.

In: nothing. Out: for each network the number of parameters and the mean losses of ten steps of SGD.
Parameters have the order of the Rust modules. The batch of char_gpt is the last one of its text;
its last piece is short. The other batches are numbers that the test computes as well.

With --speed NAME BATCH: prints the samples/s of training steps in f32, channels-last and eager mode.
`target/release/examples/NAME bench --batch-size-per-rank BATCH --threads 1` measures the same
steps. Run both in turn.

Needs: torch, numpy.
"""

import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(Path(__file__).parents[3] / "burn-resnet/tests/golden"))
from ten_losses import count, number, numbers

TEXT = Path("/usr/share/common-licenses/GPL-3")
CONTEXT = 64


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(n, t, width))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary=128, width=64, heads=4, blocks=2):
        super().__init__()
        self.bytes = nn.Parameter(0.02 * torch.randn(vocabulary, width))
        self.positions = nn.Parameter(0.02 * torch.randn(CONTEXT, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)

    def forward(self, inputs):
        x = F.embedding(inputs, self.bytes) + self.positions
        return self.norm(self.blocks(x)) @ self.bytes.T

    def loss_sum(self, inputs, targets, counts):
        losses = F.cross_entropy(self(inputs).transpose(1, 2), targets, reduction="none")
        return (losses * counts).sum()


class Layer(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(c_out)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.outer = Layer(1, 16, 1)
        self.inner = Layer(16, 32, 2)
        self.joined = Layer(48, 16, 1)
        self.head = nn.Conv2d(16, 1, 1)

    def forward(self, images):
        outer = self.outer(images)
        inner = F.interpolate(self.inner(outer), scale_factor=2, mode="nearest")
        return self.head(self.joined(torch.cat([outer, inner], 1)))

    def loss_sum(self, images, masks):
        return F.binary_cross_entropy_with_logits(self(images), masks, reduction="sum")


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(c_in, c_out, 3, 2, 1, bias=False) for c_in, c_out in ((1, 16), (16, 32))])
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels) for channels in (16, 32)])
        self.shapes = nn.Linear(32, 3)
        self.brightness = nn.Linear(32, 1)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x)))
        x = x.mean((2, 3))
        return self.shapes(x), self.brightness(x)

    def loss_sum(self, images, labels, targets):
        shapes, brightness = self(images)
        of_shapes = F.binary_cross_entropy_with_logits(shapes, labels, reduction="sum")
        return of_shapes + F.mse_loss(brightness, targets, reduction="sum")


def last_pieces(num_pieces):
    """Returns the last pieces of the training text: bytes, next bytes, and 1 where there is one."""
    text = TEXT.read_bytes()
    text = text[: len(text) // 10 * 9]
    first = ((len(text) - 1 + CONTEXT - 1) // CONTEXT - num_pieces) * CONTEXT
    length = num_pieces * CONTEXT
    padded = torch.tensor(list(text[first:]) + [0] * (length + 1))
    counts = (torch.arange(length) + first + 1 < len(text)).double()
    return [part.reshape(-1, CONTEXT) for part in (padded[:length], padded[1 : length + 1], counts)]


def made(salt, *shape):
    return torch.from_numpy(numbers(torch.Size(shape).numel(), salt)).reshape(shape).double()


def batch(name):
    """Returns the arrays of the test's batch, and its weight."""
    if name == "char_gpt":
        arrays = last_pieces(3)
        return arrays, arrays[2].sum().item()
    if name == "unet":
        return [made(0, 4, 1, 32, 32), (made(1000, 4, 1, 32, 32) > 0).double()], 4 * 32 * 32
    return [made(0, 6, 1, 16, 16), (made(1000, 6, 3) > 0).double(), made(1001, 6, 1)], 6


def ten_losses(name, model, learning_rate):
    arrays, weight = batch(name)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, 0.9, weight_decay=1e-4)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = model.loss_sum(*arrays) / weight
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [float(f"{loss:.7g}") for loss in losses]


def speed(name, size, steps=40, warmup=5):
    torch.set_num_threads(1)
    shapes = {
        "unet": [(size, 1, 32, 32), (size, 1, 32, 32)],
        "several_heads": [(size, 1, 16, 16), (size, 3), (size, 1)],
    }
    if name == "char_gpt":
        bytes_ = torch.randint(128, (size, CONTEXT))
        arrays, per_sample = [bytes_, bytes_, torch.ones(size, CONTEXT)], CONTEXT
    else:
        arrays, per_sample = [torch.rand(shape) for shape in shapes[name]], 32 * 32 if name == "unet" else 1
    model = NETWORKS[name][0]().train().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    seconds = []
    for _ in range(warmup + steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        (model.loss_sum(*arrays) / (size * per_sample)).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return size / statistics.median(seconds[warmup:])


# Constructor and learning rate.
NETWORKS = {"char_gpt": (Gpt, 0.001), "unet": (UNet, 0.02), "several_heads": (Heads, 0.01)}

if __name__ == "__main__":
    if "--speed" in sys.argv:
        name, size = sys.argv[-2:]
        if name not in NETWORKS or not size.isdigit() or int(size) == 0:
            sys.exit(f"--speed: expected one of {', '.join(NETWORKS)} and a number of samples, got {' '.join(sys.argv[1:])}; try --speed unet 32")
        print(f"{name}: {speed(name, int(size)):.1f} samples/s")
        sys.exit()
    for name, (make, learning_rate) in NETWORKS.items():
        model = number(make())
        print(name, count(model), ten_losses(name, model, learning_rate))
