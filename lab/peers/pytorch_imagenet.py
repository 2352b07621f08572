"""ImageNet's residual networks in PyTorch, under torchvision's names of the weights.

In: depth, number of classes. Out: a module, logits [N, K] of images [N, 3, H, W].
Source: He et al. 2015, arXiv 1512.03385, table 1; a bottleneck's stride is in its 3x3 convolution, as in torchvision (v1.5).
"""

import torch
import torch.nn.functional as F

STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
BOTTLENECKS = 50  # From this depth on.


def conv(c_in, c_out, kernel, stride=1):
    """A convolution that keeps the extent, but for its stride."""
    return torch.nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False)


class Block(torch.nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3, 1x1 around a quarter of the channels; a projection where the shape changes."""

    def __init__(self, c_in, c_out, stride, is_bottleneck):
        super().__init__()
        width = c_out // 4 if is_bottleneck else c_out
        shapes = [(c_in, width, 3, stride), (width, c_out, 3, 1)]
        if is_bottleneck:
            shapes = [(c_in, width, 1, 1), (width, width, 3, stride), (width, c_out, 1, 1)]
        self.num_layers = len(shapes)
        for index, shape in enumerate(shapes, 1):
            setattr(self, f"conv{index}", conv(*shape))
            setattr(self, f"bn{index}", torch.nn.BatchNorm2d(shape[1]))
        self.downsample = None
        if stride > 1 or c_in != c_out:
            self.downsample = torch.nn.Sequential(conv(c_in, c_out, 1, stride), torch.nn.BatchNorm2d(c_out))

    def forward(self, x):
        y = x
        for index in range(1, self.num_layers + 1):
            y = getattr(self, f"bn{index}")(getattr(self, f"conv{index}")(y))
            if index < self.num_layers:
                y = F.relu(y, inplace=True)
        return F.relu(y + (self.downsample(x) if self.downsample else x), inplace=True)


class ResNet(torch.nn.Module):
    """Stem, four stages, classifier."""

    def __init__(self, depth, num_classes):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(64)
        is_bottleneck, c_in = depth >= BOTTLENECKS, 64
        for stage, num_blocks in enumerate(STAGES[depth]):
            c_out = 64 * 2**stage * (4 if is_bottleneck else 1)
            blocks = []
            for index in range(num_blocks):
                blocks.append(Block(c_in, c_out, 2 if stage and not index else 1, is_bottleneck))
                c_in = c_out
            setattr(self, f"layer{stage + 1}", torch.nn.Sequential(*blocks))
        self.fc = torch.nn.Linear(c_in, num_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))
