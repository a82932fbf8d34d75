"""A stripped installation of a finished build: what all packages are made of."""
import glob
import os
import re
import shutil
import subprocess

import elf
from errors import PackageError


# Pages about the project's own code and measurements, which are of no use without a clone.
FOR_DEVELOPERS = {"ARCHITECTURE.md", "PERFORMANCE.md"}


class Build:
    """A build folder of a preset, complete and fit to be given to others."""

    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        self.cache = self.read_cache()
        self.version = self.cache["CMAKE_PROJECT_VERSION"]
        self.source = self.cache["CMAKE_HOME_DIRECTORY"]
        self.cmake = self.cache["CMAKE_COMMAND"]
        self.torch = os.path.realpath(f"{self.folder}/lib/dtrain/torch")
        self.torch_release = self.release()
        if "-fsanitize" in self.cache.get("CMAKE_CXX_FLAGS", ""):
            raise PackageError(f"{folder} is a sanitizer build: its programs need the sanitizer's "
                               "libraries; ./dev build release makes one to package")
        for program in ("dtrain", "dtrain-gpt", "dtrain-data"):
            if not os.path.exists(f"{self.folder}/bin/{program}"):
                raise PackageError(f"{folder} lacks bin/{program}: ./dev build release makes it")

    def read_cache(self):
        try:
            with open(f"{self.folder}/CMakeCache.txt", encoding="utf-8") as file:
                return dict(re.findall(r"^([\w.-]+):\w+=(.*)$", file.read(), re.MULTILINE))
        except OSError as error:
            raise PackageError(f"{self.folder} is no build folder ({error.strerror}: CMakeCache.txt); "
                               "./dev build release makes one") from error

    def release(self):
        """"2.11.0" of the LibTorch that it was built with."""
        for name, pattern in (("version.py", r"__version__ = '([\d.]+)"), ("build-version", r"([\d.]+)")):
            try:
                with open(f"{self.torch}/{name}", encoding="utf-8") as file:
                    if found := re.search(pattern, file.read()):
                        return found[1]
            except OSError:
                continue
        raise PackageError(f"{self.torch} does not say which release of LibTorch it is")


def halves(build, prefix):
    """One line: which halves the installation `prefix` has, why, and how to get the other."""
    reason = build.cache.get("DTRAIN_CUDA_REASON") or "the build was configured so"
    if os.path.exists(f"{prefix}/lib/libdtrain_cuda.so"):
        return (f"the packages hold the CPU half and the CUDA half, because {reason}; DTRAIN_CUDA=OFF ./dev "
                "package leaves the CUDA half out")
    return (f"the packages hold the CPU half alone, because {reason}; DTRAIN_CUDA=ON ./dev package adds the "
            "CUDA half, for which nvcc must be installed")


def install(build, prefix):
    """Programs, libraries, headers, CMake package, examples and tools below `prefix`; no link to LibTorch."""
    run([build.cmake, "--install", build.folder, "--prefix", prefix])
    os.remove(f"{prefix}/lib/dtrain/torch")
    for path in elf.elf_files(prefix):
        run(["strip", "--strip-debug", path])  # Symbols stay: backtraces name functions.
    for name in os.listdir(f"{prefix}/lib"):
        if name.endswith(".a"):
            run(["strip", "--strip-debug", f"{prefix}/lib/{name}"])
    documents = f"{prefix}/share/doc/dtrain"
    os.makedirs(documents, exist_ok=True)
    pages = [path for path in glob.glob(f"{build.source}/docs/*.md") if os.path.basename(path) not in FOR_DEVELOPERS]
    for path in (f"{build.source}/LICENSE", f"{build.source}/CHANGELOG.md", *pages):
        shutil.copy(path, documents)


def run(command, **options):
    """Quiet; an error is one line with what the command said last, or what it lacked."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            check=False, **options)
    if result.returncode:
        lines = result.stdout.strip().splitlines() or ["(it printed nothing)"]
        telling = [at for at, line in enumerate(lines) if re.search("No space left|cannot find", line)]
        said = " ".join(line.strip() for line in lines[telling[0]:telling[0] + 2]) if telling else lines[-1]
        raise PackageError(f"{command[0]} failed (exit {result.returncode}): {said.strip()}: {' '.join(command)}")
    return result.stdout
