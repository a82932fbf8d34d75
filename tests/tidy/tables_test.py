"""The tables of metrics and of environment variables hold what the code has, and nothing else.

docs/METRICS.md and docs/ENVIRONMENT.md are written from two tables (`dtrain config docs`), which
plan_config_docs_test compares with them; here the same pages are compared with the code."""
import re
import unittest

from tree import sources, text_of

TABLES = {"runtime/plan/config/metric_table.cc", "runtime/plan/config/environment_table.cc",
          "runtime/plan/config/reference_docs.cc"}
ROOMS = ("base", "kernels", "comm", "checkpoint", "runtime", "launcher", "examples")


def without_comments(path):
    """A name in a comment is neither read nor written."""
    mark = "//" if path.endswith((".h", ".cc", ".cu")) else "#"
    return "\n".join(re.sub(rf"(^|\s){mark}.*", "", line) for line in text_of(path).split("\n"))


def first_column(page):
    names = re.findall(r"^\| `([^`]+)` \|", text_of(page).split("|---|---|---|---|---|", 1)[1],
                       re.MULTILINE)
    if len(names) != len(set(names)):
        raise AssertionError(f"{page} names {sorted({n for n in names if names.count(n) > 1})} twice")
    return set(names)


CPP = [f for f in sources(".h", ".cc", ".cu") if f not in TABLES]
# Examples of a user's own program name their own metrics.
OWN_PROGRAMS = ("examples/cnn/", "examples/gan/", "examples/transformer/")
IN_ROOMS = [f for f in CPP if f.split("/")[0] in ROOMS and not f.startswith(OWN_PROGRAMS)]
SCRIPTS = [f for f in sources(".py", ".sh", "dev") if f != "tests/tidy/tables_test.py"]
CMAKE = sources("CMakeLists.txt", ".cmake")


class Metrics(unittest.TestCase):
    maxDiff = None
    # The first part of a name; a new one belongs here and into the table.
    FAMILIES = "train|perf|comm|time|memory|ckpt|journal|eval|metrics"

    def written(self):
        """Literals that look like a metric, in files that may write one."""
        found = {}
        for path in IN_ROOMS:
            for name in re.findall(rf'"((?:{self.FAMILIES})/[a-z0-9_]+)"', without_comments(path)):
                found.setdefault(name, path)
        return found

    def test_every_metric_in_the_code_is_in_the_table(self):
        table = first_column("docs/METRICS.md")
        self.assertEqual({n: p for n, p in self.written().items() if n not in table}, {})

    def test_every_metric_in_the_table_is_in_the_code(self):
        self.assertEqual(first_column("docs/METRICS.md") - set(self.written()), set())

    def test_the_families_are_all_there_are(self):
        """Every metric of a record has a known family; a new family would go unseen above."""
        wrong = []
        for path in IN_ROOMS:
            text = without_comments(path)
            names = re.findall(r'(?:metrics\.emplace_back|Log)\(\s*"([^"]+)"', text)
            wrong += [f"{path}: {name}" for name in names
                      if not re.fullmatch(rf"(?:{self.FAMILIES})/[a-z0-9_]+", name)]
        self.assertEqual(wrong, [])


class Environment(unittest.TestCase):
    maxDiff = None
    NAME = r"[A-Z][A-Z0-9]*(?:_[A-Za-z0-9]+)*"
    # C++ names variables everywhere in these files, and elsewhere in the calls below.
    READERS = ("base/job_env.cc", "base/job_env.h", "launcher/rank_plan.cc",
               "launcher/commands/env_command.cc", "runtime/plan/nccl_variables.cc",
               "comm/nccl/nccl_environment.cc")
    # Values and a prefix in those files, one of PET_*, and GoogleTest's own.
    NO_VARIABLE = {"PCI_BUS_ID", "MPICH", "PMI", "DTRAIN_*", "PET_NNODES", "TEST_TMPDIR"}
    CALLS = (r"\b(?:secure_getenv|getenv|setenv|unsetenv|FromEnvironment)\(\s*\"({0})\"",
             r"\benvironment_?\.(?:find|count|at|contains)\(\s*\"({0})\"",
             r"\bLookup\(environment_?,\s*\"({0})\"",
             r"\bvariables\.(?:Has|Text|Number)\(\s*\"({0})\"")

    def in_cpp(self):
        found = {}
        for path in CPP:
            text = without_comments(path)
            names = [n for call in self.CALLS for n in re.findall(call.format(self.NAME), text)]
            if path in self.READERS:
                names += re.findall(rf'"({self.NAME})"', text)
                names += [prefix + "*" for prefix in re.findall(r'"([A-Z]+_)"', text)]
            if path == "launcher/torchrun_flags.cc":  # Names that it makes of flags.
                names += [prefix + "*" for prefix in re.findall(r'kVariablePrefix\[\] = "([A-Z]+_)"', text)]
            for name in names:
                found.setdefault(name, path)
        return {n: p for n, p in found.items()
                if n not in self.NO_VARIABLE and not p.startswith("tests/base/")}

    def in_scripts(self):
        found = {}
        for path in SCRIPTS:
            text = without_comments(path)
            if path.endswith(".py"):
                names = re.findall(r'os\.environ(?:\[|\.(?:get|setdefault|pop)\(\s*)"([A-Z][A-Z0-9_]*)"', text)
                names += re.findall(r'"(DTRAIN_[A-Z0-9_]+)"\s*[:\]]', text)
                names += re.findall(r'os\.getenv\("([A-Z][A-Z0-9_]*)"', text)
            else:
                names = re.findall(
                    r"\$\{(DTRAIN_[A-Z0-9_]+)|\$(DTRAIN_[A-Z0-9_]+)|^\s*(?:export )?(DTRAIN_[A-Z0-9_]+)=",
                    text, re.MULTILINE)
                names = [n for groups in names for n in groups if n]
            for name in names:
                found.setdefault(name, path)
        return found

    def in_cmake(self):
        found = {}
        for path in CMAKE:
            text = without_comments(path)
            names = re.findall(r"ENV\{([A-Z][A-Z0-9_]*)\}", text)
            if path.startswith("tests/"):  # Elsewhere such a text is a compile definition.
                names += re.findall(r'"(DTRAIN_[A-Z0-9_]+)=', text)
            for name in names:
                found.setdefault(name, path)
        return found

    def in_code(self):
        return {**self.in_cmake(), **self.in_scripts(), **self.in_cpp()}

    def test_every_variable_in_the_code_is_in_the_table(self):
        table = first_column("docs/ENVIRONMENT.md")
        self.assertEqual({n: p for n, p in self.in_code().items() if n not in table}, {})

    def test_every_variable_in_the_table_is_in_the_code(self):
        self.assertEqual(first_column("docs/ENVIRONMENT.md") - set(self.in_code()), set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
