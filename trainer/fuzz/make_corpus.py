"""Writes the seeds of the fuzz targets: small valid files, and hostile files that are rejected.

Run: python3 make_corpus.py. Needs Python 3.11, and pyarrow 26 for the Parquet files.
Without pyarrow the Parquet files are left unchanged.
This script does not write the files `crash-*` and `slow-*`, which fuzzing found.
"""

import gzip
import io
import json
import pickle
import struct
import sys
import tarfile
import types
import zipfile
import zlib
from pathlib import Path

fuzz = Path(__file__).parent
images = fuzz.parent.parent / "datasets" / "tests" / "images"


def write(target, name, content):
    path = fuzz / "corpus" / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    assert len(content) <= 4096, (name, len(content))
    path.write_bytes(content)


# CIFAR: a byte of flags (1: CIFAR-100, 2: class names of 64 bytes follow), then records.
pixels = bytes(i * 7 % 256 for i in range(3072))
write("cifar", "ten", b"\0" + bytes([3]) + pixels)
write("cifar", "hundred", b"\1" + bytes([9, 70]) + pixels)
write("cifar", "names", b"\2" + "\ufeff".encode() + b"a\r\nb\nc\nd\ne\nf\ng\nh\ni\nj".ljust(61) + bytes([9]) + pixels)
write("cifar", "label_out_of_range", b"\0" + bytes([10]) + pixels)
write("cifar", "cut", b"\1" + bytes([9, 70]) + pixels[:-1])
write("cifar", "empty", b"\0")

# Images: those of the tests, and headers that declare more data than the file has.
for path in images.iterdir():
    if path.suffix in (".gif", ".jpg", ".pgm", ".png", ".tif", ".webp"):
        write("image", path.name, path.read_bytes())
rows = ("420", "restarts", "scans", "vertical", "arithmetic", "arithmetic_progressive", "ink", "incomplete")
for name in rows:
    write("image", f"rows_{name}.jpg", (images / "resize" / f"rows_{name}.jpg").read_bytes())


def png_chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, depth, color, data):
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    chunks = png_chunk(b"IHDR", header) + png_chunk(b"IDAT", zlib.compress(data)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def bmp(width, height, data):
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, len(data), 0, 0, 0, 0)
    return struct.pack("<2sIHHI", b"BM", 54 + len(data), 0, 0, 54) + header + data


write("image", "pixel.png", png(1, 1, 8, 2, b"\0\1\2\3"))
write("image", "huge.png", png(60000, 60000, 8, 2, b"\0" * 1000))
write("image", "expands.png", png(4000, 4000, 8, 0, b"\0" * 2_000_000))
write("image", "pixel.bmp", bmp(1, 1, b"\1\2\3\0"))
write("image", "upside_down.bmp", bmp(2, -2, bytes(16)))
write("image", "huge.bmp", bmp(60000, 60000, b""))
lossless = b"\x2f" + struct.pack("<I", 16383 | 16383 << 14) + bytes(3)
chunk = b"WEBPVP8L" + struct.pack("<I", len(lossless)) + lossless
write("image", "huge.webp", b"RIFF" + struct.pack("<I", len(chunk)) + chunk)
write("image", "empty", b"")


# Archives.
def tar(*entries):
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for name, kind, content in entries:
                info = tarfile.TarInfo(name)
                info.type = kind
                info.size = len(content) if kind == tarfile.REGTYPE else 0
                info.linkname = content.decode() if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE) else ""
                archive.addfile(info, io.BytesIO(content) if kind == tarfile.REGTYPE else None)
        return file.getvalue()


def gz(content):
    return gzip.compress(content, mtime=0)


def small(content):
    return content.rstrip(b"\0").ljust((len(content.rstrip(b"\0")) + 511) // 512 * 512, b"\0")


release = "cifar-100-binary"
train = (f"{release}/train.bin", tarfile.REGTYPE, bytes([9, 70]) + bytes(3072))
test = (f"{release}/test.bin", tarfile.REGTYPE, bytes([9, 70]) + bytes(3072))
one = (f"{release}/train.bin", tarfile.REGTYPE, b"1")
two = (f"{release}/test.bin", tarfile.REGTYPE, b"2")
write("archive", "whole.tar.gz", gz(tar((release, tarfile.DIRTYPE, b""), train, test)))
write("archive", "small.tar", small(tar((release, tarfile.DIRTYPE, b""), one, two)))
for name, odd in {
    "symlink": (f"{release}/a", tarfile.SYMTYPE, b"/etc/passwd"),
    "hard_link": (f"{release}/a", tarfile.LNKTYPE, b"../../a"),
    "device": (f"{release}/a", tarfile.CHRTYPE, b""),
    "pipe": (f"{release}/a", tarfile.FIFOTYPE, b""),
    "twice": two,
    "escape": (f"{release}/../../a", tarfile.REGTYPE, b"3"),
    "absolute": ("/a", tarfile.REGTYPE, b"3"),
    "long_name": (f"{release}/" + "a" * 150, tarfile.REGTYPE, b"3"),
}.items():
    write("archive", f"{name}.tar", small(tar(one, two, odd)))
write("archive", "expands.tar.gz", gz(tar((f"{release}/train.bin", tarfile.REGTYPE, bytes(3_000_000)))))
write("archive", "empty.tar.gz", gz(b""))


# Shards of samples.
pixel = png(1, 1, 8, 2, b"\0\1\2\3")


def member(name, content):
    return name, tarfile.REGTYPE, content


image_1, label_1 = member("1.png", pixel), member("1.cls", b"1")
write("shards", "whole.tar", tar(image_1, label_1)[:3072])
write("shards", "json.tar", tar(image_1, member("1.json", b'{"label": 0}'))[:3072])
write("shards", "long_name.tar", tar(member("a" * 150 + ".png", pixel))[:3072])
write("shards", "no_label.tar", tar(image_1)[:2048])
write("shards", "no_image.tar", tar(label_1)[:2048])
write("shards", "twice.tar", tar(image_1, image_1, label_1)[:4096])
write("shards", "label_of_65536.tar", tar(image_1, member("1.cls", b"65536"))[:3072])
write("shards", "no_json.tar", tar(image_1, member("1.json", b"{"))[:3072])
write("shards", "cut.tar", tar(image_1, label_1)[:540])
write("shards", "no_end.tar", tar(image_1, label_1)[:2048])
write("shards", "symlink.tar", tar(("1.png", tarfile.SYMTYPE, b"/etc/passwd"), label_1)[:2560])
write("shards", "other_bytes.tar", tar(image_1)[:1024] + b"\7" * 1024)
write("shards", "empty", b"")


# Weights of a linear layer with 2 x 2 weights.
def safetensors(tensors, data, length=None):
    header = json.dumps(tensors, separators=(",", ":")).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


floats = struct.pack("<6f", 1, 2, 3, 4, 5, 6)
good = {"weight": entry([2, 2], 0, 16), "bias": entry([2], 16, 24)}
write("safetensors", "good", safetensors(good, floats))
write("safetensors", "half", safetensors({"weight": entry([2, 2], 0, 8, "F16"), "bias": entry([2], 8, 12, "BF16")}, floats[:12]))
write("safetensors", "metadata", safetensors({"__metadata__": {"format": "pt"}, **good}, floats))
write("safetensors", "header_of_10_gb", safetensors(good, floats, length=10 << 30))
write("safetensors", "header_of_all_bits", safetensors(good, floats, length=2**64 - 1))
write("safetensors", "overlapping", safetensors({"weight": entry([2, 2], 0, 16), "bias": entry([2], 8, 16)}, floats[:16]))
write("safetensors", "huge_offsets", safetensors({"weight": entry([2, 2], 2**63, 2**63 + 16)}, floats))
write("safetensors", "huge_shape", safetensors({"weight": entry([2**32, 2**32], 0, 0)}, b""))
write("safetensors", "no_elements", safetensors({"weight": entry([0, 2**62], 0, 0), "bias": entry([2], 0, 8)}, floats[:8]))
write("safetensors", "empty", b"")


# PyTorch's classes, as far as a pickle names them.
torch, utilities = types.ModuleType("torch"), types.ModuleType("torch._utils")
FloatStorage = type("FloatStorage", (), {"__module__": "torch"})


def _rebuild_tensor_v2():
    raise NotImplementedError


_rebuild_tensor_v2.__module__ = "torch._utils"
torch.FloatStorage, torch._utils, utilities._rebuild_tensor_v2 = FloatStorage, utilities, _rebuild_tensor_v2
sys.modules.update({"torch": torch, "torch._utils": utilities})


class Storage:
    def __init__(self, key, num_elements):
        self.key, self.num_elements = key, num_elements


class Tensor:
    def __init__(self, storage, shape, stride, offset=0):
        self.arguments = (storage, offset, shape, stride, False, {})

    def __reduce__(self):
        return _rebuild_tensor_v2, self.arguments


def pickled(value, protocol=2, legacy=False):
    class Pickler(pickle.Pickler):
        def persistent_id(self, found):
            if isinstance(found, Storage):
                more = (None,) if legacy else ()
                return ("storage", FloatStorage, found.key, "cpu", found.num_elements, *more)
            return None

    with io.BytesIO() as file:
        Pickler(file, protocol=protocol).dump(value)
        return file.getvalue()


def archive(pickle_bytes, storages, compression=zipfile.ZIP_STORED):
    """Returns a zip archive without checksums. PyTorch accepts it, and a fuzzer can change it."""
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", compression) as out:
            entries = {"data.pkl": pickle_bytes, "version": b"3\n", "byteorder": b"little"}
            for name, content in {**entries, **{f"data/{key}": value for key, value in storages.items()}}.items():
                out.writestr(zipfile.ZipInfo(f"archive/{name}"), content, compress_type=compression)
        content = bytearray(file.getvalue())
    for magic, at in ((b"PK\3\4", 14), (b"PK\1\2", 16)):
        start = content.find(magic)
        while start >= 0:
            content[start + at : start + at + 4] = bytes(4)
            start = content.find(magic, start + 4)
    return bytes(content)


weights = {"weight": Tensor(Storage("0", 4), (2, 2), (2, 1)), "bias": Tensor(Storage("1", 2), (2,), (1,))}
storages = {"0": floats[:16], "1": floats[16:]}
write("pytorch", "good", archive(pickled(weights), storages))
write("pytorch", "state_dict", archive(pickled({"epoch": 3, "state_dict": weights}), storages))
write("pytorch", "net", archive(pickled({"net": weights, "acc": 95.1, "epoch": 3}), storages))
write("pytorch", "data_parallel", archive(pickled({"weights": {f"module.{name}": weight for name, weight in weights.items()}}), storages))
write("pytorch", "other_keys", archive(pickled({"ours": weights, "theirs": {**weights}, "epoch": 3}), storages))
write("pytorch", "deflated", archive(pickled(weights), storages, zipfile.ZIP_DEFLATED))
write("pytorch", "transposed", archive(pickled({**weights, "weight": Tensor(Storage("0", 4), (2, 2), (1, 2))}), storages))
write("pytorch", "stride_0_of_10_gb", archive(pickled({**weights, "weight": Tensor(Storage("0", 1), (50000, 50000), (0, 0))}), storages))
write("pytorch", "shape_beyond_storage", archive(pickled({**weights, "weight": Tensor(Storage("0", 2**40), (2**20, 2**20), (2**20, 1))}), storages))
write("pytorch", "pickle_expands", archive(pickled(weights)[:-1] + b"0" * 0 + b"]" * 3_000_000 + b".", {}, zipfile.ZIP_DEFLATED))
write("pytorch", "plain_pickle", pickled({"a": [1, 2.5, None, True], "b": ("c", b"d")}))
write("pytorch", "plain_pickle_protocol_0", pickled({"a": [1, 2.5, None], "b": ("c", 2**70)}, protocol=0))
write("pytorch", "plain_pickle_protocol_4", pickled({"a": {1, 2}, "b": "c" * 300}, protocol=4))
write("pytorch", "string_of_4_gb", b"\x80\x02\x8d" + struct.pack("<Q", 4 << 30) + b"a")
write("pytorch", "nested", b"\x80\x02" + b"]" * 2000 + b"a" * 1999 + b".")
write("pytorch", "empty", b"")
write("pytorch", "empty.zip", b"PK\5\6" + bytes(18))
write("pytorch", "zip_of_many_entries", b"PK\5\6" + bytes(4) + b"\xff\xff\xff\xff" + b"\xff" * 8 + bytes(2))

magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
system = pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, protocol=2)
head = magic + pickle.dumps(1001, protocol=2) + system
counted = struct.pack("<q", 4) + floats[:16] + struct.pack("<q", 2) + floats[16:]
write("pytorch", "legacy", head + pickled(weights, legacy=True) + pickle.dumps(["0", "1"], protocol=2) + counted)
sparse = bytearray(tar(("storages", tarfile.REGTYPE, b"")))[:512]
sparse[156:157] = tarfile.GNUTYPE_SPARSE
sparse[386:410] = b"%011o\0%011o\0" % (7 << 30, 0)
sparse[483:495] = b"%011o\0" % (7 << 30)
sparse[257:265] = b"ustar  \0"
sparse[148:156] = b" " * 8
sparse[148:156] = b"%06o\0 " % sum(sparse)
write("pytorch", "sparse.tar", bytes(sparse))


# Checkpoints: state, model and training tensors.
def checkpoint(training=None, **changes):
    state = {
        "format": 3,
        "version": "0.1.0",
        "progress": {
            "epoch": 1,
            "step": 5,
            "step_in_epoch": 2,
            "extra_steps": 0,
            "skipped_steps": 0,
            "images": 8,
            "epoch_seconds": 1.5,
            "epoch_scores": {"loss_sum": 1.5, "num_samples": 4, "top1_correct": 2, "top5_correct": 3},
            "best": {"epoch": 0, "monitor": "val-top1", "value": 0.5},
            "evaluations_since_best": 0,
            "last_record": None,
        },
        "world_size": 2,
        "parameter_hash": "0",
        "loss_scale": {"is_dynamic": False, "factor": 1, "num_good_steps": 0, "num_overflows": 0},
        "input": {"height": 8, "width": 8, "channels": 1, "mean": [0.5], "std": [0.25], "class_names": ["a", "b"]},
        "dataset_checksum": "0",
        "config": {},
        "files": {"model.safetensors": "@MODEL@", "training.safetensors": "@TRAINING@"},
        **changes,
    }
    if training is None:
        training = safetensors({"velocities": entry([2], 0, 8), "norm_statistics": entry([2, 2], 8, 24)}, floats)
    return b"\n====\n".join([json.dumps(state).encode(), safetensors(good, floats), training])


none = safetensors({"velocities": entry([0], 0, 0), "norm_statistics": entry([2**62, 0], 0, 0)}, b"")
write("checkpoint", "good", checkpoint())
moments = {"num_updates": entry([1], 0, 8, "U64"), "moments": entry([2, 1], 8, 16), "norm_statistics": entry([2, 1], 16, 24)}
write("checkpoint", "moments", checkpoint(safetensors(moments, floats)))
many = {"num_updates": entry([2], 0, 16, "U64"), "moments": entry([2, 1], 16, 24), "norm_statistics": entry([2, 0], 24, 24)}
write("checkpoint", "many_numbers_of_updates", checkpoint(safetensors(many, floats)))
write("checkpoint", "no_norms", checkpoint(safetensors({"velocities": entry([2], 0, 8), "norm_statistics": entry([2, 0], 8, 8)}, floats[:8])))
write("checkpoint", "many_ranks_without_norms", checkpoint(none, world_size=2**62))
write("checkpoint", "no_ranks", checkpoint(world_size=0))
write("checkpoint", "other_format", checkpoint(format=99))
write("checkpoint", "huge_image", checkpoint(input={"height": 2**62, "width": 2**62, "channels": 3, "mean": [0, 0, 0], "std": [1, 1, 1], "class_names": ["a"]}))
write("checkpoint", "nested", checkpoint(config="@").replace(b'"@"', b"[" * 500 + b"]" * 500))
write("checkpoint", "other_type", checkpoint(safetensors({"velocities": entry([2], 0, 8), "norm_statistics": entry([2, 4], 8, 24, "F16")}, floats)))
write("checkpoint", "wrong_checksum", checkpoint(files={"model.safetensors": "0", "training.safetensors": "0"}))


# Recorded files: parts whose first lines name the files.
def records(name, **files):
    parts = []
    for file, content in files.items():
        if isinstance(content, list):
            content = "\n".join(json.dumps(line) for line in content)
        elif not isinstance(content, str):
            content = json.dumps(content)
        parts.append(file + "\n" + content)
    write("records", name, "\n====\n".join(parts).encode())


scores = {"loss": 2.5, "top1": 0.25, "top5": 1.0, "num_samples": 4, "top1_correct": 1, "top5_correct": 4}


def epoch(number, **changes):
    seconds = {"data": 0.1, "forward": 1, "backward": 2, "communication": 0.5, "optimizer": 0.1}
    counts = {"train_num_samples": 8, "train_top1_correct": 4, "train_top5_correct": 8}
    losses = {"train_loss": 2 - number, "train_top1": 0.5, "val": {**scores, "top1": 0.25 * number}}
    speed = {"images_per_second": 10.5, "learning_rate": 0.1, "seconds": seconds, "seconds_total": 4, "peak_memory_bytes": 2**20}
    return {"epoch": number, "step": 2 * number + 2, **counts, **losses, **speed, "num_ranks": 2, **changes}


manifest = {
    "version": "0.1.0", "commit": "abc", "config_hash": "0", "started": "2026-01-01T00:00:00Z", "command_line": ["trainer"],
    "cpu_model": "x", "cpu_count": 2, "platform": "linux",
    "launch": {"ranks": 2, "threads_per_rank": 1, "nodes": ["n1"], "mpi_library": "", "device": "flex"},
    "dataset": {"name": "shapes", "num_train": 8, "num_test": 4, "train_checksum": "0", "test_checksum": "0"},
}
seconds_of_ranks = [{"rank": rank, "node": "n1", "num_steps": 2, "forward": 1.0, "backward": 2.0, "communication": rank} for rank in range(2)]
speed = {"mean": 10, "sigma": 1, "min": 9, "max": 11, "step_milliseconds_median": 400, "num_steps": 4}
summary = {
    "started": manifest["started"],
    "epochs": 2, "steps": 4, "images": 16, "parameter_hash": "0", "seconds_total": 8, "images_per_second": speed,
    "rank_seconds": seconds_of_ranks, "peak_memory_bytes": 2**20, "skipped_steps": 0, "stopped_early": False,
    "best": {"epoch": 1, "monitor": "val-top1", "value": 0.25}, "test": {"epoch": 1, **scores},
}
evaluation = {
    "split": "test", "epoch": 1, "dataset": "x test", "dataset_checksum": "0", **scores,
    "classes": [
        {"name": "a", "num_samples": 3, "correct": 1, "confused_with": [{"name": "b", "count": 2}]},
        {"name": "b", "num_samples": 1, "correct": 0, "confused_with": []},
    ],
    "confusion_matrix": [[1, 2], [1, 0, 5]],
}
progress = {
    "written": "2026-01-01T00:00:00Z", "phase": "training", "epoch": 1, "epochs": 2, "step": 3, "step_in_epoch": 1, "steps_per_epoch": 2,
    "session_steps": 3, "session_seconds": 6.5, "global_batch_size": 4, "loss": 0.5, "ranks": seconds_of_ranks,
}
toml = '[model]\nmodel = "resnet20"\n[data]\ndataset = "shapes"\n[schedule]\nepochs = 2\n'
log = "version 1\nwarning: slow\nerror (rank 0): gone\n  rank 1: waits\n"
hashes = [
    {"step": step, "losses": [f"{step}", "b"], "parameters": ["c", "d"], "tensors": ["e"], **({"names": ["w"]} if step == 0 else {})}
    for step in range(2)
]
records("run", **{"run.toml": toml, "manifest.json": manifest, "metrics.jsonl": [epoch(0), epoch(1)], "summary.json": summary, "evaluation.json": evaluation})
records("running", **{"run.toml": toml, "progress.json": progress, "metrics.jsonl": [epoch(0)], ".lock": "process 1 on n1", "train.log": log, "slurm-1.out": log})
records("hashes", **{"hashes.jsonl": hashes, "manifest-1.json": manifest})
records("torn", **{"metrics.jsonl": json.dumps(epoch(0)) + '\n{"epoch": 1, "st'})
records("huge_numbers", **{"metrics.jsonl": [epoch(2**63, train_loss=1e308), epoch(2**64 - 1, train_loss=-1e308, images_per_second=1e308)]})
settings = {"model": "resnet20", "dtype": "f32", "ranks": 2, "scaling": "weak", "batch_size_per_rank": 4, "sync": "allreduce", "network": "slow"}
cells = [{"id": "a", "kind": "train", "repetitions": 2, "settings": settings}, {"id": "n", "kind": "netbench", "settings": {"network": "slow"}}]
attempts = [
    {"cell": "a", "repetition": repetition, "attempt": 1, "status": "ok", "directory": "a", "result": {"images_per_second": 10.0 + repetition}}
    for repetition in (1, 2)
]
prediction = {
    "schema": "lockstep.prediction/1", "created": "2026-01-01T00:00:00Z", "model": "resnet20", "batch_size_per_rank": 4,
    "profile": {"forward_s": 1, "backward_s": 2, "buckets": [{"ready_s": 1, "bytes": 4}], "layers": [{"name": "fc", "seconds": 1}]},
    "network": {"name": "network", "source": "measured runs/n/r1a1/network.json", "alpha_s": 1e-5, "bytes_per_second": 1e9},
    "predictions": [{"cell": "a", "sync": "allreduce", "ranks": 2, "step_ms": 5, "images_per_second": 9.5, "speedup": 1.9, "efficiency": 0.95}],
}
fit = {"alpha_s": 1e-5, "beta_s_per_byte": 1e-9, "bandwidth_bytes_per_s": 1e9, "residual": 0.01, "worst_residual": 0.1, "worst_bytes": 8, "num_points": 2}
points = [
    {"bytes": 8**power, "seconds_median": 1e-5, "seconds_p10": 1e-5, "seconds_p90": 2e-5, "repetitions": 9, "stopped_by": "time"}
    for power in (1, 6)
]
network = {
    "environment": {
        "version": "0.1.0", "commit": "abc", "date": "2026-01-01", "command_line": [], "processor": "x", "processor_count": 2,
        "platform": "linux", "library": "", "ranks": 2, "nodes": 1, "node_of_rank": ["n1", "n1"],
    },
    "method": {"confidence": 0.95, "precision": 0.05, "seconds_per_point": 1, "most_repetitions": 9},
    "possible_pairs": 1,
    "point_to_point": [{"ranks": [0, 1], "nodes": ["n1", "n1"], "is_inside_node": True, "points": points, "fit": fit}],
    "links": {"inside_node": fit},
    "collectives": [{"operation": "all-reduce", "algorithm": "ring", "ranks": 2, "points": points}],
}
study = {"schema": "lockstep.study/1", "name": "s", "title": "t", "machine": {"cpu_count": 2}, "target_accuracy": 0.2, "cells": cells}
records("study", **{"study.json": study, "records.jsonl": attempts, "a/run/metrics.jsonl": [epoch(0), epoch(1)], "predictions/a.json": prediction})
records("network", **{"network.json": network})
records("prediction", **{"prediction.json": prediction})
compared = [
    {"id": "a", "kind": "bench", "settings": {"framework": "lockstep", "model": "resnet20", "dtype": "f32", "ranks": 2}, "repetitions": 1},
    {"id": "b", "kind": "bench", "settings": {"framework": "jax", "model": "resnet20", "dtype": "f32", "ranks": 2}, "setting": {"xla": "on"}},
    {"id": "c", "kind": "train", "settings": {"framework": "jax", "epochs": 1, "seed": 3}},
]
result = {"images_per_second": 9, "losses": [2.5, None], "peak_memory_bytes": 1, "epochs": [{"epoch": 1, "test_top1": 0.5, "elapsed_s": 9}]}
compared_attempts = [{"cell": cell, "repetition": 1, "attempt": 1, "status": "ok", "result": result} for cell in "abc"]
comparison = {"schema": "lockstep.study/1", "created": "2026-01-01", "machine": {"cpu_count": 2}, "cells": compared}
records("comparison", **{"study.json": comparison, "records.jsonl": compared_attempts})
events = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "rank 0 on n1"}}]
events += [{"name": name, "ph": "X", "ts": 0, "dur": 5, "pid": 0, "tid": 0} for name in ("forward", "backward")]
records("trace", **{"trace.json": {"traceEvents": events}})
records("nested", **{"trace.json": "[" * 1000})
write("records", "empty", b"")


# Parquet files as Hugging Face publishes them.
try:
    import pyarrow
    from pyarrow import parquet
except ModuleNotFoundError:
    print("no pyarrow: the Parquet files stay as they are")
else:
    image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    facts = {"info": {"features": {"label": {"names": ["cat", "dog"]}}}}
    described = {"huggingface": json.dumps(facts)}

    def parquet_file(name, labels, metadata=None, images=None, types=(image, pyarrow.int64()), **how):
        schema = pyarrow.schema([("image", types[0]), ("label", types[1])], metadata=metadata)
        images = images or [{"bytes": pixel, "path": "1.png"} for _ in labels]
        with io.BytesIO() as file:
            plain = {"use_dictionary": False, "write_statistics": False, "store_schema": False, "compression": "none"}
            parquet.write_table(pyarrow.table({"image": images, "label": labels}, schema=schema), file, **{**plain, **how})
            write("parquet", name, file.getvalue())

    parquet_file("two_groups", [0, 1, 1], described, row_group_size=2)
    parquet_file("snappy", [0, 1], described, compression="snappy")
    parquet_file("dictionary", [0, 1, 1, 0], use_dictionary=True, write_statistics=True)
    parquet_file("second_pages", [0, 1], data_page_version="2.0", compression="snappy")
    parquet_file("delta", [0, 1, 70], column_encoding={"label": "DELTA_BINARY_PACKED", "image.bytes": "DELTA_LENGTH_BYTE_ARRAY"})
    parquet_file("gzip", [0], compression="gzip")
    parquet_file("no_image", [0, 1], images=[None, {"bytes": None, "path": "1.png"}])
    parquet_file("no_label", [None, 1])
    parquet_file("label_below_0", [-1])
    parquet_file("label_of_65536", [65536])
    parquet_file("label_without_a_name", [2], described)
    parquet_file("labels_of_32_bits", [1], types=(image, pyarrow.int32()))
    parquet_file("texts", ["a"], types=(image, pyarrow.string()))
    parquet_file("no_rows", [], described, images=[])
    whole = (fuzz / "corpus/parquet/two_groups").read_bytes()
    write("parquet", "cut", whole[:-9])
    write("parquet", "footer_of_2_gb", whole[:-8] + struct.pack("<i", 2**31 - 1) + b"PAR1")
    write("parquet", "empty", b"")

# Configurations. `trainer config` printed the other files, with the flags in their first line.
write("config", "empty", b"")
