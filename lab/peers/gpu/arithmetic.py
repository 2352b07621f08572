"""What a training step must do at least, and how the measured times compare with it.

In: depth and batch size of a network for 32x32 images; images/s; the machine's own rates. Out: operations, bytes, shares, ratios.
Invariant: pure functions. Operations are those of the convolutions and the last layer. Bytes are of a step in which a convolution
and its normalisation are two passes over memory: forward the input is read, the sum written, read and written normalised; backward
the gradient and the sum are read, the sum's gradient written, and read by each of the two products, which read the input and write
its gradient: 3 times the input and 8 times the output. Weights and the loss are too small to count.
"""

import statistics

import architecture

IMAGE_SIZE = 32
CLASSES = 10
READS_OF_INPUT, PASSES_OF_OUTPUT = 3, 8


def layers(depth):
    """(channels in, channels out, side in, side out) of each convolution."""
    side = IMAGE_SIZE
    result = [(architecture.STEM.c_in, architecture.STEM.c_out, side, side)]
    for block in architecture.blocks(depth):
        for layer in (block.first, block.second):
            result.append((layer.c_in, layer.c_out, side, side // layer.stride))
            side //= layer.stride
    return result


def step_flops(depth, batch_size):
    """Multiplications and additions of forward and both backward products; the images need no gradient."""
    forward = [2 * 9 * c_in * c_out * side**2 for c_in, c_out, _, side in layers(depth)]
    head = 2 * architecture.WIDTHS[-1] * CLASSES
    return batch_size * (3 * (sum(forward) + head) - forward[0])


def step_bytes(depth, batch_size, element_bytes):
    """Bytes that the activations and their gradients move."""
    elements = sum(
        READS_OF_INPUT * c_in * before**2 + PASSES_OF_OUTPUT * c_out * after**2
        for c_in, c_out, before, after in layers(depth)
    )
    return batch_size * elements * element_bytes


def element_bytes(dtype):
    """Of an activation."""
    return 4 if dtype == "f32" else 2


def shares(depth, batch_size, dtype, step_s, peaks):
    """Shares of the machine's own rates, None where a rate is not known."""
    flops = peaks.get("tf32_flops" if dtype == "f32" else f"{dtype}_flops")
    bandwidth = peaks.get("copy_bytes_per_s")
    moved = step_bytes(depth, batch_size, element_bytes(dtype))
    return {
        "of_bandwidth": moved / step_s / bandwidth if bandwidth else None,
        "of_matrix_peak": step_flops(depth, batch_size) / step_s / flops if flops else None,
    }


def median(values):
    """The middle one."""
    return statistics.median(values)


def losses_off(expected, got, steps=5):
    """The largest relative difference of the first losses, None where there are none."""
    pairs = list(zip(expected[:steps], got[:steps]))
    if not pairs:
        return None
    off = [abs(a - b) / max(abs(a), 1e-30) for a, b in pairs]
    # NaN is larger than any number here.
    return max((float("inf") if value != value else value) for value in off)


def ratios(rows):
    """Adds to each of our rows its images/s over the best of PyTorch's for the same job and width of numbers, of rows that count."""
    counting = [row for row in rows if row.get("images_per_second") and row.get("counts", True)]
    for row in rows:
        row["of_best_pytorch"] = None
        if row.get("contender") != "lockstep" or row not in counting:
            continue
        rivals = [
            other["images_per_second"]
            for other in counting
            if other.get("contender") != "lockstep"
            and (other["model"], other["batch"]) == (row["model"], row["batch"])
            and element_bytes(other["dtype"]) == element_bytes(row["dtype"])
        ]
        if rivals:
            row["of_best_pytorch"] = row["images_per_second"] / max(rivals)
    return rows


def kernels(bench):
    """What `bench` observed of a step, in the words of PyTorch's profile."""
    total = bench["seconds_per_step"] or 1
    longest = [(kernel["name"], kernel["seconds_per_step"] / total) for kernel in bench["kernels"][:5]]
    found = {"launches_per_step": bench["launches_per_step"], "longest": longest}
    return {**found, "kernel_s": bench["seconds_per_step"], "idle_s": bench["idle_seconds_per_step"]}
