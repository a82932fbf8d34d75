"""Guests with soft-RoCE: an initial RAM disk with the programs to run, and qemu to run them in.

Needs no privileges. The kernel is a Debian image that `./dev deps test` unpacks below .deps/kernel.
"""
import glob
import os
import shutil
import subprocess
import threading

MODULES = ("crc32_generic", "rdma_rxe", "ib_uverbs", "dummy", "virtio_net", "virtio_pci")
TOOLS = ("ip", "rdma", "ibv_devinfo", "ib_write_bw")
NEEDED = ("qemu-system-x86_64", "busybox", "cpio", "modprobe", "depmod", *TOOLS)
PROVIDERS = "/etc/libibverbs.d"


def find_tool(name):
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def kernel_of(source):
    """The kernel that $DTRAIN_GUEST_KERNEL names, or the one that `./dev deps test` unpacked."""
    return Kernel(os.environ.get("DTRAIN_GUEST_KERNEL", f"{source}/.deps/kernel"))


class Kernel:
    """The newest kernel below `folder`, or none."""

    def __init__(self, folder):
        self.folder = folder
        images = sorted(glob.glob(f"{folder}/boot/vmlinuz-*"))
        self.image = images[-1] if images else ""
        self.version = os.path.basename(self.image)[len("vmlinuz-"):]

    def modules(self):
        """Paths of the module files, in the order in which they load."""
        if not os.path.exists(f"{self.folder}/lib/modules/{self.version}/modules.dep"):
            subprocess.run([find_tool("depmod"), "-b", self.folder, self.version], check=True)
        paths = []
        for module in MODULES:
            shown = subprocess.run(
                [find_tool("modprobe"), "-d", self.folder, "-S", self.version, "--show-depends",
                 module], check=True, capture_output=True, text=True).stdout
            for line in shown.split("\n"):
                words = line.split()
                if words and words[0] == "insmod" and words[1] not in paths:
                    paths.append(words[1])
        return paths


def why_not(kernel):
    """The parts that are missing to start guests here; "" when none is."""
    missing = [tool for tool in NEEDED if not find_tool(tool)]
    if missing:
        return f"{', '.join(missing)} not installed (./dev deps test)"
    if not kernel.image:
        return f"no kernel in {kernel.folder} (./dev deps test)"
    if not glob.glob(f"{PROVIDERS}/rxe.driver"):
        return f"no {PROVIDERS}/rxe.driver: install ibverbs-providers (./dev deps test)"
    return ""


def libraries(program):
    """The shared libraries of a program, as the loader finds them."""
    shown = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    found = []
    for line in shown.split("\n"):
        words = line.split()
        found += [word for word in words if word.startswith("/")][:1]
    return found


class InitialDisk:
    """A folder that becomes the guest's root, packed by `write`."""

    def __init__(self, folder):
        self.root = f"{folder}/root"
        for name in ("bin", "proc", "sys", "dev", "tmp", "modules", "etc", "var/run"):
            os.makedirs(f"{self.root}/{name}")
        shutil.copy(find_tool("busybox"), f"{self.root}/bin/busybox")
        os.symlink("busybox", f"{self.root}/bin/sh")

    def add(self, path, where=None):
        """Adds a file with everything that it links, at its own path or at `where`."""
        target = self.root + (where or path)
        if os.path.exists(target):
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(os.path.realpath(path), target)
        os.chmod(target, 0o755)
        subprocess.run(["strip", "--strip-unneeded", target], check=False, capture_output=True)
        for library in libraries(path):
            self.add(library)

    def add_verbs(self):
        """Adds libibverbs, which is opened at run time, and its soft-RoCE provider."""
        for library in glob.glob("/usr/lib/*/libibverbs.so.1"):
            self.add(library)
            for provider in glob.glob(os.path.dirname(library) + "/libibverbs/librxe-*.so"):
                self.add(provider)
        os.makedirs(self.root + PROVIDERS)
        shutil.copy(f"{PROVIDERS}/rxe.driver", f"{self.root}{PROVIDERS}/rxe.driver")

    def add_kernel(self, kernel):
        names = []
        for path in kernel.modules():
            names.append(os.path.basename(path))
            shutil.copy(path, f"{self.root}/modules/{names[-1]}")
        with open(f"{self.root}/modules/order", "w", encoding="utf-8") as file:
            file.write("\n".join(names) + "\n")

    def write(self, path, init):
        shutil.copy(init, f"{self.root}/init")
        os.chmod(f"{self.root}/init", 0o755)
        subprocess.run(f"find . | {find_tool('cpio')} -o -H newc --quiet | gzip -1 > {path}",
                       shell=True, check=True, cwd=self.root)


KVM = ("-accel", "kvm", "-cpu", "host,arch-capabilities=off")
EMULATION = ("-accel", "tcg,thread=multi", "-cpu", "max")
PROBE_S = 30


def choose_accelerator(kernel, disk):
    """KVM if a guest really boots with it, which often fails on a host that is itself a guest; otherwise
    emulation, which takes about five times as long."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return EMULATION
    probe = Guest(kernel, disk, "probe", ["-net", "none"], KVM, 256, 1)
    probe.finish(PROBE_S)
    return KVM if "== booted" in probe.lines else EMULATION


class Guest:
    """A running guest, whose console is collected line by line. `arguments`: KEY=VALUE pairs for init.sh
    on the kernel's command line, in addition to the role."""

    def __init__(self, kernel, disk, role, network, accelerator, megabytes=1024, cores=2,
                 arguments=""):
        self.role = role
        self.lines = []
        command = [find_tool("qemu-system-x86_64"), *accelerator, "-m", str(megabytes), "-smp",
                   str(cores), "-nographic", "-no-reboot", "-nodefaults", "-serial", "stdio",
                   "-kernel", kernel.image, "-initrd", disk, "-append",
                   # On a busy host the guest's clock is late, and the kernel would take it for broken.
                   f"console=ttyS0 quiet panic=1 no_timer_check nowatchdog role={role} {arguments}",
                   *network]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, errors="replace")
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def finish(self, seconds):
        """Whether the guest powered off by itself in time."""
        try:
            self.process.wait(seconds)
            return True
        except subprocess.TimeoutExpired:
            self.stop()
            return False
        finally:
            self.reader.join(5)
            self.process.stdout.close()

    def stop(self):
        self.process.kill()
        self.process.wait()

    def text(self):
        return "\n".join(self.lines)

    def section(self, name):
        """The output between `== begin NAME` and `== end NAME CODE`, and the code (None: the command did
        not end)."""
        inside, out = False, []
        for line in self.lines:
            if line == f"== begin {name}":
                inside, out = True, []
            elif inside and line.startswith(f"== end {name} "):
                return out, int(line.split()[-1])
            elif inside:
                out.append(line)
        return out, None
