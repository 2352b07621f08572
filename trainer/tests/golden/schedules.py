"""Prints the expected rates of trainer/src/model/schedule.rs.

In: nothing. Out: learning rates of torch.optim.lr_scheduler, for a rate of 0.4.
Needs: torch.
"""

import warnings

import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, LinearLR, PolynomialLR, ReduceLROnPlateau, SequentialLR

warnings.filterwarnings("ignore")

LOSSES = (2.0, 1.99, 1.5, 1.6, 1.49, float("nan"), 1.2, 1.2, 1.19, 1.3, 1.18, 1.0, 0.99)
ACCURACIES = (0.1, 0.3, 0.31, 0.29, 0.5, 0.5, 0.52, 0.51, 0.5, 0.7)


def optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)


def rates(make, num_steps):
    """Returns the rate of each step, with a linear warmup of 4 steps before the schedule."""
    sgd = optimizer()
    schedule = SequentialLR(sgd, [LinearLR(sgd, 0.1, 1.0, 4), make(sgd)], [4])
    found = []
    for _ in range(num_steps):
        found.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    return found


def on_plateau(mode, figures):
    """Returns the rate after each evaluation."""
    sgd = optimizer()
    schedule = ReduceLROnPlateau(sgd, mode, factor=0.5, patience=1, threshold=0.02)
    found = []
    for figure in figures:
        schedule.step(figure)
        found.append(sgd.param_groups[0]["lr"])
    return found


if __name__ == "__main__":
    for power in (1.0, 2.5):
        print("polynomial", power, rates(lambda sgd: PolynomialLR(sgd, 16, power), 20))
    for factor in (1, 2):
        print("cosine-restarts", factor, rates(lambda sgd: CosineAnnealingWarmRestarts(sgd, 4, factor), 20))
    print("plateau", "min", on_plateau("min", LOSSES))
    print("plateau", "max", on_plateau("max", ACCURACIES))
