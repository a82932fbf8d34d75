"""Resident memory of processes, and its peak from a moment on, as the kernel counts it."""
import contextlib
import mmap
import os
import threading

from jobs import rank_pids


def memory_of(pid, names=("VmRSS", "VmHWM")):
    """{name: bytes} of /proc/PID/status; {} when the process is gone."""
    found = {}
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in names:
                    found[name] = int(rest.split()[0]) * 1024
    except OSError:
        pass
    return found


def forget_peak(pid):
    """Sets the peak of a process's resident memory to what is resident now, and gives that."""
    with open(f"/proc/{pid}/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # proc(5)
    return memory_of(pid).get("VmRSS", 0)


def back_free_memory(size):
    """Takes `size` bytes of the memory that is free, or half of it if that is less, and gives them back at once.
    The host of a virtual machine takes free memory away and finds it again at its first touch, which costs
    seconds a GB; a program that starts within the next seconds finds memory that is there, as on a machine of
    its own."""
    size = min(size, os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE // 2) // mmap.PAGESIZE * mmap.PAGESIZE
    if size <= 0:
        return
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as taken:
        with contextlib.suppress(OSError):  # A kernel without huge pages.
            taken.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, size, mmap.PAGESIZE):
            taken[at] = 1


class PeakWatch:
    """The peak of each rank's resident memory from one moment on, over what it was then."""

    def __init__(self):
        self.launcher = None  # Its pid, as soon as it is known.
        self.before, self.peak = {}, {}
        self.begun = threading.Event()

    def begin(self):
        for pid in rank_pids(self.launcher):
            self.before[pid] = self.peak[pid] = forget_peak(pid)
        self.begun.set()

    def look(self):
        if self.begun.is_set():
            for pid in self.before:
                self.peak[pid] = max(self.peak[pid], memory_of(pid).get("VmHWM", 0))

    def growth(self):
        return max((self.peak[pid] - self.before[pid] for pid in self.before), default=0)
