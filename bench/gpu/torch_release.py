"""The LibTorch that a pack was built with, and whether another machine's will do in its place.

Programs in C++ load the LibTorch of one release alone, and CUDA libraries of one major version.
"""
import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class TorchRelease:
    version: str  # "2.11.0", as torch.__version__ without what stands behind a plus.
    cuda: str  # "13.0", as torch.version.cuda; "" of a build without CUDA.

    def __str__(self):
        return f"{self.version} ({f'CUDA {self.cuda}' if self.cuda else 'without CUDA'})"

    def will_do_for(self, needed):
        return (self.version, self.cuda.split(".")[0]) == (needed.version, needed.cuda.split(".")[0])

    def how_to_install(self):
        tag = f"cu{self.cuda.replace('.', '')}" if self.cuda else "cpu"
        return (f"pip install torch=={self.version} --index-url "
                f"https://download.pytorch.org/whl/{tag}")


def release(version, cuda):
    """The release with this torch.__version__ and torch.version.cuda (None: without CUDA)."""
    return TorchRelease(version.split("+")[0], cuda or "")


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def release_in(folder):
    """The release of the LibTorch in a folder with include/ and lib/, from a wheel or an archive. None if
    the folder does not name it."""
    wheel = read(f"{folder}/version.py")
    if version := re.search(r"^__version__ = '([^']+)'", wheel, re.MULTILINE):
        cuda = re.search(r"^cuda\b.*= '([^']+)'", wheel, re.MULTILINE)
        return release(version[1], cuda[1] if cuda else None)
    if archive := re.match(r"(\d[^+\s]*)(?:\+cu(\d+)(\d))?", read(f"{folder}/build-version")):
        return release(archive[1], f"{archive[2]}.{archive[3]}" if archive[2] else None)
    return None
