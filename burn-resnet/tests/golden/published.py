"""The published CIFAR ResNet (He et al. 2015, arXiv 1512.03385, section 4.2), and ResNet-18 and -34, in PyTorch.

In: a depth and a shortcut. Out: a module whose state_dict names are those of the published weights.
Source: the option A network of https://github.com/akamaster/pytorch_resnet_cifar10, written again;
shortcut B is named as in torchvision.
"""

import torch.nn as nn
import torch.nn.functional as F


# Table 1 of the paper, after a 3x3 convolution that keeps the size of small images.
STAGES = {18: [(64, 2), (128, 2), (256, 2), (512, 2)], 34: [(64, 3), (128, 4), (256, 6), (512, 3)]}


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, shortcut):
        super().__init__()
        self.reshapes = in_planes != planes
        stride = 2 if self.reshapes else 1
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.planes = planes
        self.downsample = None
        if self.reshapes and shortcut == "B":
            self.downsample = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            x = self.downsample(x)
        elif self.reshapes:
            pad = self.planes // 4
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, pad, pad))
        return F.relu(out + x)


class ResNet(nn.Module):
    def __init__(self, depth, shortcut="A", num_classes=10):
        super().__init__()
        stages = STAGES.get(depth, [(planes, (depth - 2) // 6) for planes in (16, 32, 64)])
        in_planes = stages[0][0]
        self.conv1 = nn.Conv2d(3, in_planes, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(in_planes)
        self.layers = []
        for number, (planes, n) in enumerate(stages, 1):
            stage = self.stage(in_planes, planes, n, shortcut)
            setattr(self, f"layer{number}", stage)
            self.layers.append(stage)
            in_planes = planes
        self.linear = nn.Linear(in_planes, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    @staticmethod
    def stage(in_planes, planes, n, shortcut):
        inputs = [in_planes] + [planes] * (n - 1)
        return nn.Sequential(*(BasicBlock(i, planes, shortcut) for i in inputs))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        for layer in self.layers:
            out = layer(out)
        return self.linear(out.mean((2, 3)))
