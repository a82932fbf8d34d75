"""Measures what the disk gives alone and what the page cache holds: the bounds of a checkpoint's rates.

The disk is measured by a plain write and read with O_DIRECT, of as many bytes and by as many writers as
a checkpoint has. fio does it where it is installed, else threads of this process with as many blocks
in flight. What bounds a restore is a read of the checkpoint's own files: a disk may give files at very
different rates, by where they lie and by what the machine below caches.
"""
import concurrent.futures
import ctypes
import errno
import json
import mmap
import os
import select
import shutil
import subprocess
import sys
import threading
import time

BLOCK_BYTES = 4 << 20
IN_FLIGHT = 4  # Blocks of one writer.
IN_OPEN = 0x20  # <sys/inotify.h>


def probe_name():
    return "fio" if shutil.which("fio") else "O_DIRECT threads"


def files_of(folder):
    return [os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names]


def bytes_of(folder):
    return sum(os.path.getsize(path) for path in files_of(folder))


def drop_cache(folder):
    """The next read of these files comes from the disk."""
    for path in files_of(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def make_durable(folder):
    """Waits until the disk has the folder's files and their names."""
    for path in files_of(folder):
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    for parent, _, _ in os.walk(folder):
        handle = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(handle)
        os.close(handle)


def _fio(folder, way, blocks, writers):
    """Bytes a second. `way`: write or read; a read finds the files that the write before it left."""
    said = subprocess.run(
        ["fio", "--name=probe", f"--directory={folder}", f"--rw={way}", f"--bs={BLOCK_BYTES}",
         f"--size={blocks * BLOCK_BYTES}", f"--numjobs={writers}", "--direct=1", "--ioengine=libaio",
         f"--iodepth={IN_FLIGHT}", "--end_fsync=1", "--group_reporting", "--output-format=json"],
        capture_output=True, text=True, check=False)
    if said.returncode != 0:
        sys.exit(f"bench: fio ended with {said.returncode}:\n{said.stdout}{said.stderr}")
    return json.loads(said.stdout)["jobs"][0][way]["bw_bytes"]


def _open_direct(path, flags):
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        sys.exit(f"bench: {os.path.dirname(path)} has no O_DIRECT, so it is no disk: set TMPDIR to a "
                 "folder on one")


def _threads(folder, way, blocks, writers):
    handles = []
    for writer in range(writers):
        path = os.path.join(folder, f"probe.{writer}")
        handles.append(_open_direct(path, os.O_RDONLY if way == "read" else os.O_WRONLY | os.O_CREAT))
        if way == "write":
            os.posix_fallocate(handles[-1], 0, blocks * BLOCK_BYTES)
    buffers = [mmap.mmap(-1, BLOCK_BYTES) for _ in range(writers * IN_FLIGHT)]
    for buffer in buffers:
        buffer.write(os.urandom(BLOCK_BYTES))

    def stream(thread):
        handle, buffer = handles[thread // IN_FLIGHT], buffers[thread]
        for block in range(thread % IN_FLIGHT, blocks, IN_FLIGHT):
            at = block * BLOCK_BYTES
            done = os.pwrite(handle, buffer, at) if way == "write" else os.preadv(handle, [buffer], at)
            if done != BLOCK_BYTES:
                sys.exit(f"bench: an O_DIRECT {way} of {BLOCK_BYTES} bytes moved {done}")

    with concurrent.futures.ThreadPoolExecutor(len(buffers)) as pool:
        start = time.perf_counter()
        list(pool.map(stream, range(len(buffers))))
        if way == "write":
            for handle in handles:
                os.fsync(handle)
        seconds = time.perf_counter() - start
    for handle in handles:
        os.close(handle)
    return writers * blocks * BLOCK_BYTES / seconds


def direct_rates(folder, size, writers):
    """{"write_bytes_per_s", "read_bytes_per_s"} of at least `size` bytes in `folder`."""
    blocks = max(IN_FLIGHT, -(-size // (BLOCK_BYTES * writers)))
    probe = _fio if shutil.which("fio") else _threads
    os.makedirs(folder)
    rates = {f"{way}_bytes_per_s": probe(folder, way, blocks, writers) for way in ("write", "read")}
    shutil.rmtree(folder)
    return rates


def read_s(folder, readers):
    """Seconds in which O_DIRECT reads every byte of the files in `folder`."""
    handles = [_open_direct(path, os.O_RDONLY) for path in files_of(folder)]
    buffers = [mmap.mmap(-1, BLOCK_BYTES) for _ in range(readers * IN_FLIGHT)]
    for buffer in buffers:
        buffer.write(bytes(BLOCK_BYTES))  # Its pages are there before the clock runs.
    blocks = iter([(handle, at, min(BLOCK_BYTES, os.fstat(handle).st_size - at)) for handle in handles
                   for at in range(0, os.fstat(handle).st_size, BLOCK_BYTES)])
    ready = threading.Barrier(len(buffers) + 1)

    def stream(buffer):
        ready.wait()
        for handle, at, size in blocks:
            done = os.preadv(handle, [buffer], at)
            if done != size:
                sys.exit(f"bench: an O_DIRECT read of {size} bytes moved {done}")

    with concurrent.futures.ThreadPoolExecutor(len(buffers)) as pool:
        streams = [pool.submit(stream, buffer) for buffer in buffers]
        ready.wait()
        start = time.perf_counter()
        for future in streams:
            future.result()
        seconds = time.perf_counter() - start
    for handle in handles:
        os.close(handle)
    return seconds


class FirstLook(threading.Thread):
    """Waits until somebody opens `folder`; then notes `at`, when it was, and calls `then`."""

    def __init__(self, folder, then=lambda: None):
        super().__init__(daemon=True)
        self.at, self.then = None, then
        libc = ctypes.CDLL(None, use_errno=True)
        self.handle = libc.inotify_init1(os.O_CLOEXEC)
        if self.handle < 0 or libc.inotify_add_watch(self.handle, folder.encode(), IN_OPEN) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), folder)
        self.over = threading.Event()

    def run(self):
        while not self.over.is_set():
            if select.select([self.handle], [], [], 0.1)[0]:
                self.at = time.time()
                self.then()
                break

    def end(self):
        """When it was; None if nobody looked."""
        self.over.set()
        self.join()
        os.close(self.handle)
        return self.at
