"""The rules of the house that a compiler does not check: rooms, sizes of files, names, leftovers.
shape_test.py has those for which the code must be read: layers, functions, dead declarations."""
import os
import re
import unittest

from tree import CODE, SOURCE, includes, lines, sources

ALLOWED = {
    "base": {"base"},
    "kernels": {"kernels", "base"},
    "comm": {"comm", "base"},
    "checkpoint": {"checkpoint", "base"},
    "runtime": {"runtime", "dtrain", "kernels", "comm", "checkpoint", "base"},
    "launcher": {"launcher", "comm", "base"},
    "examples": {"dtrain", "finetune", "generate", "gpt", "minimal", "absl"},
}
ROOMS = set(ALLOWED) | {"tests", "bench", "dtrain", "finetune", "generate", "gpt", "minimal"}
# Programs that read and write text stand beside the model of the examples, and take tokenizers from the plan.
GENERATE = ALLOWED["examples"] | {"base", "runtime"}
LIBTORCH = ("torch/", "ATen/", "c10/")
# The plan is a torch-free library of its own; a reader of configurations needs no other room.
PLAN = {"runtime", "dtrain", "base"}


class Tidy(unittest.TestCase):
    maxDiff = None

    def test_there_is_code_to_look_at(self):
        self.assertGreater(len(CODE), 100)

    def test_rooms_include_only_what_the_design_draws(self):
        wrong = []
        for path in CODE:
            room = path.split("/")[0]
            allowed = PLAN if path.startswith("runtime/plan/") else ALLOWED.get(room)
            if path.startswith("examples/generate/"):
                allowed = GENERATE
            if allowed is None:
                continue
            for include in includes(path):
                top = include.split("/")[0]
                if top in ROOMS and top not in allowed:
                    wrong.append(f"{path} includes {include}")
                if include.startswith("runtime/") and path.startswith("runtime/plan/") \
                        and not include.startswith("runtime/plan/"):
                    wrong.append(f"{path} includes {include}")
                if path.startswith("examples/") and include.startswith("runtime/") \
                        and not include.startswith(("runtime/plan/data/", "runtime/plan/tokenizer/")):
                    wrong.append(f"{path} includes {include}")
                if room == "launcher" and include.startswith("comm/") \
                        and not include.startswith("comm/net/"):
                    wrong.append(f"{path} includes {include}")
        self.assertEqual(wrong, [])

    def test_libtorch_is_seen_by_the_runtime_alone(self):
        wrong = [f"{path} includes {include}" for path in CODE for include in includes(path)
                 if include.startswith(LIBTORCH)
                 and (path.split("/")[0] not in ("runtime", "examples", "bench", "tests")
                      or path.startswith("runtime/plan/"))]
        self.assertEqual(wrong, [])

    def test_each_file_of_tests_has_a_namespace_of_its_own(self):
        """Several files are compiled together, and their helpers have the same names."""
        wrong = []
        for path in sources("_test.cc"):
            name = os.path.basename(path).removesuffix(".cc")
            opened = [line for line in lines(path) if re.match(r"namespace (\w+::)*" + name + r" \{$", line)]
            if len(opened) != 1:
                wrong.append(f"{path} does not open the namespace {name} once")
        self.assertEqual(wrong, [])

    def test_files_and_lines_are_short(self):
        wrong = []
        for path in CODE:
            text = lines(path)
            if len(text) > 500:
                wrong.append(f"{path}: {len(text)} lines")
            wrong += [f"{path}:{i}: {len(line)} columns" for i, line in enumerate(text, 1)
                      if len(line) > 100 and "http" not in line and not line.startswith("| ")]
        self.assertEqual(wrong, [])

    def test_headers_say_what_they_are_for(self):
        wrong = []
        for path in sources(".h"):
            text = lines(path)
            if not text[0].startswith("//"):
                wrong.append(f"{path}: no first paragraph")
            if "#pragma once" not in text and not path.endswith("_impl.h"):
                wrong.append(f"{path}: no #pragma once")
        self.assertEqual(wrong, [])

    # Macros that other libraries read, a test's own shorthand, and CUDA's words on an emulated device.
    FOREIGN_MACROS = ("_GNU_SOURCE", "XXH_INLINE_ALL", "ASSERT_CUDA", "__shared__", "threadIdx", "blockIdx",
                      "blockDim", "gridDim")

    def test_macros_carry_the_projects_prefix(self):
        wrong = [f"{path}: {line.strip()}" for path in CODE for line in lines(path)
                 if (match := re.match(r"\s*#\s*define\s+(\w+)", line))
                 and not match.group(1).startswith(("DT_", "DTRAIN_", *self.FOREIGN_MACROS))]
        self.assertEqual(wrong, [])

    def test_no_catch_all_no_commented_out_test_no_leftover(self):
        wrong = []
        for path in CODE:
            for i, line in enumerate(lines(path), 1):
                if re.search(r"catch \(\.\.\.\)|^\s*//\s*TEST(_F|_P)?\(|DISABLED_|FIXME|XXX\b", line):
                    wrong.append(f"{path}:{i}: {line.strip()}")
        self.assertEqual([w for w in wrong if "XXXXXX" not in w], [])

    # Files that are built, packed or measured in bulk belong into ignored folders.
    LARGEST_FILE_BYTES = 256 * 1024

    def test_no_large_file_is_tracked(self):
        wrong = [f"{path}: {os.path.getsize(f'{SOURCE}/{path}')} bytes" for path in sources("")
                 if os.path.getsize(f"{SOURCE}/{path}") > self.LARGEST_FILE_BYTES]
        self.assertEqual(wrong, [])

    def test_the_environment_is_read_in_one_place(self):
        # cpu_features has the one documented exception: a switch read before anything else runs.
        allowed = {"base/job_env.cc", "base/system/cpu_features.cc"}
        wrong = [path for path in CODE if path.split("/")[0] not in ("tests", "bench")
                 and path not in allowed
                 and re.search(r"\bgetenv\(|\benviron\b", "\n".join(lines(path)))]
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
