"""The texts on which tokenizers are compared, and dtrain's tokens for them."""
import os
import struct
import subprocess

import tokenizer_kinds
from time_bounds import bound_s

IDS = os.environ["DTRAIN_TOKENIZER_IDS"]
ALL_BYTES, FILE_BYTES, DOCUMENT_BYTES, BATCH_DOCUMENTS = 100 << 20, 60 << 20, 50000, 80
FOLDERS = ("/usr/share/locale", "/usr/include", "/usr/lib/python3", "/usr/share/doc", "/usr/share/i18n", "/usr/lib")


def files_below(folder):
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if os.path.isfile(f"{place}/{name}") and not os.path.islink(f"{place}/{name}"):
                yield f"{place}/{name}"


def documents_of_files():
    """FILE_BYTES of documents, the same amount of each folder as long as it has that much."""
    found, size = [], 0
    for i, folder in enumerate(FOLDERS):
        end = size + (FILE_BYTES - size) // (len(FOLDERS) - i)
        for path in files_below(folder):
            if size >= end:
                break
            with open(path, "rb") as file:
                data = file.read(min(1 << 20, end - size))
            size += len(data)
            found += [data[at:at + DOCUMENT_BYTES] for at in range(0, len(data), DOCUMENT_BYTES)]
    return found


def hard_documents(size_min, seed):
    """Documents whose parts are texts that are hard to cut."""
    found, size = [], 0
    while size < size_min:
        texts = tokenizer_kinds.hard_texts(20000, seed + len(found))
        found += [b"".join(texts[at:at + 500]) for at in range(0, len(texts), 500)]
        size += sum(map(len, texts))
    return found


def long_documents(seed):
    """ALL_BYTES of this machine's files, in many languages and with programs among them, and of texts that are hard to
    cut."""
    documents = documents_of_files()
    return documents + hard_documents(ALL_BYTES - sum(map(len, documents)), seed)


def encoded(path, texts, template, pattern="", mode=None):
    """[(ids, decoded text)] by dtrain."""
    frames = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    command = [IDS, path, mode or ("template" if template else "plain"), pattern]
    result = subprocess.run(command, input=frames, capture_output=True, check=False, timeout=bound_s(300))
    if result.returncode != 0:
        raise AssertionError(result.stderr.decode(errors="replace"))
    rows, at, out = [], 0, result.stdout
    while at < len(out):
        count, = struct.unpack_from("<I", out, at)
        ids = list(struct.unpack_from(f"<{count}I", out, at + 4))
        at += 4 + 4 * count
        length, = struct.unpack_from("<I", out, at)
        rows.append((ids, out[at + 4:at + 4 + length].decode()))
        at += 4 + length
    return rows
