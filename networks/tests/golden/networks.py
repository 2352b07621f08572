"""Prints the expected values of tests/it, in f64, for the networks of this crate.

In: nothing. Out: for each network the number of parameters and the losses of ten steps of SGD.
The layers are those of torchvision's mobilenet_v2, of timm's convnext_tiny and vit_tiny, and of
the published wide_resnet. Parameters have the order of the Rust modules.

With --check: compares outputs and losses with the libraries' networks and the same parameters.
The library of WideResNet is pytorchcv.

With --speed NAME BATCH: prints the images/s of training steps at 32 pixels, in f32,
channels-last and eager mode. `trainer bench --model NAME --batch-size-per-rank BATCH --threads 1`
measures the same steps. Run both in turn.

Needs: torch, numpy. --check also needs torchvision, timm and pytorchcv.
"""

import re
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(Path(__file__).parents[3] / "burn-resnet/tests/golden"))
from ten_losses import count, number, numbers, ten_losses


def conv_norm(c_in, c_out, kernel, stride=1, groups=1):
    conv = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out))


class InvertedResidual(nn.Module):
    def __init__(self, c_in, c_out, widening, stride):
        super().__init__()
        wide = c_in * widening
        self.expand = conv_norm(c_in, wide, 1) if widening > 1 else None
        self.filter = conv_norm(wide, wide, 3, stride, wide)
        self.project = conv_norm(wide, c_out, 1)
        self.is_residual = stride == 1 and c_in == c_out

    def forward(self, x):
        wide = F.relu6(self.expand(x)) if self.expand else x
        y = self.project(F.relu6(self.filter(wide)))
        return x + y if self.is_residual else y


class MobileNetV2(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv_norm(3, 32, 3)
        blocks, c_in = [], 32
        for widening, channels, repeats, stride in (
            (1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)
        ):
            for index in range(repeats):
                blocks.append(InvertedResidual(c_in, channels, widening, stride if index == 0 else 1))
                c_in = channels
        self.blocks = nn.Sequential(*blocks)
        self.head = conv_norm(c_in, 1280, 1)
        self.classifier = nn.Linear(1280, 10)

    def forward(self, x):
        x = F.relu6(self.head(self.blocks(F.relu6(self.stem(x)))))
        return self.classifier(x.mean((2, 3)))


class PreActivation(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(c_in)
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(c_in, c_out, 1, stride, bias=False) if c_in != c_out else None

    def forward(self, x):
        active = F.relu(self.norm1(x))
        y = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return y + (self.shortcut(active) if self.shortcut else x)


class WideResNet(nn.Module):
    def __init__(self, depth, width):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        blocks, c_in = [], 16
        for channels, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            for index in range((depth - 4) // 6):
                blocks.append(PreActivation(c_in, channels, stride if index == 0 else 1))
                c_in = channels
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(c_in)
        self.linear = nn.Linear(c_in, 10)

    def forward(self, x):
        return self.linear(F.relu(self.norm(self.blocks(self.conv(x)))).mean((2, 3)))


class ConvNeXtBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, 1, 3, groups=channels)
        self.norm = nn.LayerNorm(channels, 1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        # A parameter of the block itself would come first in the order of parameters.
        self.scale = nn.Module()
        self.scale.gamma = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x):
        y = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        y = self.scale.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + y.permute(0, 3, 1, 2)


class Downsampling(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.norm = nn.LayerNorm(c_in, 1e-6)
        self.conv = nn.Conv2d(c_in, c_out, 2, 2)

    def forward(self, x):
        return self.conv(self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


class ConvNeXt(nn.Module):
    def __init__(self):
        super().__init__()
        stages = ((96, 3), (192, 3), (384, 9), (768, 3))
        self.stem = nn.ModuleList([nn.Conv2d(3, 96, 2, 2), nn.LayerNorm(96, 1e-6)])
        pairs = zip(stages, stages[1:])
        self.downsamplings = nn.ModuleList([Downsampling(a[0], b[0]) for a, b in pairs])
        self.stages = nn.ModuleList([nn.Sequential(*[ConvNeXtBlock(c) for _ in range(n)]) for c, n in stages])
        self.norm = nn.LayerNorm(768, 1e-6)
        self.head = nn.Linear(768, 10)

    def forward(self, x):
        x = self.stem[1](self.stem[0](x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        for index, blocks in enumerate(self.stages):
            x = blocks(self.downsamplings[index - 1](x) if index else x)
        return self.head(self.norm(x.mean((2, 3))))


class VitBlock(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(channels, 1e-6)
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.norm2 = nn.LayerNorm(channels, 1e-6)
        self.fc1 = nn.Linear(channels, 4 * channels)
        self.fc2 = nn.Linear(4 * channels, channels)

    def forward(self, x):
        n, tokens, channels = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, channels)
        x = x + self.proj(mixed)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self, size, channels=192, depth=12, heads=3):
        super().__init__()
        self.patches = nn.Linear(48, channels)
        self.tokens = nn.Module()
        self.tokens.cls = nn.Parameter(torch.zeros(channels))
        self.tokens.positions = nn.Parameter(torch.zeros((size // 4) ** 2 + 1, channels))
        self.blocks = nn.Sequential(*[VitBlock(channels, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(channels, 1e-6)
        self.head = nn.Linear(channels, 10)

    def forward(self, x):
        n, c, h, w = x.shape
        windows = x.permute(0, 2, 3, 1).reshape(n, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5)
        x = self.patches(windows.reshape(n, -1, 16 * c))
        x = torch.cat([self.tokens.cls.expand(n, 1, -1), x], 1) + self.tokens.positions
        return self.head(self.norm(self.blocks(x)[:, 0]))


# Name, constructor and learning rate. The rate is small where steps amplify f32 rounding.
# Norms over the few values of depthwise layers amplify it most.
NETWORKS = (
    ("wide-resnet28-10", lambda: WideResNet(28, 10), 0.00002),
    ("mobilenet-v2", MobileNetV2, 0.0000001),
    ("convnext-tiny", ConvNeXt, 0.0002),
    ("vit-tiny", lambda: Vit(16), 0.0002),
)

# Renames parameters from Lockstep's names to the library's. Other networks have the same order.
RENAMINGS = {
    "convnext-tiny": (
        (r"^stages\.(\d)", r"stages.\1.blocks"),
        (r"^downsamplings\.(\d)", lambda match: f"stages.{int(match[1]) + 1}.downsample"),
        (r"downsample\.norm", "downsample.0"),
        (r"downsample\.conv", "downsample.1"),
        ("dwconv", "conv_dw"),
        ("pwconv", "mlp.fc"),
        (r"scale\.gamma", "gamma"),
        (r"^head\.", "head.fc."),
        (r"^norm\.", "head.norm."),
    ),
    "vit-tiny": (
        ("^patches", "patch_embed.proj"),
        (r"^tokens\.cls", "cls_token"),
        (r"^tokens\.positions", "pos_embed"),
        (r"(\d)\.(qkv|proj)", r"\1.attn.\2"),
        (r"\.fc", ".mlp.fc"),
    ),
}


def published(name):
    """Returns the library's network, with this crate's changes for small images."""
    if name == "wide-resnet28-10":
        from pytorchcv.models.wrn_cifar import get_wrn_cifar

        model = get_wrn_cifar(num_classes=10, blocks=28, width_factor=10)
        # 16-pixel images leave a smaller map to average than 32-pixel images. The network is
        # unchanged.
        model.features.final_pool = nn.AdaptiveAvgPool2d(1)
    elif name == "mobilenet-v2":
        from torchvision.models import mobilenet_v2

        model = mobilenet_v2(num_classes=10, dropout=0.0)
        # The stem and the second stage have stride 1.
        model.features[0][0].stride = model.features[2].conv[1][0].stride = (1, 1)
    elif name == "convnext-tiny":
        from timm import create_model

        model = create_model("convnext_tiny", num_classes=10)
        # The stem's windows are 2x2.
        model.stem[0] = nn.Conv2d(3, 96, 2, 2)
    else:
        from timm import create_model

        # Size Ti, with other image and patch sizes.
        model = create_model("vit_tiny_patch16_224", img_size=16, patch_size=4, num_classes=10)
    return model.double().train()


def give(name, ours, theirs):
    """Copies the parameters to the library's network, each to a parameter of the same shape."""
    found = dict(theirs.named_parameters())
    names = [name for name, _ in ours.named_parameters()]
    for pattern, replacement in RENAMINGS.get(name, ()):
        names = [re.sub(pattern, replacement, name) for name in names]
    names = names if name in RENAMINGS else list(found)
    assert sorted(names) == sorted(found), set(names) ^ set(found)
    for its_name, values in zip(names, ours.parameters(), strict=True):
        values = values.data.clone()
        if its_name == "patch_embed.proj.weight":
            # Lockstep has a linear layer over a window's pixels, row by row. The library has a
            # convolution.
            values = values.reshape(-1, 4, 4, 3).permute(0, 3, 1, 2)
        assert values.squeeze().shape == found[its_name].squeeze().shape, its_name
        found[its_name].data = values.reshape(found[its_name].shape).contiguous()


def check(name, make, learning_rate):
    ours, theirs = number(make()), published(name)
    give(name, ours, theirs)
    assert count(ours) == count(theirs), (count(ours), count(theirs))
    images = torch.from_numpy(numbers(4 * 16 * 16 * 3, 0)).reshape(4, 3, 16, 16).double()
    off = {}
    # The training pass updates the statistics that the evaluation pass uses.
    for mode in (True, False):
        with torch.no_grad():
            a, b = (model.train(mode)(images) for model in (ours, theirs))
        off["train" if mode else "eval"] = ((a - b).abs().max() / b.abs().max()).item()
    a, b = (ten_losses(model.train(), learning_rate) for model in (ours, theirs))
    off["losses"] = max(abs(x - y) / y for x, y in zip(a, b))
    print(name, count(theirs), *(f"{what} {value:.1e}" for what, value in off.items()), flush=True)
    assert off["train"] < 1e-9 and off["eval"] < 1e-9 and off["losses"] < 1e-6, off


def speed(name, batch, steps=8, warmup=2):
    torch.set_num_threads(1)
    make = {name: make for name, make, _ in NETWORKS} | {"vit-tiny": lambda: Vit(32)}
    model = make[name]().train().to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.arange(batch) % 10
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4)
    seconds = []
    for _ in range(warmup + steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return batch / statistics.median(seconds[warmup:])


if __name__ == "__main__":
    if "--speed" in sys.argv:
        name, batch = sys.argv[-2:]
        known = [name for name, _, _ in NETWORKS]
        if name not in known or not batch.isdigit() or int(batch) == 0:
            sys.exit(f"--speed: expected one of {', '.join(known)} and a number of images, got {' '.join(sys.argv[1:])}; try --speed vit-tiny 32")
        print(f"{name}: {speed(name, int(batch)):.1f} images/s")
        sys.exit()
    for name, make, learning_rate in NETWORKS:
        if "--check" in sys.argv:
            check(name, make, learning_rate)
        else:
            model = number(make())
            print(name, count(model), ten_losses(model, learning_rate))
    print("vit-tiny at 32", count(Vit(32)))
