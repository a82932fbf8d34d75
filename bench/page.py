"""./dev bench page: writes the tables of docs/PERFORMANCE.md from the files of bench/results.

A block of the page is `<!-- figures: TABLE, FILE... -->`, a caption that says where the files come
from, the table, and `<!-- end of figures -->`. This program writes what stands between the two
lines; FILEs are paths in bench/results (`*/*.json`: all), and page_tables.py has the tables by
name. After a new run on another kind of machine, name its file in the first line and start this
program again.

Prose has no measured figures, for they would go stale unseen: tests/tidy/figures_test.py fails for
what looks like one, unless a line `<!-- not measured: 3 %; 0.9 -->` of its section names it.

--check writes nothing, and ends with 1 where the page is not what the files say.
"""
import argparse
import difflib
import glob
import os
import re
import sys

import page_goals
import page_tables
import provenance
import report

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu"))

import gpu_tables  # noqa: E402

PAGE = os.path.join(provenance.SOURCE, "docs", "PERFORMANCE.md")
TABLES = {**page_tables.TABLES, **page_goals.TABLES, **gpu_tables.TABLES}
BEGIN = re.compile(r"^<!-- figures: (?P<table>[\w-]+)(?:, (?P<files>[^>]*?))? -->$")
END = "<!-- end of figures -->"
NONE = re.compile(r"^<!-- no figures: .+ -->$")  # Stands before a table without figures.


def fail(line, what):
    sys.exit(f"bench/page.py: docs/PERFORMANCE.md:{line + 1}: {what}")


def files_of(names, line):
    """{name: results}"""
    found = {}
    for name in names:
        paths = sorted(glob.glob(os.path.join(provenance.RESULTS, name)))
        if not paths:
            fail(line, f"bench/results/{name} does not exist; name a file that does")
        for path in paths:
            found[os.path.relpath(path, provenance.RESULTS)] = report.read_results(path)
    return found


def runs_of(results):
    """[(date, commit, command)] of the file and of its rows that say their own."""
    found = []

    def look(value):
        if isinstance(value, dict):
            if "command" in value:
                found.append((value.get("date"), value.get("commit"), value["command"]))
            for one in value.values():
                look(one)
        elif isinstance(value, list):
            for one in value:
                look(one)
    look({key: value for key, value in results.items() if key not in ("date", "commit", "command")})
    whole = (results.get("date"), results.get("commit"), results.get("command"))
    return list(dict.fromkeys(found or [whole]))


def marks_of(results):
    """The marks of the file and of its rows, each once."""
    found = []

    def look(value):
        if isinstance(value, dict):
            found.extend(value.get("marks", []))
            for one in value.values():
                look(one)
        elif isinstance(value, list):
            for one in value:
                look(one)
    look(results)
    return list(dict.fromkeys(found))


def caption_of(name, results):
    """One line on the origin of a file; its marks stand in bold."""
    runs = runs_of(results)
    dates = ", ".join(dict.fromkeys(date or results.get("date") or "no date" for date, _, _ in runs))
    commits = ", ".join(dict.fromkeys(commit or "no commit" for _, commit, _ in runs))
    commands = " and ".join(f"`{command}`" for command in dict.fromkeys(c for _, _, c in runs) if command)
    text = f"From [{name}](../bench/results/{name}): {dates}; {commits}"
    text += f"; {commands}" if commands else ""
    marks = marks_of(results)
    return f"{text}.{' **Marked:** ' + '; '.join(marks) + '.' if marks else ''}"


def block(table, files):
    """The lines between the two comments."""
    captions = [] if table in page_tables.WITHOUT_CAPTION else \
        [caption_of(name, results) for name, results in files.items()]
    lines = []
    for caption in captions:
        lines += [caption, ""]
    return [*lines, *TABLES[table](files), ""]


def rewritten(text):
    """The page with every block made anew."""
    out, lines, i = [], text.split("\n"), 0
    while i < len(lines):
        out.append(lines[i])
        if match := BEGIN.match(lines[i]):
            if match["table"] not in TABLES:
                fail(i, f"no table {match['table']!r}; there are: {', '.join(sorted(TABLES))}")
            if END not in lines[i:]:
                fail(i, f"no line {END} behind this one")
            out += block(match["table"], files_of((match["files"] or "").split(), i))
            i = lines.index(END, i)
            out.append(END)
        i += 1
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    with open(PAGE, encoding="utf-8") as file:
        before = file.read()
    after = rewritten(before)
    if args.check:
        sys.stdout.writelines(difflib.unified_diff(before.splitlines(True), after.splitlines(True),
                                                   "docs/PERFORMANCE.md", "what the files say"))
        sys.exit(before != after)
    if after != before:
        report.write_text(PAGE, after)
    print("docs/PERFORMANCE.md: " + ("as it was" if after == before else "written"))


if __name__ == "__main__":
    main()
