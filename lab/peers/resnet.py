"""The residual networks of Lockstep for small images, in PyTorch. The file needs no other file of this folder.

    model, about = load("runs/first")

In: a checkpoint of `trainer train`, or the folder of a run. Out: a module whose state_dict has the names of the checkpoint.
Invariant: the weights alone decide depth, width and shortcut of the network.
Source: He et al. 2015, arXiv 1512.03385, section 4.2; shortcut A pads channels with zeros, shortcut B is a convolution.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F


class Block(torch.nn.Module):
    """Two convolutions and the shortcut around them."""

    def __init__(self, c_in, c_out, stride, is_projected=False):
        super().__init__()
        self.conv1, self.bn1 = layer(c_in, c_out, stride)
        self.conv2, self.bn2 = layer(c_out, c_out)
        self.stride, self.padding, self.downsample = stride, (c_out - c_in) // 2, None
        if is_projected and c_in != c_out:
            projection = torch.nn.Conv2d(c_in, c_out, 1, stride, bias=False)
            self.downsample = torch.nn.Sequential(projection, torch.nn.BatchNorm2d(c_out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        if self.downsample is not None:
            x = self.downsample(x)
        elif self.padding:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(y + x, inplace=True)


class ResNet(torch.nn.Module):
    """Logits [N, K] of normalised images [N, C, H, W]; `blocks` counts the blocks of each stage."""

    def __init__(self, blocks, num_classes, width=16, is_projected=False, channels=3):
        super().__init__()
        self.conv1, self.bn1 = layer(channels, width)
        self.num_stages, c_in = len(blocks), width
        for stage, num_blocks in enumerate(blocks):
            c_out, modules = width * 2**stage, []
            for index in range(num_blocks):
                modules.append(Block(c_in, c_out, 2 if stage and not index else 1, is_projected))
                c_in = c_out
            setattr(self, f"layer{stage + 1}", torch.nn.Sequential(*modules))
        self.linear = torch.nn.Linear(c_in, num_classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        for stage in range(self.num_stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.linear(x.mean((2, 3)))


def layer(c_in, c_out, stride=1):
    """A 3x3 convolution that keeps the extent, but for its stride, and its normalisation."""
    return torch.nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), torch.nn.BatchNorm2d(c_out)


def of_depth(depth, num_classes):
    """The network of `--model resnet<depth>`."""
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth: expected 6n + 2, got {depth}")
    return ResNet([(depth - 2) // 6] * 3, num_classes)


def load(folder):
    """The network of a checkpoint or of a run's best checkpoint, and `class_names`, `mean`, `std`, `height` and `width`."""
    from safetensors.torch import load_file

    folder = Path(folder)
    folder = folder if (folder / "state.json").exists() else best_checkpoint(folder)
    weights = load_file(folder / "model.safetensors")
    if "linear.weight" not in weights:
        raise ValueError(f"{folder}: expected resnet<6n+2> or cifar-resnet; build torchvision's network for others")
    stages = {}
    for name in weights:
        stage, index = (name.split(".") + [""])[:2]
        if stage.startswith("layer"):
            stages.setdefault(stage, set()).add(index)
    blocks = [len(stages[stage]) for stage in sorted(stages)]
    width, channels = weights["conv1.weight"].shape[:2]
    is_projected = any(".downsample." in name for name in weights)
    model = ResNet(blocks, len(weights["linear.weight"]), width, is_projected, channels)
    model.load_state_dict(weights)
    return model.eval(), json.loads((folder / "state.json").read_text())["input"]


def best_checkpoint(run):
    """The checkpoint of the best epoch, as `trainer eval --checkpoint RUN` takes it; without one, the newest."""
    states = [(path, json.loads(path.read_text())["progress"]) for path in sorted(run.glob("checkpoints/step-????????/state.json"))]
    if not states:
        raise FileNotFoundError(f"{run}: no checkpoint (expected a folder of `trainer train`)")
    best = states[-1][1]["best"]
    is_best = [path for path, progress in states if best and (progress["last_record"] or {}).get("epoch") == best["epoch"]]
    return (is_best or [states[-1][0]])[-1].parent
