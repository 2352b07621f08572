"""The published CIFAR ResNet (He et al. 2015, arXiv 1512.03385, section 4.2) in PyTorch.

In: a depth and a shortcut. Out: a module whose state_dict names are those of the published weights.
Source: the option A network of https://github.com/akamaster/pytorch_resnet_cifar10, written anew;
shortcut B is named as in torchvision.
"""

import torch.nn as nn
import torch.nn.functional as F


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
        n = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self.stage(16, 16, n, shortcut)
        self.layer2 = self.stage(16, 32, n, shortcut)
        self.layer3 = self.stage(32, 64, n, shortcut)
        self.linear = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight)

    @staticmethod
    def stage(in_planes, planes, n, shortcut):
        inputs = [in_planes] + [planes] * (n - 1)
        return nn.Sequential(*(BasicBlock(i, planes, shortcut) for i in inputs))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer3(self.layer2(self.layer1(out)))
        return self.linear(out.mean((2, 3)))
