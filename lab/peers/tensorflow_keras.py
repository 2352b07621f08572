"""TensorFlow: a Keras network, its step traced to a graph; several ranks by MultiWorkerMirroredStrategy with its ring.

In: the job. Out: [`Framework`]. Invariant: weight decay is added to the gradient, as in the other frameworks; Keras's own is
decoupled from it.
"""

import time

import architecture
import keras
import numpy as np
import tensorflow as tf


class Shortcut(keras.layers.Layer):
    """Every second pixel, with channels of zeros on both sides."""

    def __init__(self, padding, **options):
        super().__init__(**options)
        self.padding = padding

    def call(self, x):
        """[N, H, W, C] to [N, H / 2, W / 2, C + 2 padding]."""
        return tf.pad(x[:, ::2, ::2, :], [[0, 0], [0, 0], [0, 0], [self.padding, self.padding]])

    def compute_output_shape(self, shape):
        """The shape of `call`'s result."""
        return (shape[0], shape[1] // 2, shape[2] // 2, shape[3] + 2 * self.padding)


def network(job):
    """The network with the job's initial weights."""
    named = {}

    def normalised(x, of):
        padding = "same"
        if of.stride == 2:
            # "same" would pad only the far sides, the other frameworks pad all.
            x, padding = keras.layers.ZeroPadding2D(1)(x), "valid"
        named[of.convolution] = keras.layers.Conv2D(of.c_out, 3, of.stride, padding, use_bias=False)
        named[of.norm] = keras.layers.BatchNormalization(
            momentum=architecture.KEPT_STATISTICS, epsilon=architecture.EPSILON
        )
        return named[of.norm](named[of.convolution](x))

    images = keras.layers.Input((job.image_size, job.image_size, 3))
    x = keras.layers.ReLU()(normalised(images, architecture.STEM))
    for block in architecture.blocks(job.depth):
        y = keras.layers.ReLU()(normalised(x, block.first))
        y = normalised(y, block.second)
        if block.padding:
            x = Shortcut(block.padding)(x)
        x = keras.layers.ReLU()(keras.layers.Add()([x, y]))
    named[architecture.HEAD] = keras.layers.Dense(job.num_classes, dtype="float32")
    model = keras.Model(images, named[architecture.HEAD](keras.layers.GlobalAveragePooling2D()(x)))
    for name, layer in named.items():
        layer.set_weights(weights_of(job, name, layer))
    return model


def weights_of(job, name, layer):
    """The job's arrays of one layer in Keras's order and layout."""
    if isinstance(layer, keras.layers.Conv2D):
        return [job.weights[f"{name}.weight"].transpose(2, 3, 1, 0)]
    if isinstance(layer, keras.layers.Dense):
        return [job.weights[f"{name}.weight"].T, job.weights[f"{name}.bias"]]
    return [job.weights[f"{name}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")]


class Framework:
    """Trains the job's network on this rank."""

    def __init__(self, job, place, dtype, _wanted):
        tf.config.threading.set_intra_op_parallelism_threads(place.threads)
        # Another thread sends while this one computes.
        tf.config.threading.set_inter_op_parallelism_threads(1 if place.ranks == 1 else 2)
        if dtype == "bf16":
            keras.mixed_precision.set_global_policy("mixed_bfloat16")
        self.name, self.variant, self.communication = "TensorFlow", "Keras, tf.function", "none"
        self.version = f"{tf.__version__} (Keras {keras.__version__})"
        self.ranks, self.weight_decay, self.learning_rate = place.ranks, job.weight_decay, job.learning_rate
        self.strategy = tf.distribute.get_strategy()
        if place.ranks > 1:
            ring = tf.distribute.experimental.CommunicationImplementation.RING
            options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
            self.strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
            self.communication = "MultiWorkerMirrored, ring over gRPC"
        with self.strategy.scope():
            self.model = network(job)
            self.optimizer = keras.optimizers.SGD(job.learning_rate, momentum=job.momentum)
            self.optimizer.build(self.model.trainable_variables)
        local = self._local_step
        run = local if place.ranks == 1 else lambda *batch: self.strategy.run(local, args=batch)
        self.traced_step = tf.function(run)
        self.traced_logits = tf.function(lambda images: self.model(images, training=False))
        self.traced_sum = tf.function(lambda: self.strategy.run(self._sum_of_ones))

    def _local_step(self, images, labels):
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
            # The optimizer sums over the ranks.
            share = loss / self.ranks
        variables = self.model.trainable_variables
        gradients = tape.gradient(share, variables)
        decay = self.weight_decay / self.ranks
        pairs = zip(gradients, variables)
        gradients = [tf.cast(gradient, tf.float32) + decay * tf.convert_to_tensor(value) for gradient, value in pairs]
        self.optimizer.apply(gradients, variables)
        return loss

    def _sum_of_ones(self):
        return tf.distribute.get_replica_context().all_reduce("sum", tf.constant(1.0))

    def place(self, images, labels):
        """A batch as the network takes it: [N, H, W, C]."""
        return tf.constant(images), tf.constant(labels.astype(np.int32))

    def step(self, batch, learning_rate):
        """One update; the mean loss of this rank's samples."""
        if self.learning_rate != learning_rate:
            with self.strategy.scope():
                self.optimizer.learning_rate.assign(learning_rate)
            self.learning_rate = learning_rate
        return float(self.strategy.experimental_local_results(self.traced_step(*batch))[0])

    def logits(self, images):
        """Logits [N, K] with running statistics."""
        return self.traced_logits(tf.constant(images)).numpy()

    def barrier(self):
        """Waits for all ranks."""
        if self.ranks > 1:
            float(self.strategy.experimental_local_results(self.traced_sum())[0])

    def finish(self):
        """Leaves together with the others."""
        self.barrier()
        if self.ranks > 1:
            # Another rank may still fetch this rank's part of the barrier, and fails if the socket
            # is closed.
            time.sleep(2)
