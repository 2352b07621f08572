"""MXNet: a Gluon network, hybridized; several ranks by the parameter server of the key-value store `dist_sync`.

In: the job. Out: [`Framework`]. Invariant: a process whose role is that of a scheduler or server stays in the import until the
workers are done.
"""

import gc

import architecture
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn


class Block(nn.HybridBlock):
    """Two convolutions and the shortcut around them."""

    def __init__(self, block, named):
        super().__init__()
        self.convolution1, self.norm1 = layer(block.first, named)
        self.convolution2, self.norm2 = layer(block.second, named)
        self.padding = block.padding

    def hybrid_forward(self, F, x):
        """[N, C, H, W] to the same, or to half the side and more channels."""
        y = F.Activation(self.norm1(self.convolution1(x)), act_type="relu")
        y = self.norm2(self.convolution2(y))
        if self.padding:
            x = F.slice(x, begin=(None,) * 4, end=(None,) * 4, step=(1, 1, 2, 2))
            zeros = F.zeros_like(F.slice_axis(x, axis=1, begin=0, end=self.padding))
            x = F.concat(zeros, x, zeros, dim=1)
        return F.Activation(y + x, act_type="relu")


def layer(of, named):
    """A convolution and its normalisation, also kept by name."""
    convolution = nn.Conv2D(of.c_out, 3, of.stride, 1, use_bias=False, in_channels=of.c_in)
    norm = nn.BatchNorm(momentum=architecture.KEPT_STATISTICS, epsilon=architecture.EPSILON, in_channels=of.c_out)
    named[of.convolution], named[of.norm] = convolution, norm
    return convolution, norm


def network(job):
    """The network with the job's initial weights."""
    named = {}
    net = nn.HybridSequential()
    net.add(*layer(architecture.STEM, named), nn.Activation("relu"))
    for block in architecture.blocks(job.depth):
        net.add(Block(block, named))
    head = nn.Dense(job.num_classes, in_units=architecture.WIDTHS[-1])
    named[architecture.HEAD] = head
    net.add(nn.GlobalAvgPool2D(), nn.Flatten(), head)
    net.initialize(ctx=mx.cpu())
    for name, part in named.items():
        pairs = {"weight": "weight"} if isinstance(part, nn.Conv2D) else {"weight": "weight", "bias": "bias"}
        if isinstance(part, nn.BatchNorm):
            pairs = {"gamma": "weight", "beta": "bias", "running_mean": "running_mean", "running_var": "running_var"}
        for own, exchanged in pairs.items():
            getattr(part, own).set_data(nd.array(job.weights[f"{name}.{exchanged}"]))
    net.hybridize(static_alloc=True, static_shape=True)
    return net


class Framework:
    """Trains the job's network on this rank."""

    def __init__(self, job, place, dtype, _wanted):
        if dtype != "f32":
            raise SystemExit("mxnet: f32 only: its CPU operations have no training path for bf16")
        self.name, self.version, self.variant = "MXNet", mx.__version__, "Gluon, hybridized"
        self.communication, self.store, self.ranks = "none", None, place.ranks
        self.net = network(job)
        self.loss = gluon.loss.SoftmaxCrossEntropyLoss()
        self.loss.hybridize(static_alloc=True, static_shape=True)
        if place.ranks > 1:
            self.store, self.communication = mx.kv.create("dist_sync"), "kvstore dist_sync, 1 server"
        options = {"learning_rate": job.learning_rate, "momentum": job.momentum, "wd": job.weight_decay}
        self.trainer = gluon.Trainer(self.net.collect_params(), "sgd", options, kvstore=self.store)

    def place(self, images, labels):
        """A batch as the network takes it: [N, C, H, W]."""
        return nd.array(images.transpose(0, 3, 1, 2)), nd.array(labels)

    def step(self, batch, learning_rate):
        """One update; the mean loss of this rank's samples."""
        images, labels = batch
        if self.trainer.learning_rate != learning_rate:
            self.trainer.set_learning_rate(learning_rate)
        with autograd.record():
            losses = self.loss(self.net(images), labels)
        losses.backward()
        # The gradient is of the sum of all samples.
        self.trainer.step(len(labels) * self.ranks)
        loss = float(losses.mean().asscalar())
        nd.waitall()
        return loss

    def logits(self, images):
        """Logits [N, K] with running statistics."""
        return np.asarray(self.net(nd.array(images.transpose(0, 3, 1, 2))).asnumpy())

    def barrier(self):
        """Waits for all ranks."""
        if self.store is not None:
            self.store._barrier()

    def finish(self):
        """Leaves together with the others; closing the store reports to the server that this worker is done."""
        self.barrier()
        # The network's parameters know the trainer, which knows the store.
        self.net = self.trainer = self.store = None
        gc.collect()
