"""Makes a tree self-contained: brings the libraries that not every system has, and finds them itself.

Libraries that are part neither of every manylinux system nor of LibTorch go to lib/dtrain, and are found there
by an RPATH relative to the file that needs them. Headers of Abseil and nlohmann-json go to
lib/dtrain/include, since those of dtrain include them and a program must be compiled with the Abseil that it
is linked to.
"""
import os
import re
import shutil

import elf
import platform_tag
from errors import PackageError
from tree import run

# LibTorch's own, and what its wheel or archive brings beside it.
OF_TORCH = re.compile(r"^lib(torch|c10|gomp|cudart)[._]")
HEADERS = ("absl", "nlohmann")
COMPILED_IN = (*HEADERS, "CLI", "xxhash.h")  # Their licences must be shown, though they have no library.
# Those that need LibTorch, and thus may need what it brings.
USES_TORCH = re.compile(r"^libtorch")


def collect(prefix):
    """{soname: path on this machine} of what the tree must bring, with what those need in turn."""
    system, parts = elf.system_libraries(), platform_tag.system_parts()
    found, waiting = {}, elf.elf_files(prefix)
    while waiting:
        path = waiting.pop()
        names = elf.needed(path)
        for name in names:
            of_torch = OF_TORCH.match(name) and any(USES_TORCH.match(other) for other in names)
            if name in parts or name in found or of_torch:
                continue
            if name not in system:
                raise PackageError(f"{path} needs {name}, which this machine does not have: ./dev deps")
            found[name] = system[name]
            waiting.append(system[name])
    return found


def bring(prefix, libraries):
    folder = f"{prefix}/lib/dtrain"
    for name, path in sorted(libraries.items()):
        shutil.copy(os.path.realpath(path), f"{folder}/{name}")
        os.chmod(f"{folder}/{name}", 0o644)
        run(["patchelf", "--set-rpath", "$ORIGIN", f"{folder}/{name}"])
    for name in HEADERS:
        shutil.copytree(f"/usr/include/{name}", f"{folder}/include/{name}")


def bring_licences(prefix, libraries):
    """Copies the licences of the libraries from the Debian packages that they belong to."""
    folder = f"{prefix}/share/doc/dtrain/third-party"
    os.makedirs(folder)
    paths = [os.path.realpath(path) for path in libraries.values()]
    owners = set()
    for path in [*paths, *(f"/usr/include/{name}" for name in COMPILED_IN)]:
        # /lib is a link to /usr/lib, and packages may have registered either name.
        for registered in {path, path.removeprefix("/usr")}:
            try:
                owners.update(run(["dpkg-query", "-S", registered]).split(":")[0].split(", "))
            except PackageError:
                continue
    for owner in sorted(owners):
        if os.path.exists(f"/usr/share/doc/{owner}/copyright"):
            shutil.copy(f"/usr/share/doc/{owner}/copyright", f"{folder}/{owner}")


def abseil_release():
    with open("/usr/include/absl/base/config.h", encoding="utf-8") as file:
        found = re.search(r"#define ABSL_LTS_RELEASE_VERSION (\d+)", file.read())
    return found[1] if found else "head"


def fill(template, values):
    with open(template, encoding="utf-8") as file:
        text = file.read()
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    if left := re.search(r"@\w+@", text):
        raise PackageError(f"{template} holds {left[0]}, which packaging does not fill")
    return text


def to_link(libraries):
    """The libraries that a user's program is linked to, without those that only dtrain's programs use."""
    return sorted(name for name in libraries if name.startswith(("libabsl_", "libssl", "libcrypto")))


def write_cmake(build, prefix, libraries):
    folder = f"{prefix}/lib/cmake/dtrain"
    with open(f"{folder}/dtrainTargets.cmake", encoding="utf-8") as file:
        targets = sorted(set(re.findall(r"\b(?:absl|nlohmann_json|OpenSSL)::\w+", file.read())))
    text = fill(f"{build.source}/packaging/dtrainBundled.cmake.in",
                {"ABSEIL": abseil_release(), "LIBRARIES": " ".join(to_link(libraries)),
                 "TARGETS": " ".join(targets)})
    with open(f"{folder}/dtrainBundled.cmake", "w", encoding="utf-8") as file:
        file.write(text)


def write_pkg_config(build, prefix, libraries, torch_folders):
    """`torch_folders` (relative to lib/): pkg-config cannot search, so all are named; those that do
    not exist change nothing. A single one is a variable, which --define-variable changes."""
    torch = [f"${{libdir}}/{folder}" for folder in torch_folders]
    variable = ""
    if len(torch) == 1:
        variable, torch = f"torch={torch[0]}", ["${torch}"]
    headers = "".join(f" -isystem {t}/include -isystem {t}/include/torch/csrc/api/include" for t in torch)
    places = "".join(f" -L{t}/lib -Wl,-rpath,{t}/lib" for t in torch)
    own = "${libdir}/dtrain"
    text = fill(f"{build.source}/cmake/dtrain.pc.in", {
        "PC_TORCH": variable, "PC_REQUIRES": "", "PROJECT_VERSION": build.version,
        "PC_CFLAGS": f"-isystem {own}/include{headers}",
        "PC_LIBS": f"-L{own} -Wl,-rpath,{own}" + "".join(f" -l:{name}" for name in to_link(libraries)) +
                   places})
    with open(f"{prefix}/lib/pkgconfig/dtrain.pc", "w", encoding="utf-8") as file:
        file.write(text)


def set_plugin_rpath(prefix, torch_folders):
    """NCCL comes with LibTorch's wheel: the CUDA plugins look beside it, and for Abseil in lib/dtrain."""
    places = ["$ORIGIN/dtrain", *(f"$ORIGIN/{folder}/../nvidia/nccl/lib" for folder in torch_folders)]
    for name in ("libdtrain_cuda.so", "libdtrain_torch_cuda.so"):
        if os.path.exists(f"{prefix}/lib/{name}"):
            run(["patchelf", "--set-rpath", ":".join(places), f"{prefix}/lib/{name}"])


def make_self_contained(build, prefix, torch_folders):
    libraries = collect(prefix)
    bring(prefix, libraries)
    bring_licences(prefix, libraries)
    write_cmake(build, prefix, libraries)
    write_pkg_config(build, prefix, libraries, torch_folders)
    set_plugin_rpath(prefix, torch_folders)
