"""The files that git knows, and those that it would add, for the checks beside this file."""
import os
import re
import subprocess

SOURCE = os.environ["DTRAIN_SOURCE"]


def sources(*endings):
    listed = subprocess.run(["git", "-C", SOURCE, "ls-files", "-co", "--exclude-standard"],
                            capture_output=True, text=True, check=True).stdout.split("\n")
    return [f for f in listed if f.endswith(endings) and os.path.isfile(f"{SOURCE}/{f}")]


def text_of(path):
    with open(f"{SOURCE}/{path}", encoding="utf-8") as file:
        return file.read()


def lines(path):
    return text_of(path).split("\n")


def includes_in(text):
    return re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', text, re.MULTILINE)


def includes(path):
    return includes_in(text_of(path))


CODE = sources(".h", ".cc", ".cu", ".cuh")
