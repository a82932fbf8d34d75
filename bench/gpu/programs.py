"""Programs of a pack: compressed on their way to the machine with the GPU, unpacked there."""
import gzip
import os
import shutil

FOLDERS = ("bin", "tests")
SUFFIX = ".gz"


def compress(path):
    """Replaces `path` by `path`.gz."""
    with open(path, "rb") as source, gzip.open(path + SUFFIX, "wb", compresslevel=3) as target:
        shutil.copyfileobj(source, target)
    os.remove(path)


def unpack(pack):
    """Each time anew: the pack may have been copied over an older one. Gives why it cannot, or
    None."""
    try:
        for folder in FOLDERS:
            where = f"{pack}/{folder}"
            for name in sorted(os.listdir(where)) if os.path.isdir(where) else []:
                if name.endswith(SUFFIX):
                    _unpack(f"{where}/{name}", f"{where}/{name[:-len(SUFFIX)]}")
    except (OSError, EOFError) as error:  # BadGzipFile is an OSError.
        return f"the pack's programs cannot be unpacked ({error}): copy it to where files can be written"
    return None


def _unpack(path, target):
    with gzip.open(path, "rb") as source, open(f"{target}.new", "wb") as file:
        shutil.copyfileobj(source, file)
    os.chmod(f"{target}.new", 0o755)
    os.replace(f"{target}.new", target)  # A program that runs stays whole.
