"""The files of ours that include nccl.h compile with the header of the oldest NCCL that the plugin opens.

That header is made from the one of this build, by leaving out the functions and the fields of
ncclConfig_t that came after version 2.19. The compiler looks at the files and makes no code."""
import json
import os
import re
import shlex
import subprocess
import tempfile
import unittest

BUILD = os.environ["DTRAIN_BUILD"]
SOURCE = os.environ["DTRAIN_SOURCE"]

VERSION = {"NCCL_MAJOR": 2, "NCCL_MINOR": 19, "NCCL_PATCH": 4, "NCCL_VERSION_CODE": 21904}
# nccl.h of NCCL 2.19.4 declares these.
FIELDS = {"size", "magic", "version", "blocking", "cgaClusterSize", "minCTAs", "maxCTAs", "netName",
          "splitShare"}
FUNCTIONS = {"ncclAllGather", "ncclAllReduce", "ncclBcast", "ncclBroadcast", "ncclCommAbort", "ncclCommCount",
             "ncclCommCuDevice", "ncclCommDeregister", "ncclCommDestroy", "ncclCommFinalize",
             "ncclCommGetAsyncError", "ncclCommInitAll", "ncclCommInitRank", "ncclCommInitRankConfig",
             "ncclCommRegister", "ncclCommSplit", "ncclCommUserRank", "ncclGetErrorString", "ncclGetLastError",
             "ncclGetUniqueId", "ncclGetVersion", "ncclGroupEnd", "ncclGroupStart", "ncclMemAlloc",
             "ncclMemFree", "ncclRecv", "ncclRedOpCreatePreMulSum", "ncclRedOpDestroy", "ncclReduce",
             "ncclReduceScatter", "ncclSend"}
DECLARATION = re.compile(r"^(?:__attribute__ \(\(.*\)\)\n)?(?:ncclResult_t|const char\*|void)\s+p?(nccl\w+)"
                         r"\([^;{}]*\);\n", re.M)
CONFIG = re.compile(r"^typedef struct ncclConfig_v\w+ \{\n.*?^\} ncclConfig_t;\n", re.M | re.S)
INITIALIZER = re.compile(r"^#define NCCL_CONFIG_INITIALIZER \{.*?^\}\n", re.M | re.S)


def commands():
    """{file that includes nccl.h: its compile command in words}."""
    with open(f"{BUILD}/compile_commands.json", encoding="utf-8") as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        path = os.path.relpath(entry["file"], SOURCE)
        if path.startswith("comm/") and path.endswith(".cc"):
            with open(entry["file"], encoding="utf-8") as file:
                if "#include <nccl.h>" in file.read():
                    found[path] = shlex.split(entry["command"])
    return found


def header_of(words):
    """The nccl.h that a command finds."""
    folders = [words[i + 1] for i, word in enumerate(words) if word == "-isystem"]
    return next(f"{folder}/nccl.h" for folder in folders if os.path.exists(f"{folder}/nccl.h"))


def kept_fields(lines, field):
    """The lines without those of which `field` gives the name of a field that 2.19 lacks."""
    names = [(line, field(line)) for line in lines.splitlines(keepends=True)]
    return "".join(line for line, name in names if name is None or name in FIELDS)


def field_of_struct(line):
    match = re.fullmatch(r"\s+[\w\s*]*?(\w+);\n", line)
    return match and match.group(1)


def field_of_initializer(line):
    match = re.search(r"/\* (\w+) \*/", line)
    return match and match.group(1)


def older(text):
    """nccl.h of NCCL 2.19, as far as its own declarations go, from a later one."""
    for name, value in VERSION.items():
        text = re.sub(rf"^(#define {name}) \d+$", rf"\1 {value}", text, flags=re.M)
    text = DECLARATION.sub(lambda match: match.group(0) if match.group(1) in FUNCTIONS else "", text)
    text = CONFIG.sub(lambda match: kept_fields(match.group(0), field_of_struct), text)
    return INITIALIZER.sub(lambda match: kept_fields(match.group(0), field_of_initializer), text)


def compiles(words, folder, source):
    """The compiler's errors about `source` with the headers of `folder` before all others."""
    kept = [word for i, word in enumerate(words[1:], 1)
            if word not in ("-o", "-c") and words[i - 1] not in ("-o", "-c")]
    done = subprocess.run([words[0], "-isystem", folder, *kept, "-fsyntax-only", source], cwd=BUILD,
                          capture_output=True, text=True, check=False, timeout=100)
    return "" if done.returncode == 0 else done.stderr


class OlderNccl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.commands = commands()
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        with open(header_of(next(iter(cls.commands.values()))), encoding="utf-8") as file:
            cls.text = older(file.read())
        with open(f"{cls.folder.name}/nccl.h", "w", encoding="utf-8") as file:
            file.write(cls.text)

    def errors_of(self, text):
        """The errors about a small file with this text behind the include of nccl.h."""
        source = f"{self.folder.name}/small.cc"
        with open(source, "w", encoding="utf-8") as file:
            file.write(f"#include <nccl.h>\n{text}\n")
        return compiles(next(iter(self.commands.values())), self.folder.name, source)

    def test_the_files_that_use_nccl_compile(self):
        self.assertIn("comm/nccl/plugin/real_nccl_api.cc", self.commands)
        for path, words in self.commands.items():
            with self.subTest(path):
                self.assertEqual(compiles(words, self.folder.name, f"{SOURCE}/{path}"), "")

    def test_the_header_has_what_2_19_has_and_no_more(self):
        self.assertEqual(self.errors_of("static_assert(NCCL_VERSION_CODE == 21904 && "
                                        "NCCL_VERSION_CODE == NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH));"
                                        "ncclConfig_t config = NCCL_CONFIG_INITIALIZER;"), "")
        self.assertEqual({match.group(1) for match in DECLARATION.finditer(self.text)}, FUNCTIONS)
        self.assertEqual({field_of_struct(line) for line in CONFIG.search(self.text)[0].splitlines(keepends=True)}
                         - {None, "ncclConfig_t"}, FIELDS)
        self.assertIn("commName", self.errors_of("auto Name(ncclConfig_t& c) { return c.commName; }"))
        self.assertIn("ncclCommInitRankScalable", self.errors_of("auto* const f = &ncclCommInitRankScalable;"))


if __name__ == "__main__":
    unittest.main()
