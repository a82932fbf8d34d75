"""Opens dtrain's files with the reference library: check_model.py DIR.

DIR holds one folder a case, each with expected.json ([{name, dtype, shape, hex}]) and either
model.safetensors or shards with an index. Exits 1 and says what differs.
"""
import json
import pathlib
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool,
}


def tensor(entry):
    raw = bytearray.fromhex(entry["hex"])
    if not raw:
        return torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]])
    return torch.frombuffer(raw, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])


def raw_bytes(value):
    return bytes(value.contiguous().flatten().view(torch.uint8).numpy().tobytes())


def check(folder):
    expected = {e["name"]: tensor(e) for e in json.loads((folder / "expected.json").read_text())}
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if index.exists():
        weight_map = json.loads(index.read_text())["weight_map"]
    else:
        weight_map = {name: single.name for name in expected}
        reference = save(expected, metadata={"format": "pt"})
        if reference != single.read_bytes():
            sys.exit(f"{single} is not byte-equal to safetensors.torch.save")
    if set(weight_map) != set(expected):
        sys.exit(f"{folder}: names differ: {sorted(set(weight_map) ^ set(expected))}")
    for file in sorted(set(weight_map.values())):
        with safe_open(folder / file, framework="pt") as opened:
            if opened.metadata() != {"format": "pt"}:
                sys.exit(f"{file}: metadata {opened.metadata()}")
            names = {name for name, where in weight_map.items() if where == file}
            if set(opened.keys()) != names:
                sys.exit(f"{file} holds {sorted(opened.keys())}, the index says {sorted(names)}")
            for name in names:
                got = opened.get_tensor(name)
                want = expected[name]
                if got.dtype != want.dtype or got.shape != want.shape:
                    sys.exit(f"{name}: {got.dtype} {got.shape}, want {want.dtype} {want.shape}")
                if raw_bytes(got) != raw_bytes(want):
                    sys.exit(f"{name}: bytes differ")


cases = sorted(p for p in pathlib.Path(sys.argv[1]).iterdir() if p.is_dir())
if not cases:
    sys.exit("no cases")
for case in cases:
    check(case)
print(f"{len(cases)} models equal")
