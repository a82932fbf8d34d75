"""The manylinux tag of a tree: the oldest system that has all that its programs ask for.

The rules are those of auditwheel, the tool that judges wheels: for each system, which libraries are
part of it, and which versions of their symbols.
"""
import collections
import importlib.resources
import json

import elf
from errors import PackageError


def policies():
    """manylinux systems, oldest first."""
    text = importlib.resources.files("auditwheel").joinpath("policy/manylinux-policy.json").read_text("utf-8")
    systems = [p for p in json.loads(text) if p["name"].startswith("manylinux_")]
    return sorted(systems, key=lambda p: -p["priority"])


def system_parts():
    """Libraries that a package need not bring: those that every manylinux system has."""
    return set.intersection(*(set(p["lib_whitelist"]) for p in policies())) | \
        {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def versions_of(tree):
    """All symbol versions that files of the tree ask for: {library: {version: the file}}."""
    found = collections.defaultdict(dict)
    for path in elf.elf_files(tree):
        for library, versions in elf.versions_needed(path).items():
            for version in versions:
                found[library].setdefault(version, path)
    return found


def lacking(policy, machine, versions):
    """The `versions` that `policy` lacks, e.g. "GLIBC_2.36 (bin/dtrain)". Libraries it does not
    name come with the package, or with LibTorch."""
    known = policy["symbol_versions"].get(machine, {})
    return [f"{library}_{version} ({path})" for library, files in versions.items() if library in known
            for version, path in files.items() if version not in known[library]]


def platform_tag(tree, machine):
    versions = versions_of(tree)
    missing = []
    for policy in policies():
        if not policy["symbol_versions"].get(machine):
            continue
        missing = lacking(policy, machine, versions)
        if not missing:
            return f"{policy['name']}_{machine}"
    raise PackageError(f"no manylinux system has {', '.join(missing[:3]) or machine}: build on an older "
                       "system, or for x86_64 or aarch64")
