"""Writes Parquet files as Hugging Face publishes them, of the JPEG files next to this folder.

Needs pyarrow 26. Run: python3 make.py
"""

import json
from pathlib import Path

import pyarrow
from pyarrow import parquet

folder = Path(__file__).parent
names = ["cmyk", "grey", "progressive", "turned"] + [f"resize/rows_{name}" for name in ("420", "444", "grey", "restarts")]
files = [folder.parent / f"{name}.jpg" for name in names]
facts = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
image = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
schema = pyarrow.schema([("image", image), ("label", pyarrow.int64())], metadata={"huggingface": json.dumps(facts)})

for name, part in {
    "train-00000-of-00002": range(0, 5),
    "train-00001-of-00002": range(5, 8),
    "validation-00000-of-00001": range(3, 5),
}.items():
    images = [{"bytes": files[number].read_bytes(), "path": files[number].name} for number in part]
    table = pyarrow.table({"image": images, "label": [number // 4 for number in part]}, schema=schema)
    parquet.write_table(table, folder / f"{name}.parquet", row_group_size=2)
