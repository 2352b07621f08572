"""JAX: the whole step compiled by XLA; several ranks by jax.distributed, gradients averaged through gloo.

In: the job. Out: [`Framework`]. Invariant: parameters, velocities and running statistics live in one tree, which a step replaces.
"""

import architecture
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "ranks"


def convolved(x, kernel, stride, dtype):
    """[N, H, W, C] by [3, 3, C_in, C_out], one pixel of padding."""
    layout = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel.astype(dtype), (stride, stride), ((1, 1), (1, 1)), dimension_numbers=layout)


class Network:
    """The pure functions of the network. Parameters and statistics are dictionaries by the names of the weights."""

    def __init__(self, depth, dtype):
        self.blocks, self.dtype = architecture.blocks(depth), dtype

    def initial(self, weights):
        """Parameters and statistics of the exchanged weights, in XLA's layouts."""
        parameters, statistics = {}, {}
        for name, array in weights.items():
            is_statistic = name.rsplit(".", 1)[-1].startswith("running_")
            if array.ndim == 4:
                array = array.transpose(2, 3, 1, 0)
            elif array.ndim == 2:
                array = array.T
            (statistics if is_statistic else parameters)[name] = np.ascontiguousarray(array)
        return parameters, statistics

    def logits(self, parameters, statistics, images, is_training):
        """Logits [N, K] and the new statistics."""
        updated = {}

        def normalised(x, of):
            y = convolved(x, parameters[f"{of.convolution}.weight"], of.stride, self.dtype).astype(jnp.float32)
            names = [f"{of.norm}.{part}" for part in ("running_mean", "running_var")]
            mean, variance = (statistics[name] for name in names)
            if is_training:
                kept = architecture.KEPT_STATISTICS
                batch_mean = y.mean((0, 1, 2))
                batch_variance = jnp.maximum((y * y).mean((0, 1, 2)) - batch_mean * batch_mean, 0)
                for name, old, new in zip(names, (mean, variance), (batch_mean, batch_variance)):
                    updated[name] = kept * old + (1 - kept) * new
                mean, variance = batch_mean, batch_variance
            scale = lax.rsqrt(variance + architecture.EPSILON) * parameters[f"{of.norm}.weight"]
            return ((y - mean) * scale + parameters[f"{of.norm}.bias"]).astype(self.dtype)

        x = jax.nn.relu(normalised(images.astype(self.dtype), architecture.STEM))
        for block in self.blocks:
            y = jax.nn.relu(normalised(x, block.first))
            y = normalised(y, block.second)
            if block.padding:
                x = jnp.pad(x[:, ::2, ::2, :], ((0, 0), (0, 0), (0, 0), (block.padding, block.padding)))
            x = jax.nn.relu(x + y)
        features = x.astype(jnp.float32).mean((1, 2))
        head = architecture.HEAD
        return features @ parameters[f"{head}.weight"] + parameters[f"{head}.bias"], updated


class Framework:
    """Trains the job's network on this rank."""

    def __init__(self, job, place, dtype, _wanted):
        self.name, self.version, self.variant, self.communication = "JAX", jax.__version__, "jit", "none"
        self.ranks = place.ranks
        if place.ranks > 1:
            jax.config.update("jax_cpu_collectives_implementation", "gloo")
            jax.distributed.initialize(place.addresses[0], place.ranks, place.rank)
            self.communication = "jax.distributed, gloo"
        self.network = Network(job.depth, jnp.bfloat16 if dtype == "bf16" else jnp.float32)
        self.momentum, self.weight_decay = job.momentum, job.weight_decay
        parameters, statistics = self.network.initial(job.weights)
        state = (parameters, jax.tree.map(np.zeros_like, parameters), statistics)
        local = self._local_step
        if place.ranks > 1:
            mesh = Mesh(np.array(jax.devices()), (AXIS,))
            same, split = PartitionSpec(), PartitionSpec(AXIS)
            self.split = NamedSharding(mesh, split)
            everywhere = NamedSharding(mesh, same)
            state = jax.tree.map(lambda array: jax.make_array_from_process_local_data(everywhere, array), state)
            # Running statistics have the same name on all ranks, but each rank keeps its values, as
            # in the other frameworks.
            ins, outs = (same, same, same, split, split, same), ((same, same, same), split)
            local = jax.shard_map(local, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)
        else:
            state = jax.tree.map(jnp.asarray, state)
        self.state = state
        self.compiled_step = jax.jit(local, donate_argnums=(0, 1, 2))
        self.compiled_logits = jax.jit(lambda p, s, images: self.network.logits(p, s, images, False)[0])

    def _local_step(self, parameters, velocities, statistics, images, labels, learning_rate):
        def loss_of(parameters):
            logits, updated = self.network.logits(parameters, statistics, images, True)
            picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
            return -picked.mean(), updated

        (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(parameters)
        if self.ranks > 1:
            gradients = lax.pmean(gradients, AXIS)

        def velocity(old, gradient, value):
            return self.momentum * old + gradient + self.weight_decay * value

        velocities = jax.tree.map(velocity, velocities, gradients, parameters)
        parameters = jax.tree.map(lambda value, velocity: value - learning_rate * velocity, parameters, velocities)
        return (parameters, velocities, statistics), loss[None]

    def place(self, images, labels):
        """A batch as the network takes it: [N, H, W, C]."""
        labels = labels.astype(np.int32)
        if self.ranks == 1:
            return jnp.asarray(images), jnp.asarray(labels)
        return tuple(jax.make_array_from_process_local_data(self.split, array) for array in (images, labels))

    def step(self, batch, learning_rate):
        """One update; the mean loss of this rank's samples."""
        self.state, loss = self.compiled_step(*self.state, *batch, np.float32(learning_rate))
        return float(np.asarray(loss.addressable_shards[0].data)[0])

    def logits(self, images):
        """Logits [N, K] with running statistics."""
        parameters, _, statistics = self.state
        return np.asarray(self.compiled_logits(parameters, statistics, jnp.asarray(images)))

    def barrier(self):
        """Waits for all ranks."""
        if self.ranks > 1:
            multihost_utils.sync_global_devices("barrier")

    def finish(self):
        """Leaves together with the others."""
        self.barrier()
        if self.ranks > 1:
            jax.distributed.shutdown()
