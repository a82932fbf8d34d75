"""Writes a plain installation as a Debian package. Its libraries are Debian's; LibTorch is not among
them, so it is named by DTRAIN_TORCH or by the link /usr/lib/dtrain/torch."""
import os
import re

import elf
from tree import run

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
# A program that includes dtrain's headers is compiled and linked with these packages.
DEVELOPMENT = ("libabsl-dev", "nlohmann-json3-dev", "libssl-dev")
# Programs open these when a run needs them: for checkpoints in object stores, and to write by io_uring.
OPENED = ("libcurl4", "liburing2")

CONTROL = """\
Package: dtrain
Version: {version}
Architecture: {machine}
Maintainer: dtrain <dtrain@localhost>
Installed-Size: {kilobytes}
Depends: {depends}
Recommends: {recommended}
Section: science
Priority: optional
Description: distributed data-parallel training runtime in native C++20
 Programs, static libraries, headers, a CMake package and a pkg-config file.
 .
 LibTorch {torch} is not part of Debian and not of this package. Install torch
 {torch} with pip and let /usr/lib/dtrain/torch lead to its folder
 (.../site-packages/torch), or set DTRAIN_TORCH to it.
"""


def depends(tree, torch, work):
    """The packages that the programs need, by dpkg-shlibdeps."""
    os.makedirs(f"{work}/debian")
    with open(f"{work}/debian/control", "w", encoding="utf-8") as file:
        file.write("Source: dtrain\n\nPackage: dtrain\nArchitecture: any\n")
    programs = [path for path in elf.elf_files(tree) if "libdtrain_" not in path]
    said = run(["dpkg-shlibdeps", "-O", "--ignore-missing-info", f"-l{torch}/lib",
                *(f"-e{path}" for path in programs)], cwd=work)
    return re.search(r"shlibs:Depends=(.*)", said)[1]


def write(tree, path, build, machine, work):
    """`tree` holds usr/; `work` is an empty folder."""
    size = sum(os.lstat(os.path.join(where, name)).st_size
               for where, _, names in os.walk(tree) for name in names)
    control = CONTROL.format(version=build.version, machine=MACHINES[machine], kilobytes=size // 1024,
                             depends=depends(tree, build.torch, work),
                             recommended=", ".join((*OPENED, *DEVELOPMENT)), torch=build.torch_release)
    os.makedirs(f"{tree}/DEBIAN")
    with open(f"{tree}/DEBIAN/control", "w", encoding="utf-8") as file:
        file.write(control)
    os.rename(f"{tree}/usr/share/doc/dtrain/LICENSE", f"{tree}/usr/share/doc/dtrain/copyright")
    run(["dpkg-deb", "--build", "--root-owner-group", "-Zxz", "-z1", tree, path])


def file_name(version, machine):
    return f"dtrain_{version}_{MACHINES[machine]}.deb"
