"""Makes packages of a finished build: a wheel, a Debian package and an archive to unpack anywhere.

./dev package calls it. Everything is written beside its place and renamed, so what lies in the output
folder is whole.
"""
import argparse
import errno
import os
import platform
import shutil
import sys
import tarfile
import tempfile

import bundle
import deb
import platform_tag
import tree
import wheel
from errors import FULL, PackageError, writing_below

KINDS = ("wheel", "deb", "archive")
# The Pythons that LibTorch's wheels are made for: folders that a wheel may find torch in.
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.14t")
IN_WHEEL = [f"python{version}/{packages}/torch" for version in PYTHONS
            for packages in ("site-packages", "dist-packages")]
IN_ARCHIVE = ["dtrain/torch"]
FREE_BYTES = 1 << 30  # The folder for temporary files holds several trees of some hundred MB.


def machine():
    if platform.system() != "Linux" or platform.machine() not in deb.MACHINES:
        raise PackageError(f"packages are made on Linux for {' and '.join(deb.MACHINES)}, not on "
                           f"{platform.system()} {platform.machine()}")
    return platform.machine()


def check_tools(kinds):
    needed = {"readelf": "binutils", "strip": "binutils", "patchelf": "packaging/tools.sh"}
    if "deb" in kinds:
        needed |= {"dpkg-deb": "dpkg", "dpkg-shlibdeps": "dpkg-dev"}
    for tool, source in needed.items():
        if not shutil.which(tool):
            raise PackageError(f"{tool} is not here; {source} brings it")


def check_space(folder):
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES:
        raise PackageError(f"{folder} has {free >> 20} MB free and {FREE_BYTES >> 20} MB are needed; free "
                           "some, or set TMPDIR to a larger folder")


def make_wheel(build, plain, work, kind):
    prefix = f"{work}/wheel"
    shutil.copytree(plain, prefix, symlinks=True)
    bundle.make_self_contained(build, prefix, IN_WHEEL)
    tag = platform_tag.platform_tag(prefix, kind.machine)
    name = wheel.file_name(build.version, tag)
    wheel.write(prefix, f"{work}/{name}", build.version, build.torch_release, tag, kind.level)
    return f"{work}/{name}"


def make_archive(build, plain, work, kind):
    name = f"dtrain-{build.version}-linux-{kind.machine}"
    prefix = f"{work}/{name}"
    shutil.copytree(plain, prefix, symlinks=True)
    bundle.make_self_contained(build, prefix, IN_ARCHIVE)
    with tarfile.open(f"{prefix}.tar.gz", "w:gz", compresslevel=kind.level) as file:
        file.add(prefix, arcname=name, filter=owned_by_root)
    return f"{prefix}.tar.gz"


def owned_by_root(entry):
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def make_deb(build, plain, work, kind):
    root = f"{work}/deb"
    shutil.copytree(plain, f"{root}/usr", symlinks=True)
    os.makedirs(f"{work}/shlibs")
    path = f"{work}/{deb.file_name(build.version, kind.machine)}"
    deb.write(root, path, build, kind.machine, f"{work}/shlibs")
    return path


MAKERS = {"wheel": make_wheel, "deb": make_deb, "archive": make_archive}


def put(path, folder):
    """Whole, or not there: copied beside its place first, as that may be another disk."""
    target = f"{folder}/{os.path.basename(path)}"
    try:
        shutil.copy(path, f"{target}.partial")
        os.replace(f"{target}.partial", target)
    finally:
        if os.path.exists(f"{target}.partial"):
            os.remove(f"{target}.partial")
    return target


def parse():
    parser = argparse.ArgumentParser(prog="./dev package", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--build", default="build/release", help="a finished build (default: %(default)s)")
    parser.add_argument("--out", default="dist", help="the folder to write to (default: %(default)s)")
    parser.add_argument("--only", choices=KINDS, action="append", dest="kinds", help="make this kind alone")
    parser.add_argument("--level", type=int, default=6, help="of compression, 0 to 9 (default: %(default)s)")
    kind = parser.parse_args()
    kind.kinds = kind.kinds or list(KINDS)
    return kind


def make_packages(kind):
    kind.machine = machine()
    check_tools(kind.kinds)
    build = tree.Build(kind.build)
    os.makedirs(kind.out, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dtrain-package-") as work:
        os.chmod(work, 0o755)
        check_space(work)
        with writing_below(work):
            tree.install(build, f"{work}/plain")
        for name in kind.kinds:
            with writing_below(work):
                made = MAKERS[name](build, f"{work}/plain", work, kind)
            with writing_below(kind.out):
                made = put(made, kind.out)
            print(f"{made}  {os.path.getsize(made) / 1e6:.1f} MB", flush=True)
        print(tree.halves(build, f"{work}/plain"))


def main():
    os.umask(0o022)  # Packages are read by all, whoever makes them.
    try:
        make_packages(parse())
    except PackageError as error:
        print(f"./dev package: {error}", file=sys.stderr)
        return 64
    except OSError as error:
        if error.errno not in (*FULL, errno.EACCES, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise
        advice = "free some space there, or " if error.errno in FULL else ""
        print(f"./dev package: {error.strerror}: {error.filename}; {advice}choose another folder with --out or "
              "TMPDIR", file=sys.stderr)
        return 66
    return 0


if __name__ == "__main__":
    sys.exit(main())
