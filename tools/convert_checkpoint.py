#!/usr/bin/env python3
"""Turns weights of PyTorch into safetensors, which `dtrain checkpoint import` reads.

    convert_checkpoint.py SOURCE OUT [--key KEY] [--strip PREFIX] [--dtype TYPE] [--max-shard-size SIZE]

SOURCE is one of
  - a folder of torch.distributed.checkpoint (DCP), with its .metadata and *.distcp files;
  - a file of torch.save that holds a state dict, or a dictionary with one in it (--key model).

OUT is a new file, as weights.safetensors, or a new folder that gets model.safetensors, or shards of
at most --max-shard-size with an index. Then:

    dtrain checkpoint import OUT runs/tuned
    dtrain launch ... -- PROGRAM --run-dir runs/tuned

You run this by hand, with a Python that has torch and safetensors; dtrain itself reads no file of
pickle. A file of torch.save is read with weights_only=True, so that code in it does not run. DCP's
.metadata is a pickle that torch reads without that guard: convert only folders that you trust.

Names must be those that the program saves (`dtrain checkpoint show RUN --tensors` lists them). --strip
takes a prefix off the names, such as "module." of DistributedDataParallel; --key names the place of the
state dict, with dots for dictionaries in dictionaries ("app.model"). Entries that are no tensors are
left out, and the output says so. Tensors that share memory are written once for each of their names.

Exit codes: 0 done; 64 SOURCE cannot be used, or OUT is there; 75 no room, or storage fails.
"""
import argparse
import errno
import json
import os
import pickle
import re
import shutil
import sys
import warnings

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
         "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
NAME = "convert_checkpoint"


class Refused(Exception):
    """An error that the user can mend, as one line."""


def size(text):
    digits = text.rstrip("KMGTIBkmgtib")
    unit = text[len(digits):].upper()
    if not digits.isdigit() or int(digits) == 0 or unit not in UNITS:
        raise argparse.ArgumentTypeError(f"\"{text}\" is no size; want one as 5GB or 512MiB")
    return int(digits) * UNITS[unit]


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(f"{message}; see --help")


def options_of(words):
    parser = Parser(prog=NAME, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--key", default="", help="place of the state dict in the file")
    parser.add_argument("--strip", default="", metavar="PREFIX", help="taken off the names that begin with it")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "fp16"], help="convert floats. Default: as they are")
    parser.add_argument("--max-shard-size", type=size, default=size("5GB"), metavar="SIZE",
                        help="largest file in a folder. Default: 5GB")
    return parser.parse_args(words)


def read_dcp(folder):
    """The content of a DCP folder as one dictionary, on this one process."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
    content = {}
    reader = dcp.FileSystemReader(folder)
    reader.read_metadata()  # Fails with what is wrong, where loading says that there is none.
    _load_state_dict(content, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return content


def dcp_errors():
    """DCP's error, which is none of Python's Exception."""
    from torch.distributed.checkpoint.api import CheckpointException
    return CheckpointException


def cause_of(error):
    """The error inside of DCP's, whose text is a traceback of many lines."""
    failures = getattr(error, "failures", None)
    return next(iter(failures.values()))[0] if failures else error


def text_of(error):
    """One line about `error`, without torch's advice to read the file in a way that runs code in it."""
    if isinstance(error, EOFError):
        return "a file ends too early"
    if isinstance(error, pickle.UnpicklingError) and "Weights only" in str(error):
        return ("it is no file of torch.save, or holds other things than tensors, numbers, lists and dictionaries; "
                "save model.state_dict() instead of the model")
    return str(error).strip().split("\n")[0] or type(error).__name__


def read_source(path):
    import torch
    if os.path.isdir(path):
        if not os.path.isfile(f"{path}/.metadata"):
            raise Refused(f"{path} is a folder without .metadata, so it is no checkpoint of "
                          "torch.distributed.checkpoint; give such a folder or a file of torch.save")
        reader = read_dcp
    elif os.path.isfile(path):
        def reader(file):
            return torch.load(file, map_location="cpu", weights_only=True)
    else:
        raise Refused(f"{path} is not there" if not os.path.exists(path) else f"{path} is no file and no folder")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # They are torch's words to programmers.
            return reader(path)
    except OSError:
        raise
    except (Exception, dcp_errors()) as error:  # torch raises many kinds for files that are not what they should be.
        cause = cause_of(error)
        if isinstance(cause, OSError):
            raise cause from error
        raise Refused(f"{path} cannot be read by torch {torch.__version__}: {text_of(cause)}") from error


def chosen(content, key):
    """The dictionary at `key`."""
    at = content
    for part in filter(None, key.split(".")):
        if not isinstance(at, dict) or part not in at:
            names = ", ".join(map(str, list(at)[:8])) if isinstance(at, dict) else "no dictionary"
            raise Refused(f"--key {key}: there is no \"{part}\"; there are: {names}")
        at = at[part]
    if not isinstance(at, dict):
        raise Refused(f"a state dict is a dictionary of tensors by name; found {type(at).__name__}: "
                      "save model.state_dict() instead of the model")
    return at


def check_array(name, value):
    """Refuses tensors that are not one value in memory for each element."""
    import torch
    kind = ("on the meta device" if value.is_meta else "quantized " + str(value.dtype).removeprefix("torch.")
            if value.is_quantized else "" if value.layout == torch.strided else
            str(value.layout).removeprefix("torch."))
    if kind:
        raise Refused(f"tensor {name} is {kind}, which safetensors does not hold: save it as a plain tensor, or "
                      "leave it out of the state dict")


def tensors_of(state, strip, dtype):
    """The tensors by their names in OUT, and the names that are left out."""
    import torch
    to = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    tensors, left_out = {}, []
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            left_out.append(str(name))
            continue
        public = str(name).removeprefix(strip)
        if public in tensors:
            raise Refused(f"two tensors are called {public} once --strip {strip} is taken off")
        check_array(public, value)
        tensors[public] = value.detach()
        if to is not None and value.is_floating_point():
            tensors[public] = tensors[public].to(to)
            known = value.float() if value.itemsize == 1 else value  # torch does not ask fp8 what is finite.
            if known.isfinite().all() and not tensors[public].isfinite().all():
                raise Refused(f"tensor {public} has values beyond the range of {dtype}: take bf16 or fp32")
    if not tensors:
        inner = [str(name) for name, value in state.items() if isinstance(value, dict)]
        raise Refused("there is no tensor among " + (", ".join(map(str, list(state)[:8])) or "nothing")
                      + (f"; try --key {inner[0]}" if inner else ""))
    return tensors, left_out


def shards_of(tensors, most):
    """Names by file, each file at most `most` bytes unless one tensor alone is larger."""
    shards, filled = [[]], 0
    for name in sorted(tensors):
        if shards[-1] and filled + tensors[name].nbytes > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += tensors[name].nbytes
    return shards


def save(tensors, path):
    from safetensors import SafetensorError
    from safetensors.torch import save_file
    try:
        # A copy each: safetensors refuses tensors that share memory.
        save_file({name: value.contiguous().clone() for name, value in tensors.items()}, path,
                  metadata={"format": "pt"})
    except SafetensorError as error:  # It names the system's error by its number alone.
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise Refused(f"{path} cannot be written by safetensors: {text_of(error)}") from error
        raise OSError(int(number[1]), os.strerror(int(number[1])), path) from error
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def write(tensors, out, most):
    """Writes `out` under another name and renames it, so that it appears whole or not at all."""
    needed = sum(value.nbytes for value in tensors.values())
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(out))).free
    if free < needed:
        raise OSError(errno.ENOSPC, f"{needed} bytes are needed, {free} are free", out)
    partial = f"{out}.partial-{os.getpid()}"
    try:
        if out.endswith(".safetensors"):
            save(tensors, partial)
        else:
            os.mkdir(partial)
            shards = shards_of(tensors, most)
            names = (["model.safetensors"] if len(shards) == 1 else
                     [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)])
            for file, members in zip(names, shards):
                save({name: tensors[name] for name in members}, f"{partial}/{file}")
            if len(shards) > 1:
                index = {"metadata": {"total_size": needed},
                         "weight_map": {name: file for file, members in zip(names, shards) for name in members}}
                with open(f"{partial}/model.safetensors.index.json", "w", encoding="utf-8") as file:
                    json.dump(index, file, indent=2)
        os.rename(partial, out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if os.path.isfile(partial):
            os.remove(partial)
        raise
    return needed


def convert(options):
    options.out = options.out.rstrip("/") or "/"
    if os.path.lexists(options.out):
        raise Refused(f"{options.out} is there; it is left alone: give a path where nothing is")
    try:
        import safetensors.torch  # noqa: F401
        import torch  # noqa: F401
    except ImportError as error:
        raise Refused(f"{error}; this script needs torch and safetensors: pip install torch safetensors") from None
    state = chosen(read_source(options.source), options.key)
    tensors, left_out = tensors_of(state, options.strip, options.dtype)
    needed = write(tensors, options.out, options.max_shard_size)
    print(f"wrote {len(tensors)} tensors ({needed} bytes) to {options.out}")
    if left_out:
        print(f"left out, because they are no tensors: {', '.join(left_out[:8])}"
              + (f" and {len(left_out) - 8} more" if len(left_out) > 8 else ""))
    print(f"next: dtrain checkpoint import {options.out} RUN_DIR")


def main(words):
    """Gives the exit code."""
    try:
        convert(options_of(words))
        return 0
    except Refused as refusal:
        print(f"{NAME}: {refusal}", file=sys.stderr)
        return 64
    except OSError as failure:
        print(f"{NAME}: {failure.filename or 'storage'}: {failure.strerror}", file=sys.stderr)
        return 64 if failure.errno in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.EEXIST, errno.EISDIR,
                                       errno.ENOTDIR) else 75


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
