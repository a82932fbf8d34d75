"""Boots guests with soft-RoCE: one alone, or two as two hosts with a link between them."""
import os
import shutil
import tempfile
import time

import guest
from ports import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
LISTENING = "0A"
LISTENER_BOUND_S = 120  # qemu listens before it boots a guest. Generous, for a busy machine.


def is_listening(port):
    """Whether some process listens at a TCP port. Nothing connects to it to find out: qemu takes the first
    connection for the link."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split() for line in file.readlines()[1:]]
    return any(row[1].endswith(f":{port:04X}") and row[3] == LISTENING for row in rows)


def await_listener(port, process):
    """Waits until the process listens. One that has ended is noticed later, with what it said."""
    end = time.monotonic() + LISTENER_BOUND_S
    while not is_listening(port) and process.poll() is None:
        if time.monotonic() > end:
            raise RuntimeError(f"process {process.pid} does not listen at port {port} after {LISTENER_BOUND_S} s")
        time.sleep(0.01)


class Lab:
    """The disk that guests boot, with `programs` (paths) in its /bin. Use as a context."""

    def __init__(self, kernel, programs):
        self.kernel, self.programs = kernel, programs

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="dtrain-roce-")
        try:
            self._make_disk()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make_disk(self):
        disk = guest.InitialDisk(self.folder)
        for program in self.programs:
            disk.add(program, "/bin/" + os.path.basename(program))
        for tool in guest.TOOLS:
            disk.add(guest.find_tool(tool), f"/bin/{tool}")
        disk.add_verbs()
        disk.add_kernel(self.kernel)
        self.disk = f"{self.folder}/initrd.gz"
        disk.write(self.disk, f"{HERE}/init.sh")
        self.accelerator = guest.choose_accelerator(self.kernel, self.disk)

    def alone(self, role, seconds, arguments=""):
        """Runs one guest until it powers off or its time is over; gives ({role: guest}, {role: whether it
        powered off})."""
        one = guest.Guest(self.kernel, self.disk, role, ["-net", "none"], self.accelerator,
                          arguments=arguments)
        return self._finish({role: one}, seconds)

    def pair(self, roles, seconds, arguments=""):
        """Like `alone`, with two guests at the same time; the first of `roles` listens for the link."""
        port, guests = free_port(), {}
        try:
            for role, end, mac in zip(roles, ("listen", "connect"), (1, 2)):
                network = ["-netdev", f"socket,id=n,{end}=127.0.0.1:{port}", "-device",
                           f"virtio-net-pci,netdev=n,romfile=,mac=52:54:00:00:00:0{mac}"]
                guests[role] = guest.Guest(self.kernel, self.disk, role, network, self.accelerator,
                                           512, 1, arguments)
                if end == "listen":
                    await_listener(port, guests[role].process)
        except BaseException:
            for one in guests.values():
                one.stop()
            raise
        return self._finish(guests, seconds)

    @staticmethod
    def _finish(guests, seconds):
        ends = time.monotonic() + seconds
        try:
            return guests, {role: one.finish(max(0, ends - time.monotonic()))
                            for role, one in guests.items()}
        except BaseException:  # Even when interrupted, no guest outlives its lab.
            for one in guests.values():
                one.stop()
            raise
