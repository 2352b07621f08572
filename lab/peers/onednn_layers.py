"""oneDNN's time for each pass of a network's convolutions, through PyTorch, on one thread, in f32, channels-last.

A round is the minimum over repetitions after a warm-up, of each variant that PyTorch offers and, with --ours, of the example
`kernels`, in an order that is chance. Prints a JSON line for each (layer, operation): oneDNN's best variant by the median of its
rounds; with --ours also ours, where "ratio" is the median over the rounds of oneDNN's best in the round over ours, and
"ratio_interval" what holds the true median with 95 %. What oneDNN does not have (packing, moments) has no ratio.

    cargo build --release -p lockstep-kernels --example kernels
    python onednn_layers.py --ours target/release/examples/kernels
"""

import argparse
import json
import math
import random
import re
import shlex
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F

# As in kernels/benches/kernels/convolutions.rs.
NETWORKS = {
    "cifar": """3->16@32k3s1 16->16@32k3s1 16->32@32k3s2 32->32@16k3s1 32->64@16k3s2 64->64@8k3s1 16->32@32k1s2
32->64@16k1s2""".split(),
    "resnet50": """64->64@56k1s1 64->256@56k1s1 256->64@56k1s1 256->128@56k1s1 512->128@28k1s1 128->512@28k1s1
1024->256@14k1s1 256->1024@14k1s1 512->2048@7k1s1 2048->512@7k1s1 256->512@56k1s2 512->1024@28k1s2 1024->2048@14k1s2
64->64@56k3s1 128->128@28k3s1 256->256@14k3s1 512->512@7k3s1 128->128@56k3s2 256->256@28k3s2 512->512@14k3s2
3->64@224k7s2""".split(),
}
# What differs from round to round in a line of ours.
MEASURED = ["ms", "gflops", "share_of_peak", "gb_per_s", "share_of_copy"]
LAYER = re.compile(r"(\d+)->(\d+)@(\d+)k(\d+)s([12])")


def best_ms(work, seconds):
    """The minimum over at least five repetitions and about `seconds`."""
    work()
    best, end, count = float("inf"), time.perf_counter() + seconds, 0
    while count < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        best, count = min(best, time.perf_counter() - start), count + 1
    return best * 1e3


def variants(c_in, c_out, extent, kernel, stride, batch):
    """For each operation the ways to ask PyTorch for it."""
    last = {"memory_format": torch.channels_last}
    pad = kernel // 2
    x = torch.rand(batch, c_in, extent, extent).to(**last)
    plain = torch.rand(c_out, c_in, kernel, kernel)
    weights = {"weights channels-last": plain.to(**last), "weights contiguous": plain}
    dy = torch.rand_like(F.conv2d(x, plain, stride=stride, padding=pad)).to(**last)
    ways = {"forward": {}, "data gradient": {}, "weight gradient": {}}
    for name, w in weights.items():
        ways["forward"][name] = lambda w=w: F.conv2d(x, w, stride=stride, padding=pad)
        for operation, mask in (("data gradient", [True, False, False]), ("weight gradient", [False, True, False])):
            ways[operation][name] = lambda w=w, mask=mask: torch.ops.aten.convolution_backward(
                dy, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask
            )
    packed = torch.ops.mkldnn._reorder_convolution_weight(plain, [pad] * 2, [stride] * 2, [1, 1], 1, list(x.shape))
    ways["forward"]["weights packed before"] = lambda: torch.ops.mkldnn._convolution_pointwise(
        x, packed, None, [pad] * 2, [stride] * 2, [1, 1], 1, "none", [], ""
    )
    if c_in == 3:
        del ways["data gradient"]
    return ways


def ours(command, layer, batch, seconds):
    """The lines of the example `kernels` for one layer, by operation."""
    if not command:
        return {}
    flags = ["--layers", layer, "--batch", str(batch), "--seconds", str(seconds), "--json"]
    out = subprocess.run([*shlex.split(command), *flags], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {line["operation"]: line for line in map(json.loads, out.splitlines())}


def outer_ranks(number):
    """How many values on either side lie outside the interval that holds the median with 95 %; None below six values."""
    below = [sum(math.comb(number, k) for k in range(rank + 1)) / 2**number for rank in range(number // 2)]
    inside = [rank for rank, share in enumerate(below) if 1 - 2 * share >= 0.95]
    return max(inside, default=None)


def named(word):
    """The layers that a word of the command line names."""
    if word not in NETWORKS and not LAYER.fullmatch(word):
        raise argparse.ArgumentTypeError(f"expected cifar, resnet50 or a layer as 256->512@56k1s2, got {word!r}")
    return NETWORKS.get(word, [word])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8, help="images in a batch (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=0.3, help="time of the repetitions of each variant (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=6, help="intervals need 6 (default: %(default)s)")
    parser.add_argument(
        "--ours",
        metavar="COMMAND",
        default="",
        help="the example `kernels`, run with oneDNN; may have its own flags, such as '... --convolution direct'",
    )
    parser.add_argument(
        "layers",
        nargs="*",
        type=named,
        default=[NETWORKS["resnet50"]],
        help="cifar, resnet50, or layers as '256->512@56k1s2': channels, extent of the input, kernel, stride"
        " (default: resnet50)",
    )
    arguments = parser.parse_args()
    if not torch.backends.mkldnn.is_available():
        parser.error(f"PyTorch {torch.__version__} was built without oneDNN")
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    batch, seconds = arguments.batch, arguments.seconds
    for layer in (layer for layers in arguments.layers for layer in layers):
        c_in, c_out, extent, kernel, stride = map(int, LAYER.fullmatch(layer).groups())
        flops = 2 * batch * c_in * c_out * kernel**2 * ((extent + 2 * (kernel // 2) - kernel) // stride + 1) ** 2
        ways = variants(c_in, c_out, extent, kernel, stride, batch)
        contenders = [
            lambda: {operation: {way: best_ms(work, seconds) for way, work in by_way.items()} for operation, by_way in ways.items()},
            lambda: ours(arguments.ours, layer, batch, seconds),
        ]
        rounds = []
        for _ in range(arguments.rounds):
            order = random.sample(range(2), 2)
            results = {index: contenders[index]() for index in order}
            rounds.append((results[0], results[1]))
        for operation, by_way in ways.items():
            medians = {way: statistics.median(theirs[operation][way] for theirs, _ in rounds) for way in by_way}
            way = min(medians, key=medians.get)
            line = {"layer": layer, "batch": batch, "operation": operation, "dtype": "f32", "threads": 1}
            line |= {"ms": round(medians[way], 6), "gflops": round(flops / medians[way] / 1e6, 1), "library": "oneDNN"}
            print(json.dumps(line | {"variant": way, "torch": torch.__version__}), flush=True)
        for operation in rounds[0][1]:
            lines = [mine[operation] for _, mine in rounds]
            known = [key for key in MEASURED if lines[0].get(key) is not None]
            line = lines[0] | {key: round(statistics.median(line[key] for line in lines), 6) for key in known}
            line["rounds"] = len(rounds)
            if operation in ways:
                ratios = sorted(min(theirs[operation].values()) / mine[operation]["ms"] for theirs, mine in rounds)
                line["ratio"] = round(statistics.median(ratios), 3)
                left_out = outer_ranks(len(ratios))
                if left_out is not None:
                    line["ratio_interval"] = [round(ratios[left_out], 3), round(ratios[-1 - left_out], 3)]
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
