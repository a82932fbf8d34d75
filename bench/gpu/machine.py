"""Checks the machine of ./dev gpu run: its GPU, driver and memory, glibc, LibTorch."""
import json
import os
import platform
import re
import subprocess
import sys

from torch_release import TorchRelease, release, release_in

GLIBC = re.compile(rb"GLIBC_(\d+)[.](\d+)\0")
ASK_TORCH = ("import json, os, torch; print(json.dumps([os.path.dirname(torch.__file__), "
             "torch.__version__, torch.version.cuda]))")


def no_gpu_here():
    """Why there is no GPU, or None."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60,
                              check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi does not run ({error})"
    return None if "GPU" in done.stdout else f"nvidia-smi lists none ({done.stdout.strip()[:80]})"


def gpu_facts():
    query = "name,driver_version,memory.total"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], check=True,
                          capture_output=True, text=True).stdout
    name, driver, memory = (part.strip() for part in done.splitlines()[0].split(","))
    return {"gpu": name, "driver": driver, "memory": memory, "gpus": len(done.splitlines())}


def gigabytes(memory):
    """GB of a text of nvidia-smi's, such as "81559 MiB"."""
    return float(memory.split()[0]) * 2**20 / 1e9


def number_in(path, pattern=r"(\d+)"):
    """The first number in a file, or None."""
    try:
        with open(path, encoding="ascii") as file:
            found = re.search(pattern, file.read())
    except OSError:
        return None
    return int(found[1]) if found else None


def host_gb(meminfo="/proc/meminfo", cgroup="/sys/fs/cgroup"):
    """GB of the host's memory that a process can have: the available memory, or less if a container has
    a limit."""
    available = (number_in(meminfo, r"MemAvailable:\s+(\d+) kB") or 0) * 1024
    limit, used = number_in(f"{cgroup}/memory.max"), number_in(f"{cgroup}/memory.current")
    if limit is not None and used is not None:  # "max" is no number.
        cache = number_in(f"{cgroup}/memory.stat", r"inactive_file (\d+)") or 0
        available = min(available, limit - used + cache)
    return available / 1e9


def newest_glibc(path):
    """(major, minor) of the newest glibc that a program asks for."""
    with open(path, "rb") as file:
        return max((tuple(map(int, m)) for m in GLIBC.findall(file.read())), default=(0, 0))


def needs_newer_glibc(pack):
    """Why the pack's programs do not start here, or None."""
    mine = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2])
    asked = newest_glibc(f"{pack}/bin/dtrain-bench-mfu")
    return None if asked <= mine else (f"the pack was built for glibc {asked[0]}.{asked[1]}, this "
                                       f"machine has {mine[0]}.{mine[1]}: build it on an older system")


def torch_here():
    """(folder, release or None, whose) of DTRAIN_TORCH, else of this Python's torch; the folder is
    None and the last says why where there is none."""
    if folder := os.environ.get("DTRAIN_TORCH"):
        return folder, release_in(folder), f"DTRAIN_TORCH={folder}"
    found = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True,
                           check=False)
    if found.returncode != 0:
        said = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        return None, None, f"{sys.executable} has no torch that can be imported ({said[:120]})"
    folder, version, cuda = json.loads(found.stdout)
    return folder, release(version, cuda), sys.executable


def wrong_torch(packed, folder, found, whose):
    """Why the pack's programs cannot load this LibTorch, or None. `packed`: pack.json's; the others
    are torch_here()'s."""
    needed = TorchRelease(**packed) if packed else None
    to_have = "" if needed is None else (
        f"; this pack needs {needed.version} for CUDA {needed.cuda.split('.')[0]} (it was built with "
        f"{needed}): {needed.how_to_install()}")
    other = "or set DTRAIN_PYTHON to a Python that has it"
    if folder is None:
        return f"{whose}{to_have}, {other}" if to_have else f"{whose}; set DTRAIN_PYTHON or DTRAIN_TORCH"
    if needed is None or found is None or found.will_do_for(needed):
        return None
    return f"{whose} has torch {found}{to_have}, {other}"


def library_folders(torch):
    """The folders of LibTorch's libraries and, beside a wheel, of CUDA's."""
    folders = [f"{torch}/lib"]
    for where, names, _ in os.walk(os.path.join(os.path.dirname(torch), "nvidia")):
        if os.path.basename(where) == "lib":
            folders.append(where)
            names.clear()
    return folders
