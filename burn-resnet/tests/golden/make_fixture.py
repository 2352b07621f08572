"""Writes resnet8.safetensors next to this file: the numbers of PyTorch that golden.rs compares.

In: nothing. Out: weights and images (f32), and what follows from them, computed in f64 on the CPU
and rounded to f32 at the end, so that a difference is the other side's rounding. Shortcut B stores
the gradients of small tensors only, which keeps the file under 1 MB.
Needs: torch, safetensors. Prints how far f32 in PyTorch itself is from f64.
"""

import pathlib

import torch
import torch.nn.functional as F
from published import ResNet
from safetensors.torch import save_file

LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, NUM_STEPS = 0.02, 0.9, 1e-4, 10
BATCH, SIZE, SMALL = 6, 16, 3000


def randomise_norms(model, generator):
    """Gammas of 1 and betas of 0 would hide an error in either."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.bias.data.uniform_(-0.3, 0.3, generator=generator)


def run(shortcut, initial, images, labels, dtype):
    """First step's values and gradients, then the losses of a few steps of SGD."""
    model = ResNet(8, shortcut)
    model.load_state_dict(initial)
    model.to(dtype).train()
    images = images.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM, weight_decay=WEIGHT_DECAY)
    found, losses = {}, []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            found["logits"] = logits.detach().clone()
            found |= {f"gradient.{n}": p.grad.clone() for n, p in model.named_parameters()}
            found |= {f"statistics.{n}": b.clone() for n, b in model.named_buffers() if "running" in n}
        optimizer.step()
    found["losses"] = torch.tensor(losses, dtype=torch.float64)
    return found


def main():
    torch.manual_seed(20)
    generator = torch.Generator().manual_seed(21)
    images = torch.randn(BATCH, 3, SIZE, SIZE, generator=generator)
    labels = torch.tensor([3, 8, 0, 5, 9, 3])
    tensors = {"images": images.permute(0, 2, 3, 1).contiguous(), "labels": labels}
    for shortcut in "AB":
        model = ResNet(8, shortcut)
        randomise_norms(model, generator)
        initial = {k: v.clone() for k, v in model.state_dict().items() if "num_batches" not in k}
        if shortcut == "B":  # The rest of B's weights are those of A.
            shared = {k.removeprefix("A.initial."): v for k, v in tensors.items() if "A.initial." in k}
            initial |= shared
            tensors |= {f"B.initial.{k}": v for k, v in initial.items() if k not in shared}
        else:
            tensors |= {f"A.initial.{k}": v for k, v in initial.items()}
        full = initial | {k: v for k, v in model.state_dict().items() if "num_batches" in k}
        exact = run(shortcut, full, images, labels, torch.float64)
        single = run(shortcut, full, images, labels, torch.float32)
        for name, value in exact.items():
            if shortcut == "A" or "gradient." not in name or value.numel() <= SMALL:
                tensors[f"{shortcut}.{name}"] = value.float()
        worst = max(exact, key=lambda n: difference(single[n], exact[n]))
        print(shortcut, "losses", [f"{v:.6f}" for v in exact["losses"].tolist()])
        print(shortcut, "f32 losses off by", f"{difference(single['losses'], exact['losses']):.1e}",
              "worst", worst, f"{difference(single[worst], exact[worst]):.1e}")
    path = pathlib.Path(__file__).with_name("resnet8.safetensors")
    metadata = {"program": "make_fixture.py", "torch": torch.__version__}
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata)
    print(path.name, path.stat().st_size, "bytes")


def difference(found, expected):
    return ((found.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


main()
