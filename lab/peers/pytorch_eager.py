"""PyTorch: eager or compiled, channels-last or contiguous; several ranks by DistributedDataParallel over gloo, or by Horovod over MPI.

In: the job. Out: [`Framework`]. Invariant: under Horovod only activations are channels-last: it refuses gradients that are not
contiguous.
"""

import contextlib

import pytorch_imagenet
import resnet
import torch
import torch.nn.functional as F


class Framework:
    """Trains the job's network on this rank."""

    def __init__(self, job, place, dtype, wanted):
        torch.set_num_threads(place.threads)
        torch.set_num_interop_threads(1)
        setting = place.setting
        mode, layout = setting.get("mode", "eager"), setting.get("layout", "channels-last")
        self.name, self.version, self.variant = "PyTorch DDP", torch.__version__, f"{mode}, {layout}"
        self.communication, self.horovod, self.is_gloo, self.is_contiguous = "none", None, False, False
        network = pytorch_imagenet.ResNet if job.is_imagenet else resnet.of_depth
        model = network(job.depth, job.num_classes)
        weights = {name: torch.from_numpy(array) for name, array in job.weights.items()}
        missing, unexpected = model.load_state_dict(weights, strict=False)
        if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
            raise ValueError(f"weights: expected the network's, missing {missing}, unexpected {unexpected}")
        self.model, self.dtype = model.train(), dtype
        if wanted == "horovod":
            self._use_horovod(model, job)
        else:
            self.is_contiguous = layout == "contiguous"
            if not self.is_contiguous:
                self.model = model.to(memory_format=torch.channels_last)
            self.optimizer = sgd(model, job)
            if place.ranks > 1:
                torch.distributed.init_process_group("gloo", rank=place.rank, world_size=place.ranks)
                self.is_gloo, self.communication = True, "DistributedDataParallel, gloo"
                bucket_mib = float(setting.get("bucket-mib", "25"))
                # The first bucket, of 1 MiB, must not be larger than the others; there is no
                # argument for it.
                first = torch.distributed._DEFAULT_FIRST_BUCKET_BYTES
                torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = min(first, int(bucket_mib * 2**20))
                # Each rank keeps its norms, as in the other frameworks: ranks exchange only
                # gradients.
                self.model = torch.nn.parallel.DistributedDataParallel(
                    model,
                    gradient_as_bucket_view=True,
                    broadcast_buffers=False,
                    bucket_cap_mb=bucket_mib,
                    static_graph=setting.get("graph") == "static",
                )
            if mode == "compile":
                self.model = torch.compile(self.model)

    def _use_horovod(self, model, job):
        import horovod
        import horovod.torch as hvd

        hvd.init()
        self.horovod = hvd
        self.name, self.version = "Horovod", f"{horovod.__version__} (PyTorch {torch.__version__})"
        self.variant, self.communication = "eager, channels-last activations", "Horovod, MPI"
        self.optimizer = hvd.DistributedOptimizer(sgd(model, job), named_parameters=model.named_parameters())

    def place(self, images, labels):
        """A batch as the network takes it: [N, C, H, W]."""
        return self._images(images), torch.from_numpy(labels).long()

    def _images(self, images):
        # NHWC memory seen as NCHW is PyTorch's channels-last.
        images = torch.from_numpy(images).permute(0, 3, 1, 2)
        return images.contiguous() if self.is_contiguous else images

    def step(self, batch, learning_rate):
        """One update; the mean loss of this rank's samples."""
        images, labels = batch
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad()
        with self._precision():
            logits = self.model(images)
        loss = F.cross_entropy(logits.float(), labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def logits(self, images):
        """Logits [N, K] with running statistics."""
        self.model.eval()
        with torch.inference_mode(), self._precision():
            logits = self.model(self._images(images)).float().numpy()
        self.model.train()
        return logits

    def _precision(self):
        if self.dtype == "bf16":
            return torch.autocast("cpu", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def barrier(self):
        """Waits for all ranks."""
        if self.is_gloo:
            torch.distributed.barrier()
        elif self.horovod:
            self.horovod.allreduce(torch.zeros(1), name="barrier")

    def finish(self):
        """Leaves together with the others."""
        self.barrier()
        if self.is_gloo:
            torch.distributed.destroy_process_group()
        elif self.horovod:
            self.horovod.shutdown()


def sgd(model, job):
    """Plain SGD on all parameters."""
    return torch.optim.SGD(
        model.parameters(), lr=job.learning_rate, momentum=job.momentum, weight_decay=job.weight_decay
    )
