"""Turns CUDA C++ into C++ for the emulated device: translate.py SOURCE RESULT

A launch, NAME<<<GRID, BLOCK, SHARED, STREAM>>>(ARGUMENTS), becomes a call of Launch with the thread as
a function; __launch_bounds__(N) becomes a check at the head of its kernel; a __shared__ variable is filled
when a block first comes by. Everything else stands as it is, on the line where it was. See device.h.
"""
import re
import sys

OPEN, CLOSE = "([{", ")]}"


def closing(text, start):
    """The place of what closes the bracket at `start`."""
    depth = 0
    for i in range(start, len(text)):
        if text[i] in OPEN:
            depth += 1
        elif text[i] in CLOSE:
            depth -= 1
            if depth == 0:
                return i
    raise ValueError(f"line {text.count(chr(10), 0, start) + 1}: a bracket is not closed")


def name_before(text, end):
    """Where the name of the kernel begins that ends, with its template arguments, at `end`."""
    i = end
    while text[i - 1].isspace():
        i -= 1
    if text[i - 1] == ">":
        depth = 0
        while True:
            i -= 1
            depth += {">": 1, "<": -1}.get(text[i], 0)
            if depth == 0:
                break
    while text[i - 1].isalnum() or text[i - 1] in "_:":
        i -= 1
    return i


def split(arguments):
    """Splits `arguments` at the commas that no bracket holds."""
    parts, depth = [""], 0
    for c in arguments:
        depth += (c in OPEN) - (c in CLOSE)
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def with_launches(text):
    while (at := text.find("<<<")) >= 0:
        start = name_before(text, at)
        end = text.index(">>>", at)
        call = text.index("(", end)
        stop = closing(text, call)
        grid, block, shared, stream = split(text[at + 3:end])
        kernel = text[start:at].rstrip()
        name = " ".join(kernel.split())
        text = (f'{text[:start]}::dtrain::emulation::Launch({{"{name}", dim3({grid}), dim3({block}), '
                f"{shared}, {stream}}}, [&] {{ {kernel}{text[call:stop + 1]}; }}){text[stop + 1:]}")
    return text


def with_launch_bounds(text):
    word = "__launch_bounds__"
    while (at := text.find(word)) >= 0:
        end = closing(text, text.index("(", at))
        threads = text[at + len(word):end + 1]
        parameters = closing(text, text.index("(", end + 1))
        body = text.index("{", parameters) + 1
        if text[parameters + 1:body - 1].strip():
            raise ValueError(f"line {text.count(chr(10), 0, at) + 1}: __launch_bounds__ without a body")
        text = (text[:at] + text[end + 1:body] + f" ::dtrain::emulation::CheckLaunchBounds{threads};"
                + text[body:])
    return text


# One variable without a value, as CUDA takes it.
SHARED = re.compile(r"__shared__\s(?:[^;=,<]|<[^;=]*?>)*?(\w+)\s*(?:\[[^\]]*\]\s*)*;")


def with_shared(text):
    for line in re.finditer(r"^[ \t]*__shared__", text, re.MULTILINE):
        at = line.end() - len("__shared__")
        if not SHARED.match(text, at):
            raise ValueError(f"line {text.count(chr(10), 0, at) + 1}: a __shared__ declaration of something else "
                             "than one variable without a value, which would not be filled; write one for each")
    return SHARED.sub(r"\g<0> ::dtrain::emulation::BeginShared(&\1, sizeof(\1));", text)


def main(source, result):
    with open(source, encoding="utf-8") as file:
        text = file.read()
    with open(result, "w", encoding="utf-8") as file:
        file.write(f'#line 1 "{source}"\n' + with_shared(with_launch_bounds(with_launches(text))))


if __name__ == "__main__":
    main(*sys.argv[1:])
