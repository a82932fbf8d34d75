"""Two hosts, each a network namespace, with a bad link between them: packets are late by different times and
overtake each other, some are lost or come twice, the link can be cut, and connections can be reset. `tc netem`
does most of that where a kernel has it; here each host has a TUN device, and a thread of this process carries the
packets. Needs root."""
import collections
import contextlib
import fcntl
import heapq
import os
import random
import select
import socket
import struct
import subprocess
import threading
import time

ADDRESSES = ("10.80.0.1", "10.80.0.2")
MTU_BYTES = 8000  # Large packets are few, and a Python program carries them.
TUN = "/dev/net/tun"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def why_not():
    """"" when TUN devices can be made here, else what is missing."""
    try:
        os.close(open_device(f"dtp{os.getpid()}"))
    except OSError as error:
        return f"{TUN}: {error}"
    return ""


def open_device(name):
    """A descriptor of the device, whose reads and writes are packets. The device goes with it."""
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(device)
        raise
    return device


def ip(words):
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


def with_checksum(header, at, before=b""):
    """The header with the Internet checksum at byte `at`, which counts `before` too."""
    total = sum(struct.unpack(f"!{len(before + header) // 2}H", before + header))
    total = (total & 0xFFFF) + (total >> 16)
    total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return header[:at] + struct.pack("!H", total) + header[at + 2:]


def reset_before(packet):
    """A reset (RST) of the connection of a TCP packet of IPv4 at the place of the stream where the packet begins."""
    at = 4 * (packet[0] & 15)
    tcp = packet[at:at + 8] + bytes(4) + b"\x50\x04" + bytes(6)
    head = packet[:2] + struct.pack("!H", at + len(tcp)) + packet[4:10] + bytes(2) + packet[12:at]
    addresses = packet[12:20] + struct.pack("!HH", socket.IPPROTO_TCP, len(tcp))
    return with_checksum(head, 10) + with_checksum(tcp, 16, addresses)


class BadLink:
    """Use as a context. Each packet takes one of `delays_s` (least, most) beyond the time that `mbit` gives it;
    the shares `lost` and `repeated` of them never come, or come twice. `counts` says what has happened."""

    def __init__(self, delays_s, mbit, lost, repeated):
        self.delays_s, self.bytes_per_s, self.lost, self.repeated = delays_s, mbit * 1e6 / 8, lost, repeated
        self.spaces = [f"dtb-{os.getpid()}-{side}" for side in "ab"]
        self.devices = []
        self.counts = collections.Counter()
        self._random = random.Random(29)
        self._is_cut = threading.Event()
        self._resets_from_bytes = None
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def __enter__(self):
        try:
            for side, (space, address) in enumerate(zip(self.spaces, ADDRESSES)):
                ip(f"netns add {space}")
                cable = f"dtb{os.getpid()}{'ab'[side]}"
                self.devices.append(open_device(cable))
                ip(f"link set {cable} netns {space}")
                ip(f"-n {space} addr add {address}/24 dev {cable}")
                ip(f"-n {space} link set lo up")
                ip(f"-n {space} link set {cable} mtu {MTU_BYTES} up")
            self._thread.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()
        for device in self.devices:
            os.close(device)
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    @contextlib.contextmanager
    def cut(self):
        """Nothing comes through, neither what is sent meanwhile nor what is under way."""
        self._is_cut.set()
        try:
            yield
        finally:
            self._is_cut.clear()

    @contextlib.contextmanager
    def resets(self, from_bytes):
        """A reset of its connection arrives ahead of each TCP packet of at least so many bytes."""
        self._resets_from_bytes = from_bytes
        try:
            yield
        finally:
            self._resets_from_bytes = None

    def _carry(self):
        free_at = [0.0, 0.0]    # When each side has sent what it was given.
        last_seen = [-1, -1]    # The latest packet that has come from each side.
        under_way = []          # A heap of (when it arrives, number, side that sent it, packet).
        number = 0
        while not self._ends.is_set():
            now = time.monotonic()
            while under_way and under_way[0][0] <= now:
                _, of_packet, side, packet = heapq.heappop(under_way)
                self.counts["overtaken"] += of_packet < last_seen[side]
                last_seen[side] = max(last_seen[side], of_packet)
                self._deliver(1 - side, packet)
            wait_s = min(0.05, max(0.0, under_way[0][0] - now)) if under_way else 0.05
            readable = select.select(self.devices, [], [], wait_s)[0]
            for side, device in enumerate(self.devices):
                if device not in readable:
                    continue
                try:
                    packet = os.read(device, 1 << 16)
                except BlockingIOError:
                    continue
                free_at[side] = max(free_at[side], time.monotonic()) + len(packet) / self.bytes_per_s
                for _ in range(self._copies()):
                    heapq.heappush(under_way, (free_at[side] + self._random.uniform(*self.delays_s), number, side,
                                               packet))
                number += 1

    def _copies(self):
        """How many of a packet will arrive."""
        share = self._random.random()
        kind = "lost" if share < self.lost else "repeated" if share < self.lost + self.repeated else "sent"
        self.counts[kind] += 1
        return {"lost": 0, "sent": 1, "repeated": 2}[kind]

    def _deliver(self, side, packet):
        if self._is_cut.is_set():
            self.counts["cut"] += 1
            return
        with contextlib.suppress(OSError):  # The device's queue is full, or its host is gone: one more is lost.
            from_bytes = self._resets_from_bytes
            if from_bytes is not None and len(packet) >= from_bytes and packet[9] == socket.IPPROTO_TCP:
                self.counts["reset"] += 1
                os.write(self.devices[side], reset_before(packet))
            os.write(self.devices[side], packet)
