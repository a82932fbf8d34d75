"""The two ends of a Link (links.py) as hosts that one reaches over ssh, each with an sshd of its own."""
import os
import shlex
import subprocess
import sys
import tempfile
import time

import links

SSHD = "/usr/sbin/sshd"
PORT = 2222
NAMES = ("alpha", "beta")
LISTENS_WITHIN_S = 30

SSHD_CONFIG = """Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/{host}.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
PrintLastLog no
"""

# For every host; behind those that name a host's own settings.
SSH_CONFIG = """Host *
  Port {port}
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


def why_not():
    """"" where such hosts can be made, else what is missing."""
    if not os.path.exists(SSHD):
        return f"no {SSHD} (install openssh-server)"
    return links.why_not()


class SshHosts:
    """Use as a context, inside that of `link`. What starts the hosts is on the first of them."""

    def __init__(self, link):
        self.link, self.servers = link, []

    def __enter__(self):
        self.folder_object = tempfile.TemporaryDirectory(prefix="dtrain-bench-ssh-")
        self.folder = self.folder_object.name
        try:
            names = "".join(f"Host {name}\n  HostName {address}\n" for name, address in zip(NAMES, links.ADDRESSES))
            self._write("ssh_config", names + SSH_CONFIG.format(folder=self.folder, port=PORT) + "  LogLevel ERROR\n")
            self._write("hosts", "".join(f"{name} slots=1\n" for name in NAMES))
            for key in ("host_key", "key"):
                subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{self.folder}/{key}"],
                               check=True)
            os.makedirs("/run/sshd", exist_ok=True)  # sshd wants it, and does not make it.
            for name, address, space in zip(NAMES, links.ADDRESSES, self.link.spaces):
                self._start(name, address, space)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for server in self.servers:
            server.terminate()
            server.wait()
        self.folder_object.cleanup()

    @property
    def hostfile(self):
        return f"{self.folder}/hosts"

    @property
    def ssh_options(self):
        return f"-F {self.folder}/ssh_config"

    def on_first(self, command):
        """`command` as one that starts on the first host."""
        return ["ip", "netns", "exec", self.link.spaces[0], *command]

    def over_ssh(self, name, command, env):
        """The same for one that goes from there to the host `name`, in this folder and with `env`."""
        assignments = [f"{key}={value}" for key, value in env.items()]
        remote = shlex.join(["env", f"--chdir={os.getcwd()}", *assignments, *command])
        return self.on_first(["ssh", *shlex.split(self.ssh_options), name, "--", remote])

    def _write(self, name, text):
        with open(os.open(f"{self.folder}/{name}", os.O_WRONLY | os.O_CREAT, 0o600), "w",
                  encoding="utf-8") as file:
            file.write(text)

    def _start(self, name, address, space):
        self._write(f"{name}.sshd", SSHD_CONFIG.format(port=PORT, address=address, folder=self.folder, host=name))
        with open(f"{self.folder}/{name}.log", "w", encoding="utf-8") as log:
            server = subprocess.Popen(["ip", "netns", "exec", space, SSHD, "-D", "-e", "-f",
                                       f"{self.folder}/{name}.sshd"], stdin=subprocess.DEVNULL, stderr=log)
        self.servers.append(server)
        end = time.monotonic() + LISTENS_WITHIN_S
        while not os.path.exists(f"{self.folder}/{name}.pid"):  # Written when it listens.
            if server.poll() is not None or time.monotonic() > end:
                with open(f"{self.folder}/{name}.log", encoding="utf-8", errors="replace") as log:
                    sys.exit(f"bench: sshd of {name} does not listen at {address}:{PORT}:\n{log.read()}")
            time.sleep(0.01)
