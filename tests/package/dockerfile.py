"""A parser for the features that our Dockerfiles use: stages of instructions, continued lines joined."""
import re


def instructions(path):
    """[(name, rest)] in order, without comments."""
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file.read().split("\n") if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in text.split("\n") if line.strip()]


def stages(path):
    """The instructions of each stage, from its FROM on."""
    found = []
    for name, rest in instructions(path):
        if name == "FROM":
            found.append([])
        if found:  # ARG may come before the first FROM.
            found[-1].append((name, rest))
    return found


def installed_packages(command):
    """The Debian packages that a RUN installs by apt-get."""
    found = []
    for install in re.findall(r"apt-get install ([^&|;]*)", command):
        found += [word for word in install.split() if not word.startswith("-")]
    return found
