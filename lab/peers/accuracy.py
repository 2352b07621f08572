"""Training on images for some epochs, with the test accuracy after each.

In: a framework that has built its network from the job's weights, a folder of images. Out: a record of each epoch.
Invariant: one rank; the recipe is that of the trainer's run: batches of the job's size, crop and flip, SGD from a
learning rate of 0.1 along half a cosine to zero, the last batch of an epoch as small as it is.
"""

import math
import time

import images
import measure
import numpy as np

LEARNING_RATE = 0.1


def learning_rate(step, num_steps):
    """Half a cosine from the rate to zero."""
    return LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / num_steps))


def test_top1(framework, split, batch_size):
    """The share of test images whose likeliest class is right."""
    correct = 0
    for start in range(0, len(split.labels), batch_size):
        some = slice(start, start + batch_size)
        logits = framework.logits(images.normalised(split.pixels[some]))
        correct += int((logits.argmax(1) == split.labels[some]).sum())
    return correct / len(split.labels)


def train(framework, job, options):
    """All epochs; `elapsed_s` counts training and evaluation, not the decoding of the images."""
    if job.ranks != 1:
        raise SystemExit(f"accuracy: expected a job of 1 rank, got {job.ranks}")
    if not options.data_dir:
        raise SystemExit("accuracy: --epochs needs --data-dir")
    train_split, test_split = (
        images.read_split(f"{options.data_dir}/{name}", job.image_size) for name in ("train", "test")
    )
    count, batch_size = len(train_split.labels), job.batch_size_per_rank
    steps_per_epoch = -(-count // batch_size)
    random = np.random.default_rng(options.seed)
    records, step, start = [], 0, time.perf_counter()
    for epoch in range(options.epochs):
        order, loss_sum, epoch_start = random.permutation(count), 0.0, time.perf_counter()
        for first in range(0, count, batch_size):
            chosen = order[first : first + batch_size]
            pixels = images.normalised(images.augmented(train_split.pixels[chosen], random))
            batch = framework.place(np.ascontiguousarray(pixels), train_split.labels[chosen])
            rate = learning_rate(step, options.epochs * steps_per_epoch)
            loss_sum += framework.step(batch, rate) * len(chosen)
            step += 1
        train_s = time.perf_counter() - epoch_start
        record = {"epoch": epoch + 1, "train_loss": loss_sum / count, "images_per_second": count / train_s}
        record.update(test_top1=test_top1(framework, test_split, batch_size))
        record.update(elapsed_s=time.perf_counter() - start)
        print(record, flush=True)
        records.append(record)
    return {"epochs": records, "peak_memory_bytes": measure.memory_bytes("VmHWM")}
