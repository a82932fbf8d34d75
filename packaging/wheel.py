"""Writes a tree as a wheel that any Python 3 installs: bin/ as scripts, the rest below the prefix of
the environment (lib/, include/, share/)."""
import base64
import hashlib
import os
import zipfile

# A ZIP knows no time before 1980; equal trees give equal wheels.
WHEN = (1980, 1, 1, 0, 0, 0)
SUMMARY = "Distributed data-parallel training runtime in native C++20"
DESCRIPTION = """\
`dtrain train` trains a small GPT on this machine's CPU cores; `dtrain --help` lists the other commands.
No Python runs in a rank: the programs are native and load LibTorch from the torch package beside them.

A C++ program of your own: `cmake -DCMAKE_PREFIX_PATH=$(dtrain env --prefix)` and
`find_package(dtrain)`, or `PKG_CONFIG_PATH=$(dtrain env --prefix)/lib/pkgconfig pkg-config --cflags
--libs dtrain`; an example to copy is in share/dtrain/examples of the environment.
"""


def metadata(version, torch_release):
    return (f"Metadata-Version: 2.1\nName: dtrain\nVersion: {version}\nSummary: {SUMMARY}\n"
            "License: Apache-2.0\nRequires-Python: >=3.10\n"
            f"Requires-Dist: torch=={torch_release}\n"
            "Description-Content-Type: text/markdown\n\n" + DESCRIPTION)


def wheel_file(tag):
    return ("Wheel-Version: 1.0\nGenerator: dtrain packaging\nRoot-Is-Purelib: false\n"
            f"Tag: py3-none-{tag}\n")


def file_name(version, tag):
    return f"dtrain-{version}-py3-none-{tag}.whl"


class Writer:
    """Adds files to a wheel and keeps the list that pip checks them by."""

    def __init__(self, path, level):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level)
        self.record = []

    def add(self, name, content, mode=0o644):
        entry = zipfile.ZipInfo(name, WHEN)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100000 | mode) << 16
        self.zip.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def close(self, name):
        self.record.append(f"{name},,")
        entry = zipfile.ZipInfo(name, WHEN)
        entry.external_attr = 0o100644 << 16
        self.zip.writestr(entry, "\n".join(self.record) + "\n")
        self.zip.close()


def write(tree, path, version, torch_release, tag, level):
    writer = Writer(path, level)
    data, info = f"dtrain-{version}.data", f"dtrain-{version}.dist-info"
    for where, folders, names in os.walk(tree):
        folders.sort()
        for name in sorted(names):
            source = os.path.join(where, name)
            below = os.path.relpath(source, tree)
            target = f"{data}/scripts/{name}" if below == f"bin/{name}" else f"{data}/data/{below}"
            with open(source, "rb") as file:
                writer.add(target, file.read(), 0o755 if os.access(source, os.X_OK) else 0o644)
    writer.add(f"{info}/METADATA", metadata(version, torch_release).encode())
    writer.add(f"{info}/WHEEL", wheel_file(tag).encode())
    writer.close(f"{info}/RECORD")
