"""Every header compiles as the first and only include of a file, with the warnings of its room.

Compiled at -O0 through the build's ccache, not with -fsyntax-only: a header alone has nothing to
generate code for, so that the first run costs the same, and later runs take seconds where
-fsyntax-only, which ccache refuses, would cost minutes each time. Object files as a part of the build
would cost every fresh build those minutes.
"""
import concurrent.futures
import json
import os
import shlex
import subprocess
import unittest

BUILD = os.environ["DTRAIN_BUILD"]
SOURCE = os.environ["DTRAIN_SOURCE"]
LAUNCHER = os.environ["DTRAIN_COMPILER_LAUNCHER"].split()
ROOMS = ("base", "kernels", "comm", "checkpoint", "runtime", "launcher")
# Bodies that are written for what stands before them, and say so.
PARTS = ("_impl.h", "simd_loops.h", "kernels/simd_core.h",
         "kernels/simd_several.h", "kernels/simd_sums.h")


def listed(*arguments):
    return subprocess.run(["git", "-C", SOURCE, "ls-files", "-co", "--exclude-standard", "--",
                           *arguments], capture_output=True, text=True, check=True).stdout.split()


def include_name(header):
    """As a user of the header writes it."""
    return header.removeprefix("runtime/include/")


def alone(command):
    """A compile command without its input, its output and the precompiled header."""
    words, kept, skip = shlex.split(command), [], 0
    for i, word in enumerate(words):
        if skip:
            skip -= 1
        elif word in ("-o", "-c", "-include"):
            skip = 1
        elif word != "-Winvalid-pch" and not (word.startswith("-O") and i > 0):
            kept.append(word)
    return [*kept, "-O0", "-g0"]


class Flags:
    """The compile commands of the sources that this build has."""

    def __init__(self):
        with open(f"{BUILD}/compile_commands.json", encoding="utf-8") as file:
            entries = json.load(file)
        self.commands = {os.path.relpath(e["file"], SOURCE): e["command"] for e in entries}
        self.includes = {}
        for path in sorted(self.commands):
            if path.startswith(ROOMS):
                with open(f"{SOURCE}/{path}", encoding="utf-8") as file:
                    self.includes[path] = file.read()

    def of(self, header):
        """Those of the source of its name, else of one that includes it, else of one of its room;
        None when this build has none (CUDA's headers where there is no CUDA)."""
        room = header.split("/")[0]
        line = f'#include "{include_name(header)}"'
        twin = header.removesuffix(".h") + ".cc"
        candidates = [twin] if twin in self.commands else []
        candidates += [p for p, text in self.includes.items() if line in text and p.startswith(room)]
        if not candidates and not header.startswith("comm/nccl/plugin/"):
            candidates += [p for p in self.includes if p.startswith(os.path.dirname(header))]
            candidates += [p for p in self.includes if p.startswith(room)]
        return alone(self.commands[candidates[0]]) if candidates else None


class Headers(unittest.TestCase):
    maxDiff = None

    def test_each_header_compiles_alone(self):
        flags, work = Flags(), {}
        for header in listed(*(f"{room}/**.h" for room in ROOMS)):
            command = None if header.endswith(PARTS) else flags.of(header)
            if command:
                work[header] = command
        self.assertGreater(len(work), 150)
        for header in listed("runtime/include/dtrain/*.h"):
            self.assertIn(header, work)
        folder = f"{BUILD}/generated/headers"  # The same each time, as ccache wants it.
        os.makedirs(folder, exist_ok=True)

        def compile_one(header):
            name = f"{folder}/{header.replace('/', '_')}"
            with open(f"{name}.cc", "w", encoding="utf-8") as file:
                file.write(f'#include "{include_name(header)}"\n')
            result = subprocess.run([*LAUNCHER, *work[header], "-c", f"{name}.cc", "-o", f"{name}.o"],
                                    cwd=BUILD, capture_output=True, text=True, check=False)
            return "" if result.returncode == 0 else f"{header}:\n{result.stderr[:2000]}"

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            failed = [text for text in pool.map(compile_one, sorted(work)) if text]
        self.assertFalse(failed, "\n".join(failed))


if __name__ == "__main__":
    unittest.main(verbosity=2)
