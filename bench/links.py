"""Two network namespaces joined by a virtual cable, as two hosts with a link of a given rate."""
import itertools
import os
import subprocess
import sys

from runner import fail

ADDRESSES = ("10.77.0.1", "10.77.0.2")
_numbers = itertools.count()


def why_not():
    """"" when namespaces can be made here, else what is missing."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"dt-probe-{os.getpid()}"
    made = subprocess.run(f"ip netns add {name} && ip netns exec {name} true", shell=True,
                          capture_output=True, text=True, check=False)
    subprocess.run(f"ip netns del {name}", shell=True, capture_output=True, check=False)
    return "" if made.returncode == 0 else made.stderr.strip()


class Link:
    """Use as a context. `mbit`: what each direction carries; None: as fast as the host can."""

    def __init__(self, mbit=None):
        self.mbit = mbit
        number = f"{os.getpid()}-{next(_numbers)}"
        self.spaces = [f"dt-{number}-{side}" for side in "ab"]
        self.cables = [f"v{number}{side}"[-15:] for side in "ab"]

    @staticmethod
    def _ip(command):
        subprocess.run(command, shell=True, check=True, capture_output=True, text=True)

    def __enter__(self):
        try:
            for space in self.spaces:
                self._ip(f"ip netns add {space}")
            a, b = self.cables
            self._ip(f"ip link add {a} netns {self.spaces[0]} type veth peer name {b} "
                     f"netns {self.spaces[1]}")
            for space, cable, address in zip(self.spaces, self.cables, ADDRESSES):
                self._ip(f"ip -n {space} addr add {address}/24 dev {cable}")
                self._ip(f"ip -n {space} link set lo up")
                self._ip(f"ip -n {space} link set {cable} up")
                if self.mbit:
                    # Segments leave one by one, as from a NIC, or the bucket refuses large ones.
                    self._ip(f"ip netns exec {space} tc qdisc add dev {cable} root tbf "
                             f"rate {self.mbit}mbit burst 256kb limit 1mb")
        except subprocess.CalledProcessError as error:
            self.__exit__(None, None, None)
            sys.exit(f"bench: {error.cmd}: {error.stderr}")
        return self

    def __exit__(self, *_):
        for space in self.spaces:
            subprocess.run(f"ip netns del {space}", shell=True, capture_output=True, check=False)

    def start(self, command_of, env_of=lambda rank: {}):
        """Starts command_of(rank) in both namespaces, each on a core of its own."""
        ranks = []
        for rank, space in enumerate(self.spaces):
            command = ["ip", "netns", "exec", space, "taskset", "-c", str(rank % os.cpu_count()),
                       *command_of(rank)]
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                          text=True, env={**os.environ, **env_of(rank)}))
        return ranks

    @staticmethod
    def finish(ranks, timeout=600):
        """Waits for the programs of `start` and gives their outputs."""
        outputs = []
        for rank in ranks:
            try:
                outputs.append(rank.communicate(timeout=timeout)[0])
            except subprocess.TimeoutExpired:
                for other in ranks:
                    other.kill()
                raise
        if any(rank.returncode for rank in ranks):
            fail(ranks[0].args, [rank.returncode for rank in ranks], "\n".join(outputs))
        return outputs

    def run(self, command_of, env_of=lambda rank: {}, timeout=600):
        """Runs command_of(rank) in both namespaces, each on a core of its own; rank 0's output."""
        return self.finish(self.start(command_of, env_of), timeout)[0]

    def env(self, rank, port):
        """The environment by which ranks of torch.distributed meet over this link."""
        return {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": ADDRESSES[0],
                "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": self.cables[rank],
                "OMP_NUM_THREADS": "1"}
