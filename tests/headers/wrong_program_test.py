"""A program that hands Engine::Step, Engine::Evaluate or DataLoader::Open what they cannot take gets one
error line, which names the concept and what is needed, in place of pages of template errors.

All wrong calls are in one file that is only parsed, so that LibTorch's headers are read once.
"""
import json
import os
import re
import shlex
import subprocess
import unittest

BUILD = os.environ["DTRAIN_BUILD"]
SOURCE = os.environ["DTRAIN_SOURCE"]

PROGRAM = """
#include <cstdlib>
#include <memory>
#include <optional>

#include "dtrain/data_loader.h"
#include "dtrain/engine.h"

struct Batch {};
struct Good {
  absl::StatusOr<Batch> Next();
};
struct Nothing {};
struct Optional {
  std::optional<Batch> Next();
};
at::Tensor MeanLoss(const Batch& batch);
dtrain::Loss SumLoss(Batch& batch);
struct Items {
  size_t size() const;
  dtrain::Sample Get(int64_t index) const;
};
struct Unsized {
  dtrain::Sample Get(int64_t index) const;
};
struct Changing : Unsized {
  int64_t size() const;
  dtrain::Sample Get(int64_t index);
};

void Wrong(dtrain::Engine& engine, Good good, Nothing nothing, Optional optional,
           std::unique_ptr<Good> pointer, dtrain::Job& job, Items items, Unsized unsized,
           Changing changing) {
  (void)dtrain::DataLoader::Open(job, items);
  (void)dtrain::DataLoader::Open(job, items, {.name = "items", .drop_last = true});
  (void)engine.Step(good, MeanLoss);
  (void)engine.Evaluate(good, SumLoss);
  (void)engine.Step(good, [](auto) { return at::Tensor(); });
CALLS}
"""
SOURCES = "dtrain::BatchSource: Engine::Step and Engine::Evaluate need a source with a member function"
LOSSES = "dtrain::LossFunctionOf: the loss must be callable with the Batch of source.Next()"
DATASETS = "dtrain::MapDataset: a dataset needs `int64_t size() const` and"
# A wrong call, and the expected error line.
CALLS = [
    ("engine.Step(nothing, MeanLoss)", SOURCES),
    ("engine.Step(optional, MeanLoss)", SOURCES),
    ("engine.Evaluate(pointer, MeanLoss)", SOURCES),
    ("engine.Step(good, [](const Batch&) { return 0.5; })", LOSSES),
    ("engine.Step(good, [](const Batch&) {})", LOSSES),
    ("engine.Step(good, [](const Batch&) -> absl::StatusOr<dtrain::Loss> { std::abort(); })", LOSSES),
    ("engine.Step(good, [](const at::Tensor& x) { return x; })", LOSSES),
    ("engine.Evaluate(good, [](const Batch&) { return true; })", LOSSES),
    ("dtrain::DataLoader::Open(job, unsized)", DATASETS),
    ("dtrain::DataLoader::Open(job, changing)", DATASETS),
    ("dtrain::DataLoader::Open(job, &items)", DATASETS),
    ("dtrain::DataLoader::Open(job, good)", DATASETS),
]


def parse_command():
    """The compile command of the engine's tests, with their precompiled header; for unity builds too."""
    with open(f"{BUILD}/compile_commands.json", encoding="utf-8") as file:
        entry = next(e for e in json.load(file) if "/runtime_tests.dir/" in e["command"])
    words = shlex.split(entry["command"])
    for option in ("-o", "-c"):
        if option in words:
            at = words.index(option)
            del words[at:at + 2]
    return [w for w in words if w not in ("-Winvalid-pch", "-Werror")] + ["-fsyntax-only"], entry["directory"]


class WrongProgram(unittest.TestCase):
    maxDiff = None

    def parse(self, calls):
        folder = f"{BUILD}/generated/headers"
        os.makedirs(folder, exist_ok=True)
        path = f"{folder}/wrong_program.cc"
        with open(path, "w", encoding="utf-8") as file:
            file.write(PROGRAM.replace("CALLS", "".join(f"  (void){call};\n" for call in calls)))
        command, folder = parse_command()
        return subprocess.run([*command, path], cwd=folder, capture_output=True, text=True,
                              check=False, env={**os.environ, "LC_ALL": "C"})

    def test_each_wrong_call_gets_one_line_that_names_what_is_needed(self):
        result = self.parse([call for call, _ in CALLS])
        self.assertNotEqual(result.returncode, 0)
        errors = [line for line in result.stderr.split("\n") if re.search(r"\berror: ", line)]
        named = [next((line for line in (SOURCES, LOSSES, DATASETS) if line in error), error) for error in errors]
        self.assertEqual(sorted(named), sorted(line for _, line in CALLS), result.stderr[:8000])


if __name__ == "__main__":
    unittest.main(verbosity=2)
