"""Common parts of the tests of packages: programs run as a user without this tree would run them, a
clean virtual environment, and the checks of a training's output."""
import json
import os
import subprocess

BUILD = os.environ["DTRAIN_BUILD"]
SOURCE = os.environ["DTRAIN_SOURCE"]
CMAKE = os.environ["DTRAIN_CMAKE"]
TORCH = os.path.realpath(f"{BUILD}/lib/dtrain/torch")
SITE_PACKAGES = os.path.dirname(TORCH)
NOT_PASSED_ON = ("DTRAIN_", "CMAKE_", "LD_", "PYTHON", "PKG_CONFIG", "PIP_", "VIRTUAL_ENV")

# Uses the library through a job, LibTorch through its device, and so everything that both link to.
PROGRAM = """
#include <dtrain/main.h>

#include <iostream>

absl::Status Train(dtrain::Job& job) {
  std::cout << "steps " << job.config().train_steps() << " on " << job.device() << std::endl;
  return absl::OkStatus();
}

int main(int argc, char** argv) { return dtrain::Main(argc, argv, Train); }
"""


def environment(**more):
    """An environment in which nothing of this test's own helps a package."""
    return {**{k: v for k, v in os.environ.items() if not k.startswith(NOT_PASSED_ON)}, **more}


def run(test, command, expect=0, cwd=None, timeout=300, **variables):
    """Runs a command to its end, checks its exit code (None: any) and gives its output."""
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, timeout=timeout, cwd=cwd,
                            env=environment(**variables), check=False)
    if expect is not None:
        test.assertEqual(result.returncode, expect, f"{' '.join(command)}\n{result.stdout}")
    return result.stdout


def tools():
    """The tools with which packages are made (packaging/tools.sh), installed on first use."""
    subprocess.run([f"{SOURCE}/packaging/tools.sh"], check=True, stdout=subprocess.DEVNULL)
    return f"{SOURCE}/.deps/packaging/bin"


def make_packages(folder, *words, expect=0, before=(), **variables):
    """Runs packaging/package.py at the end of a command that begins with `before`, and gives its output."""
    binaries = tools()
    result = subprocess.run([*before, f"{binaries}/python", "-B", f"{SOURCE}/packaging/package.py", "--build", BUILD,
                             "--out", folder, "--level", "1", *words],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                            env={**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", **variables})
    if expect is not None and result.returncode != expect:
        raise AssertionError(f"package.py ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


def make_environment(test, folder):
    """A virtual environment with only torch and its dependencies, in which pip cannot reach an index. Its
    packages are links to those of this tree."""
    python = os.path.realpath(f"{os.path.dirname(os.path.dirname(SITE_PACKAGES))}/../bin/python3")
    run(test, [python, "-m", "venv", "--without-pip", folder])  # pip of this tree is linked too.
    own = os.path.join(folder, "lib", os.path.basename(os.path.dirname(SITE_PACKAGES)), "site-packages")
    for name in os.listdir(SITE_PACKAGES):
        if not os.path.exists(f"{own}/{name}") and not name.startswith(("dtrain", "__pycache__")) \
                and not name.endswith(".pth"):
            os.symlink(f"{SITE_PACKAGES}/{name}", f"{own}/{name}")
    return own


def losses(run_directory):
    with open(f"{run_directory}/metrics/rank-0.jsonl", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return [r["m"]["train/loss"] for r in records if "train/loss" in r.get("m", {})]
