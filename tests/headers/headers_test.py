"""Every header compiles as the first and only include of a file, with the warnings of its room.

A run checks the headers that a change can have broken: those that differ from the last landed state,
and those that include one that differs. Since every change is checked so before it lands, all of them
stand alone. A text that this build has already proven is not compiled again. A file ends with a line
at which the compiler gives up: every name was looked up then, and the instances of templates, which
take two thirds of the time and find little that names do not, are not made. DTRAIN_HEADERS=all checks
all, to the end of the file, whatever changed: `./dev test long`.

Most of the time of such a file goes into a few heavy headers of libraries. They are precompiled, and a
header is given only what it includes itself, directly or through headers of ours, so that nothing is
lent to it that it would miss elsewhere.
"""
import collections
import concurrent.futures
import hashlib
import json
import os
import re
import shlex
import subprocess
import unittest

BUILD = os.environ["DTRAIN_BUILD"]
SOURCE = os.environ["DTRAIN_SOURCE"]
COMPILER = os.environ["DTRAIN_CXX"]
ALL = os.environ.get("DTRAIN_HEADERS") == "all"
ROOMS = ("base", "kernels", "comm", "checkpoint", "runtime", "launcher")
# Files of loop bodies that need definitions in front of them, as they say themselves.
PARTS = ("_impl.h", "simd_loops.h", "kernels/simd/simd_core.h",
         "kernels/simd/simd_several.h", "kernels/simd/simd_sums.h")
STATUS, TIME = "absl/status/statusor.h", "absl/time/time.h"
JSON, TENSOR = "nlohmann/json.hpp", "ATen/core/Tensor.h"
# Headers that are precompiled together, the largest set first: a header uses the first set of which it
# includes everything.
PRECOMPILED = ((STATUS, TIME, JSON, TENSOR), (TENSOR,), (STATUS, TIME, JSON), (STATUS, JSON),
               (STATUS, TIME), (STATUS,))
PRECOMPILED_MIN = 6  # Precompiling costs as much as compiling three or four files without it.
END = "every name was found"
ERROR = re.compile(r"error: (.*)")
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.M)


def git(*arguments):
    """The words that a git command prints; empty if it fails."""
    return subprocess.run(["git", "-C", SOURCE, *arguments], capture_output=True, text=True,
                          check=False).stdout.split()


def listed(*arguments):
    return git("ls-files", "-co", "--exclude-standard", "--", *arguments)


def last_landed():
    """The commit from which changes are counted: where this branch left origin/main or, for merged
    commits, the state before the merge. None if git does not know."""
    base, head = git("merge-base", "HEAD", "origin/main"), git("rev-parse", "HEAD")
    if base and base == head:
        base = git("rev-parse", "--verify", "--quiet", "HEAD^")
    return base[0] if base else None


def text_of(path):
    with open(f"{SOURCE}/{path}", encoding="utf-8") as file:
        return file.read()


def include_name(header):
    """The path of the header as a user includes it."""
    return header.removeprefix("runtime/include/")


def alone(command):
    """A compile command without its input, its output and the precompiled header."""
    words, kept, skip = shlex.split(command), [], 0
    for i, word in enumerate(words):
        if skip:
            skip -= 1
        elif word in ("-o", "-c", "-include"):
            skip = 1
        elif word != "-Winvalid-pch" and not word.startswith(("-O", "-g") if i else ()):
            kept.append(word)
    return kept


def code_options(command):
    """The options of a command in which precompiled headers must agree."""
    return tuple(sorted({word for word in command[1:] if word.startswith(("-f", "-m", "-std", "-D"))}))


def sources_of(path):
    """The C++ sources of ours that are compiled as `path`: several where it is a unity build's."""
    paths = [path]
    if "/Unity/unity_" in path:
        with open(path, encoding="utf-8") as file:
            paths = INCLUDE.findall(file.read())
    return [p for p in paths if p.endswith(".cc") and not p.startswith(f"{BUILD}/")]


class Includes:
    """The headers that our headers include, directly or through others of ours."""

    def __init__(self):
        self.direct = {}

    def of(self, path):
        if path not in self.direct:
            try:
                with open(f"{SOURCE}/{path}", encoding="utf-8") as file:
                    self.direct[path] = INCLUDE.findall(file.read())
            except FileNotFoundError:
                self.direct[path] = None
        return self.direct[path]

    def all_of(self, header):
        """(ours, {names of libraries' headers}). A header of ours that is gone is still ours."""
        ours, others, waiting = set(), set(), [header]
        while waiting:
            path = waiting.pop()
            if path in ours:
                continue
            ours.add(path)
            for name in self.of(path) or ():
                if self.of(f"runtime/include/{name}") is not None:
                    waiting.append(f"runtime/include/{name}")
                elif name.startswith(tuple(f"{room}/" for room in ROOMS)):
                    waiting.append(name)
                else:
                    others.add(name)
        return ours, others


class Flags:
    """The compile commands of the C++ sources that this build has."""

    def __init__(self):
        with open(f"{BUILD}/compile_commands.json", encoding="utf-8") as file:
            entries = json.load(file)
        self.commands = {os.path.relpath(path, SOURCE): entry["command"] for entry in entries
                         for path in sources_of(entry["file"])}
        self.includes = {path: text_of(path) for path in sorted(self.commands)}
        self.headers = {path: text_of(path) for path in listed("*.h") if not path.startswith("tests/")}

    def of(self, header):
        """The command of the source of its name, or of a source or a header that includes it, or of any
        source of its room; None when this build has none (such as CUDA's without CUDA)."""
        room = header.split("/")[0]
        line = f'#include "{include_name(header)}"'
        twin = header.removesuffix(".h") + ".cc"
        candidates = [twin] if twin in self.commands else []
        of_room = [p for p in self.includes if p.startswith(f"{room}/")]
        using = [p for p, text in self.includes.items() if line in text]
        candidates += [p for p in using if p in of_room] + using
        if not candidates:
            for path, text in self.headers.items():
                if line in text and (command := self.of(path)):
                    return command
        if not candidates and not header.startswith("comm/nccl/plugin/"):
            candidates += [p for p in self.includes if p.startswith(os.path.dirname(header))]
            candidates += of_room
        return alone(self.commands[candidates[0]]) if candidates else None


class Compiler:
    """Compiles headers alone, with the precompiled headers that they can use."""

    def __init__(self, pool):
        self.pool, self.includes = pool, Includes()
        self.folder = f"{BUILD}/generated/headers"
        os.makedirs(self.folder, exist_ok=True)
        self.version = subprocess.run([COMPILER, "--version"], capture_output=True, text=True,
                                      check=True).stdout

    def precompile(self, item):
        number, ((_, names), command) = item
        path = f"{self.folder}/precompiled-{number}.h"
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"#include <{name}>\n" for name in names)
        subprocess.run([*command, "-x", "c++-header", path, "-o", f"{path}.gch"], cwd=BUILD,
                       capture_output=True, text=True, check=True)
        return path

    def check(self, item):
        """The errors of one header; "" when it compiles alone."""
        header, command, precompiled, text = item
        path = f"{self.folder}/{header.replace('/', '_')}.cc"
        with open(path, "w", encoding="utf-8") as file:
            file.write(text if ALL else f'{text}static_assert(false, "{END}");\n')
        given = ["-Winvalid-pch", "-include", precompiled] if precompiled else []
        result = subprocess.run([*command, *given, "-fsyntax-only", "-Wfatal-errors", path], cwd=BUILD,
                                capture_output=True, text=True, check=False,
                                env={**os.environ, "LC_ALL": "C"})
        fine = result.returncode == 0 if ALL else \
            ERROR.findall(result.stderr) == [f"static assertion failed: {END}"]
        return "" if fine else f"{header}:\n{result.stderr[:2000]}"

    def digest(self, header, command):
        """The digest of all input that decides whether the header compiles, except libraries."""
        digest = hashlib.sha256(json.dumps([self.version, command, ALL]).encode())
        for path in sorted(self.includes.all_of(header)[0]):
            with open(f"{SOURCE}/{path}", "rb") as file:
                digest.update(path.encode() + b"\0" + file.read() + b"\0")
        return digest.hexdigest()

    def group_of(self, command, others):
        """The precompiled set for a header: (code options, names)."""
        return code_options(command), next(
            (names for names in PRECOMPILED if others.issuperset(names)), ())

    def errors(self, work):
        """{header: errors} of {header: (compile command, text of the file)}."""
        groups, commands = collections.defaultdict(list), {}
        for header, (command, text) in work.items():
            others = self.includes.all_of(header)[1] | set(INCLUDE.findall(text))
            group = self.group_of(command, others)
            groups[group].append(header)
            # The command of the member with the most include folders, so that every name is found.
            commands[group] = max(commands.get(group, []), command, key=len)
        made = {group: commands[group] for group, members in groups.items()
                if group[1] and len(members) >= PRECOMPILED_MIN}
        paths = dict(zip(made, self.pool.map(self.precompile, enumerate(made.items()))))
        items = [(header, work[header][0], paths.get(group), work[header][1])
                 for group, members in groups.items() for header in sorted(members)]
        return dict(zip([item[0] for item in items], self.pool.map(self.check, items)))


class Proven:
    """{header: digest} of headers that compiled alone in this build's last runs."""

    def __init__(self, path):
        self.path = path
        try:
            with open(path, encoding="utf-8") as file:
                self.digests = json.load(file)
        except FileNotFoundError:
            self.digests = {}

    def add(self, digests):
        self.digests.update(digests)
        with open(f"{self.path}.new", "w", encoding="utf-8") as file:
            json.dump(self.digests, file)
        os.replace(f"{self.path}.new", self.path)


class Headers(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
        cls.compiler = Compiler(cls.pool)
        flags = Flags()
        cls.work = {}
        for header in listed(*(f"{room}/**.h" for room in ROOMS)):
            command = None if header.endswith(PARTS) else flags.of(header)
            if command and os.path.exists(f"{SOURCE}/{header}"):
                cls.work[header] = (command, f'#include "{include_name(header)}"\n')

    @classmethod
    def tearDownClass(cls):
        cls.pool.shutdown()

    def chosen(self):
        """The headers to check, and why these."""
        base = None if ALL else last_landed()
        if base is None:
            return self.work, "all were asked for" if ALL else "no origin/main to compare with"
        changed = {*git("diff", "--name-only", base), *git("ls-files", "-o", "--exclude-standard")}
        return ({header: work for header, work in self.work.items()
                 if not changed.isdisjoint(self.compiler.includes.all_of(header)[0])},
                f"these, or what they include, differ from {base[:12]}")

    def test_each_header_compiles_alone(self):
        self.assertGreater(len(self.work), 150)
        for header in listed("runtime/include/dtrain/*.h"):
            self.assertIn(header, self.work)
        work, why = self.chosen()
        proven = Proven(f"{self.compiler.folder}/proven.json")
        digests = {header: self.compiler.digest(header, command)
                   for header, (command, _) in work.items()}
        known = () if ALL else [h for h in work if proven.digests.get(h) == digests[h]]
        print(f"{len(work)} of {len(self.work)} headers: {why}; {len(known)} of them are proven "
              "already", flush=True)
        errors = self.compiler.errors({h: work[h] for h in work if h not in known})
        proven.add({header: digests[header] for header, text in errors.items() if not text})
        failed = [text for text in errors.values() if text]
        self.assertFalse(failed, "\n".join(failed))

    def test_what_a_header_does_not_include_is_not_lent_to_it(self):
        command = self.work["base/agent_channel.h"][0]
        lent = "inline absl::Status nothing() { return {}; }\n"
        own = f"#include <{STATUS}>\n{lent}"
        # At least as many headers as precompiling is worth.
        work = {f"own-{i}.h": (command, own) for i in range(PRECOMPILED_MIN)}
        errors = self.compiler.errors({**work, "lent.h": (command, lent)})
        self.assertIn("absl", errors.pop("lent.h"))
        self.assertEqual(set(errors.values()), {""})


if __name__ == "__main__":
    unittest.main(verbosity=2)
