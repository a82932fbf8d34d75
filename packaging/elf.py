"""Reads with binutils what programs and shared libraries need of others."""
import collections
import os
import re
import subprocess


def is_elf(path):
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def elf_files(folder):
    """Every program and shared library below `folder`."""
    return sorted(path for where, _, names in os.walk(folder) for name in names
                  if is_elf(path := os.path.join(where, name)))


def read(path, *flags):
    return subprocess.run(["readelf", "--wide", *flags, path], check=True, capture_output=True,
                          text=True).stdout


def needed(path):
    """The libraries that it names itself."""
    return re.findall(r"\(NEEDED\).*\[(.+)\]", read(path, "--dynamic"))


def versions_needed(path):
    """{"GLIBC": {"2.34", ...}, "GLIBCXX": {"3.4.30", ...}, ...}: the symbol versions it asks for."""
    found = collections.defaultdict(set)
    for name in re.findall(r"\bName: (\S+)\s+Flags:", needs_section(read(path, "--version-info"))):
        library, _, version = name.partition("_")
        found[library].add(version)
    return dict(found)


def needs_section(text):
    start = text.find("Version needs section")
    return "" if start < 0 else text[start:]


def system_libraries():
    """{soname: path} of the dynamic loader's cache, for this machine's own kind of program."""
    text = subprocess.run(["ldconfig", "-p"], check=True, capture_output=True, text=True,
                          env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin"}).stdout
    machine = {"x86_64": "x86-64", "aarch64": "AArch64"}[os.uname().machine]
    libraries = {}
    for name, kind, path in re.findall(r"^\s+(\S+) \(([^)]*)\) => (\S+)", text, re.MULTILINE):
        if machine in kind:
            libraries.setdefault(name, path)
    return libraries
