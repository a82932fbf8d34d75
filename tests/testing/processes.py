"""Facts about processes of this host, read from /proc, for tests that check what is left behind."""
import glob
import os

LISTENING = "0A"


def marked_processes(mark):
    """[(pid, command)] of the processes with `mark` ("NAME=value") in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                marked = mark.encode() in file.read().split(b"\0")
            if marked:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    found.append((int(pid), file.read().replace(b"\0", b" ").decode(errors="replace")))
        except OSError:  # The process has ended, or belongs to another user.
            pass
    return found


def descriptors(pid):
    """The targets of the process's descriptors."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return []
    found = []
    for name in names:
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            pass
    return found


def segments_of(pid):
    """Names of dtrain's shared memory that the process has open or mapped. Segments are memfds, which
    appear in no folder."""
    texts = descriptors(pid)
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            texts += file.read().splitlines()
    except OSError:
        pass
    return sorted({text[text.index("memfd:dtrain"):].split(" ")[0] for text in texts
                   if "memfd:dtrain" in text})


def socket_inodes(pid):
    return {text[8:-1] for text in descriptors(pid) if text.startswith("socket:[")}


def listening(*pids):
    """[(address as in /proc/net/tcp, port)] of the TCP listeners of processes in the network namespace
    of the first."""
    inodes, found = set().union(*map(socket_inodes, pids)), []
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pids[0]}/net/{table}", encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        found += [(row[1].rsplit(":", 1)[0], int(row[1].rsplit(":", 1)[1], 16)) for row in rows
                  if row[3] == LISTENING and row[9] in inodes]
    return found


def cpu_ticks(pid):
    """User and system time of all threads of the process; None when it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    except OSError:
        return None


def is_asleep(pid):
    """Whether every thread of the process waits for something else than a CPU or a disk."""
    for path in glob.glob(f"/proc/{pid}/task/*/stat"):
        try:
            with open(path, encoding="ascii", errors="replace") as file:
                if file.read().rsplit(")", 1)[1].split()[0] != "S":
                    return False
        except OSError:  # The thread has ended.
            pass
    return True


def pending_signals(pid):
    """Numbers of the signals that are pending for the process."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            masks = [int(line.split()[1], 16) for line in file if line.startswith(("SigPnd", "ShdPnd"))]
    except OSError:
        return set()
    return {bit + 1 for mask in masks for bit in range(64) if mask >> bit & 1}
