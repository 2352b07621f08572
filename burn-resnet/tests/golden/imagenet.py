"""The ResNets for ImageNet (He et al. 2015, arXiv 1512.03385, table 1), a bottleneck's stride in its 3x3 convolution, in PyTorch.

In: a depth. Out: a module whose state_dict names are torchvision's.
Run, it prints what imagenet.rs expects: parameters, and ten losses in f64.
"""

import torch.nn as nn
import torch.nn.functional as F
from ten_losses import count, number, ten_losses

COUNTS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class Block(nn.Module):
    def __init__(self, c_in, planes, stride, bottleneck):
        super().__init__()
        c_out = 4 * planes if bottleneck else planes
        kernels = [(c_in, planes, 1, 1), (planes, planes, 3, stride), (planes, c_out, 1, 1)]
        if not bottleneck:
            kernels = [(c_in, planes, 3, stride), (planes, planes, 3, 1)]
        self.count = len(kernels)
        for index, (i, o, kernel, step) in enumerate(kernels, 1):
            setattr(self, f"conv{index}", nn.Conv2d(i, o, kernel, step, kernel // 2, bias=False))
            setattr(self, f"bn{index}", nn.BatchNorm2d(o))
        self.downsample = None
        if stride > 1 or c_in != c_out:
            self.downsample = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x):
        y = x
        for index in range(1, self.count + 1):
            y = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(y))
            y = F.relu(y) if index < self.count else y
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ImageNetResNet(nn.Module):
    def __init__(self, depth, num_classes=1000):
        super().__init__()
        bottleneck = depth >= 50
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        c_in = 64
        for index, blocks in enumerate(COUNTS[depth]):
            planes, layers = 64 << index, []
            for block in range(blocks):
                layers.append(Block(c_in, planes, 2 if index > 0 and block == 0 else 1, bottleneck))
                c_in = 4 * planes if bottleneck else planes
            setattr(self, f"layer{index + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(c_in, num_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return self.fc(x.mean((2, 3)))


if __name__ == "__main__":
    for depth in COUNTS:
        print(depth, count(ImageNetResNet(depth)))
    # With so few pixels the gradients of the deep network are right to a hundredth in f32, also
    # those of PyTorch. So the steps are smaller.
    for depth, learning_rate in ((18, 2e-4), (50, 2e-7)):
        print(depth, ten_losses(number(ImageNetResNet(depth, 10)), learning_rate, size=64))
