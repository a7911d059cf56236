"""damage.py CODE: makes D, a copy of the policy `base` of three shards, and runs CODE in the folder of its only version.

Its digest is recorded already, so that hashing does not find the damage first.
"""
import json
import os
import shutil
import sys

SHARD = "model-00002-of-00003.safetensors"


def header(change, shards=(1, 2, 3)):
    """Rewrites the headers of shards; `change` gets each as a dictionary."""
    for shard in shards:
        name = f"model-0000{shard}-of-00003.safetensors"
        data = open(name, "rb").read()
        length = int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8:8 + length])
        change(tensors)
        declare(len(json.dumps(tensors)), json.dumps(tensors).encode(), data[8 + length:], name)


def norm(**fields):
    """Changes fields of the final norm."""
    header(lambda tensors: tensors.get("model.norm.weight", {}).update(fields))


def first(**fields):
    """Changes fields of a shard's first tensor."""
    header(lambda tensors: tensors[next(name for name in tensors if name != "__metadata__")].update(fields), [2])


def declare(length, text, data=b"", name=SHARD):
    """Writes a shard whose header claims `length` bytes."""
    open(name, "wb").write(length.to_bytes(8, "little") + text + data)


def config(**fields):
    """Changes the model's configuration."""
    values = {**json.load(open("config.json")), **fields}
    json.dump(values, open("config.json", "w"))


def index(**places):
    """Writes the index of shards with the final norm elsewhere, or without any tensor."""
    values = json.load(open("model.safetensors.index.json"))
    values["weight_map"] = {**values["weight_map"], "model.norm.weight": places["norm"]} if places else {}
    json.dump(values, open("model.safetensors.index.json", "w"))


def link(target, name):
    """Replaces a file by a link."""
    if os.path.exists(name):
        os.remove(name)
    os.symlink(target, name)


def tensor(shape, end):
    """A shard of 3 GiB, without any data, whose only tensor is of `shape`."""
    sparse(0, json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}).encode())


def sparse(length, text=b""):
    """A shard of 3 GiB whose header claims `length` bytes, or as many as its text has."""
    declare(length or len(text), text)
    os.truncate(SHARD, max(3 << 30, len(text)))


shutil.rmtree("D", ignore_errors=True)
shutil.copytree("base", "D", symlinks=True)
os.chdir("D/step-000000")
exec(sys.argv[1])
