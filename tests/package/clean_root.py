"""A minimal Debian system, made once by debootstrap and kept in .deps. Commands run in a temporary copy
(an overlay in memory), so each finds it clean."""
import hashlib
import os
import re
import shutil
import subprocess
import tempfile

SOURCE = os.environ["DTRAIN_SOURCE"]
KEPT = os.path.realpath(f"{SOURCE}/.deps") + "/clean-roots"
RELEASE = "bookworm"
# bare: the packages that pip needs, as on a machine for training. compiler: also those of a C++ project.
BARE = "ca-certificates,python3-venv"
COMPILER = "cmake g++ make pkg-config"
# The packages of each kind.
CONTENTS = {"bare": f"{RELEASE} {BARE}", "compiler": f"{RELEASE} {BARE} {COMPILER}"}
CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
         "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}

# Runs in a mount namespace of its own, which ends with the command, so nothing has to be unmounted.
SCRIPT = """
set -e
root=$1 work=$2 command=$3
shift 3
mount -t tmpfs none "$work"
mkdir "$work/upper" "$work/changes" "$work/root"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$work/upper,workdir=$work/changes" "$work/root"
mount -t proc proc "$work/root/proc"
mount --rbind /dev "$work/root/dev"
mount --rbind /sys "$work/root/sys"
mount -t tmpfs -o mode=1777 none "$work/root/tmp"
cp /etc/resolv.conf "$work/root/etc/resolv.conf"
while [ $# -gt 0 ]; do
  mkdir -p "$work/root$2"
  mount --rbind "$1" "$work/root$2"
  shift 2
done
exec chroot "$work/root" /bin/sh -exc "$command"
"""


def why_not():
    """Why no root can be made here; "" when one can."""
    if os.geteuid() != 0:
        return "not root: debootstrap and mounts need it"
    if not shutil.which("debootstrap"):
        return "debootstrap is not installed; ./dev deps test brings it"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        return "this root may not mount (a container without CAP_SYS_ADMIN)"
    return ""


def name_of(kind):
    """The name depends on the contents, so that a root made from older contents is not used."""
    return f"{RELEASE}-{kind}-{hashlib.sha256(CONTENTS[kind].encode()).hexdigest()[:8]}"


def remove_older():
    """Removes kept roots that were made from other contents."""
    for name in os.listdir(KEPT):
        if re.fullmatch(rf"\w+-({'|'.join(CONTENTS)})(-\w+)?", name) and name not in map(name_of, CONTENTS):
            shutil.rmtree(f"{KEPT}/{name}")


def make(kind):
    """The folder of the kept root `kind` (bare, compiler), made on first use; whole, or not there."""
    folder = f"{KEPT}/{name_of(kind)}"
    if os.path.isdir(folder):
        return folder
    os.makedirs(KEPT, exist_ok=True)
    remove_older()
    with tempfile.TemporaryDirectory(dir=KEPT) as work:
        fresh = f"{work}/root"
        if kind == "bare":
            quiet(["debootstrap", "--variant=minbase", f"--include={BARE}", RELEASE, fresh])
        else:
            subprocess.run(["cp", "-a", make("bare"), fresh], check=True)
            shutil.copy("/etc/resolv.conf", f"{fresh}/etc/resolv.conf")
            quiet(["chroot", fresh, "sh", "-ec", "apt-get update && apt-get install -y "
                   f"--no-install-recommends {COMPILER}"], env=CLEAN)
        quiet(["chroot", fresh, "apt-get", "clean"], env=CLEAN)
        os.rename(fresh, folder)
    return folder


def quiet(command, **options):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            check=False, **options)
    if result.returncode:
        raise AssertionError(f"{command} ended with {result.returncode}:\n{result.stdout[-3000:]}")


def run(kind, command, folders):
    """Runs the shell text `command` in a fresh copy of the root; gives (exit code, output).
    `folders`: {folder here: folder there}."""
    root = make(kind)
    places = [word for pair in folders.items() for word in pair]
    with tempfile.TemporaryDirectory(prefix="dtrain-root-") as work:
        result = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT,
                                 "clean-root", root, work, command, *places], stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                                timeout=900, env=CLEAN)
    return result.returncode, result.stdout
