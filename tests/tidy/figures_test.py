"""Every figure of docs/PERFORMANCE.md is in a file of bench/results, and every file says where it
comes from. Needs no build: it reads the page, the files and the drivers' rules."""
import glob
import importlib
import os
import re
import sys
import unittest

SOURCE = os.environ["DTRAIN_SOURCE"]
sys.path[:0] = [f"{SOURCE}/bench", f"{SOURCE}/bench/generation"]

import page  # noqa: E402
import page_text  # noqa: E402
import provenance  # noqa: E402
import report  # noqa: E402
import rounds  # noqa: E402
import step  # noqa: E402

RESULTS = f"{SOURCE}/bench/results"
FACTS = ("bench", "command", "date", "commit", "cpu", "cores", "marks")
# Facts of results that are speeds; whether long tests pass is none.
LOAD = ("load_average", "busy_cores")
# Results from before these facts were kept, and those kept by hand. One that is measured again on a
# quiet machine, from a commit, leaves this list; none is added.
MARKED = set()
DRIVERS = {"tcp": "comm_tcp"}  # Others have the name of their benchmark.
WITHOUT_GOALS = {"mfu", "compression", "build", "long"}
# Where a file keeps what several runs have measured, each with its own provenance.
PARTS = {"overlap": "points", "roce": "setups", "long": "tests"}
# A number with a unit, or with a fraction: what a measured figure looks like.
FIGURE = re.compile(
    r"(?<![\w.,/-])\d[\d,]*(?:\.\d+)?(?:e-\d+)?"
    r"(?:\s?(?:%|(?:ms|us|s|min|[KMG]i?B(?:/s)?|kB|[MG]bit/s|tokens/s|G?FLOP(?:/s)?|times|nats|x)(?![\w/-]))"
    r"|(?<=\.\d)|(?<=\.\d\d)|(?<=\.\d\d\d)|(?<=e-\d))")
NO_MEASUREMENTS = {"Words", "On a GPU"}  # Sections of words, and of what will be measured.


def facts_of(results):
    return FACTS if results["bench"] == "long" else (*FACTS, *LOAD)


def runs_in(results):
    """{where: its provenance} of the parts of a file that runs of their own may have measured."""
    bench, found = results["bench"], {}
    if bench in ("step", "launch", "data", "generate"):
        for part in importlib.import_module(bench).PARTS:
            found.update({f"{part} {i}": row for i, row in enumerate(results.get(part, []))})
    elif bench == "zero":
        for model in results["models"]:
            found.update({f"{model['model']}, stage {row['stage']}": row for row in model.get("states", [])})
            if "tokens_per_s" in model:
                found[f"{model['model']}, speed"] = model.get("speed_taken", {})
    elif bench in PARTS:
        found.update(results[PARTS[bench]])
    return found


def faults_of(results):
    """Lists what a result lacks that must have no marks: facts, and a clean commit of each of its runs."""
    found = [f"no {fact}" for fact in facts_of(results) if results[fact] is None]
    found += page.marks_of(results)
    of_a_run = [fact for fact in facts_of(results) if fact not in ("bench", "cpu", "cores")]
    for where, run in {"": results, **runs_in(results)}.items():
        before = f"{where}: " if where else ""
        found += [f"{before}no {fact}" for fact in of_a_run if where and run.get(fact) is None]
        if not re.fullmatch(r"[0-9a-f]{7,40}", run.get("commit") or ""):
            found.append(f"{before}commit {run.get('commit')!r} is not a clean one")
    return found


def percentiles_of_few(value, where, rounds_of_all=0):
    """Where percentiles stand that fewer rounds than a percentile needs have given."""
    found = []
    if isinstance(value, dict):
        if isinstance(value.get("rounds"), int):
            rounds_of_all = value["rounds"]
        if rounds_of_all < rounds.PERCENTILE_ROUNDS_MIN:
            found += [f"{where}.{key}" for key in value if re.search(r"(^|_)p[19]0$", str(key))]
        for key, one in value.items():
            found += percentiles_of_few(one, f"{where}.{key}", rounds_of_all)
    elif isinstance(value, list):
        for i, one in enumerate(value):
            found += percentiles_of_few(one, f"{where}.{i}", rounds_of_all)
    return found


def machine_files():
    """{name: results} of the measurements on CPUs."""
    found = {}
    for path in sorted(glob.glob(f"{RESULTS}/*/*.json")):
        results = report.read_results(path)
        if "gpu" not in results:
            found[os.path.relpath(path, RESULTS)] = results
    return found


def sections(text):
    """[(heading, its lines)] of the second level."""
    found = [("", [])]
    for line in text.split("\n"):
        if line.startswith("## "):
            found.append((line[3:], []))
        found[-1][1].append(line)
    return found


def prose_of(lines):
    """The prose of a section: without its tables, code, links' targets and comments."""
    kept, inside = [], ""
    for line in lines:
        if line.startswith("```"):
            inside = "" if inside == "code" else "code"
        elif page.BEGIN.match(line):
            inside = "block"
        elif line == page.END:
            inside = ""
        elif not inside and not line.startswith(("|", "<!--", "#")):
            kept.append(line)
    text = re.sub(r"`[^`]*`", "", " ".join(kept))
    return re.sub(r"\]\([^)]*\)", "]", text)


def named_as_not_measured(lines):
    named = []
    for line in lines:
        if match := re.match(r"<!-- not measured: (.+) -->$", line):
            named += match[1].split("; ")
    return named


def unnamed_figures(lines):
    """The figures of the prose that no line of the section says to be set."""
    return sorted(set(FIGURE.findall(prose_of(lines))) - set(named_as_not_measured(lines)))


def tables_without_files(lines):
    """The heads of tables that stand in no block and behind no reason."""
    found, inside, reason, before = [], False, False, ""
    for line in lines:
        if page.BEGIN.match(line):
            inside = True
        elif line == page.END:
            inside = False
        elif page.NONE.match(line):
            reason = True
        elif line.startswith("|") and not before.startswith("|") and not inside:
            if not reason:
                found.append(line)
            reason = False
        before = line
    return found


class Page(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        with open(page.PAGE, encoding="utf-8") as file:
            self.text = file.read()

    def test_tables_are_what_the_files_say(self):
        self.assertEqual(page.rewritten(self.text), self.text, "./dev bench page writes them anew")

    def test_a_figure_that_no_file_has_is_found(self):
        for inside in re.findall(r"\| [^|\n]*?(\d+\.\d+)[^|\n]*? \|", self.text)[::40]:
            wrong = self.text.replace(f" {inside} ", f" {inside}7 ", 1)
            if wrong != self.text:
                self.assertNotEqual(page.rewritten(wrong), wrong, inside)

    def test_every_table_names_its_files_or_why_it_has_none(self):
        self.assertEqual(tables_without_files(self.text.split("\n")), [])

    def test_prose_has_no_figure_that_may_be_measured(self):
        wrong = {heading: figures for heading, lines in sections(self.text)
                 if heading not in NO_MEASUREMENTS and (figures := unnamed_figures(lines))}
        self.assertEqual(wrong, {}, "move it into a table, or name it in a line <!-- not measured: ... -->")

    def test_what_is_named_as_not_measured_is_in_the_prose(self):
        stale = {heading: left for heading, lines in sections(self.text)
                 if (left := [name for name in named_as_not_measured(lines)
                              if name not in FIGURE.findall(prose_of(lines))])}
        self.assertEqual(stale, {})


class Checks(unittest.TestCase):
    """The checks above find what they are for."""

    def test_figures_of_prose_are_seen_and_counts_are_not(self):
        self.assertEqual(unnamed_figures([
            "It took 3.5 ms, 40 % of 12 GB/s, 1,234 tokens/s and 1.5e-7 of 0.9; 2 ranks, 300 steps,",
            "`--rounds 0.5`, [a link](x.md#1.5-x), Qwen2.5 and 7B.", "| 5.5 ms |", "<!-- 6.5 ms -->"]),
            ["0.9", "1,234 tokens/s", "1.5e-7", "12 GB/s", "3.5 ms", "40 %"])
        self.assertEqual(unnamed_figures(["At least 0.9 of 3 %.", "<!-- not measured: 0.9; 3 % -->"]), [])

    def test_a_table_without_a_file_is_seen(self):
        table = ["| a |", "|---|", "| 1.5 |"]
        self.assertEqual(tables_without_files(table), ["| a |"])
        self.assertEqual(tables_without_files(["<!-- no figures: words -->", "", *table]), [])
        self.assertEqual(tables_without_files(["<!-- no figures: words -->", *table, "", *table]), ["| a |"])
        self.assertEqual(tables_without_files(["<!-- figures: comm, a.json -->", *table, page.END]), [])


    RUN = {"command": "./dev bench step", "date": "2026-11-26", "commit": "a252b7f4d522",
           "load_average": 0.1, "busy_cores": 0.01, "marks": []}
    WHOLE = {**RUN, "cpu": "AMD EPYC", "cores": 2}

    def test_what_a_file_lacks_is_seen(self):
        whole = {"bench": "comm", **self.WHOLE}
        self.assertEqual(faults_of(whole), [])
        self.assertEqual(faults_of({**whole, "date": None, "busy_cores": None}), ["no date", "no busy_cores"])
        self.assertEqual(faults_of({**whole, "commit": "a252b7f4d522-dirty", "marks": ["dirty: a.cc"]}),
                         ["dirty: a.cc", "commit 'a252b7f4d522-dirty' is not a clean one"])

    def test_a_row_of_an_earlier_run_without_its_origin_is_seen(self):
        older = {"command": "./dev bench step"}
        lacking = [f"no {fact}" for fact in ("date", "commit", "marks", "load_average", "busy_cores")]
        lacking.append("commit None is not a clean one")
        for where, results in (
                ("speed 1", {"bench": "step", "speed": [self.RUN, older], "start": [self.RUN]}),
                ("5M, stage 3", {"bench": "zero", "models": [{"model": "5M", "states": [{"stage": 3, **older}]}]}),
                ("5M, speed", {"bench": "zero", "models": [
                    {"model": "5M", "tokens_per_s": [], "speed_taken": older}]}),
                ("far", {"bench": "overlap", "points": {"near": self.RUN, "far": older}}),
                ("pair", {"bench": "roce", "setups": {"alone": self.RUN, "pair": older}})):
            self.assertEqual(faults_of({**self.WHOLE, **results}), [f"{where}: {what}" for what in lacking])

    def test_percentiles_of_few_rounds_are_seen(self):
        self.assertEqual(percentiles_of_few({"a": [{"p10": 1, "p90": 2, "rounds": 9}]}, "x"),
                         ["x.a.0.p10", "x.a.0.p90"])
        row = {"rounds": 19, "eager": {"ratio_p10": 1, "ratio_least": 1}}
        self.assertEqual(percentiles_of_few(row, "x"), ["x.eager.ratio_p10"])
        self.assertEqual(percentiles_of_few({**row, "rounds": 20}, "x"), [])
        self.assertEqual(percentiles_of_few({"p10": 1}, "x"), ["x.p10"])

    def test_a_row_of_a_changed_tree_is_seen(self):
        row = {**self.RUN, "commit": "a252b7f4d522-dirty", "marks": ["dirty: a.cc"]}
        self.assertEqual(faults_of({"bench": "step", **self.WHOLE, "start": [row]}),
                         ["dirty: a.cc", "start 0: commit 'a252b7f4d522-dirty' is not a clean one"])


class Tables(unittest.TestCase):
    """The tables tell results as they are."""

    def test_times_of_builds_have_seconds_and_minutes(self):
        said = {seconds: page_text.minutes_text(seconds) for seconds in (0, 40, 60, 443, 480, 3006)}
        self.assertEqual(said, {0: "0 s", 40: "40 s", 60: "1 min", 443: "7 min 23 s", 480: "8 min",
                                3006: "50 min 6 s"})

    def test_goals_of_start_and_memory_name_the_twin_that_they_are_set_against(self):
        def row(ratio_key):
            goals = step.start_goals([{"name": key, "ratio": 0.1, ratio_key: 0.1} for key, _, _ in step.START_GOALS])
            results = {"bench": "step", "marks": [], "goals": report.judged(goals)}
            return [line.split(" | ")[2] for line in page.TABLES["all-goals"]({"zen3-2core/step.json": results})[2:]]

        self.assertEqual(row("ratio_cpu"), [
            "command to the first forward at most 1/6 of torchrun + DDP without CUDA's libraries",
            "private memory before the first batch at most 0.4 of torchrun + DDP without CUDA's libraries",
            "private memory at the peak at most 0.9 of torchrun + DDP without CUDA's libraries"])
        self.assertEqual({text.rpartition(" torchrun + DDP")[2] for text in row("ratio")},
                         {", which maps CUDA's libraries"})


class Files(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.files = machine_files()
        self.assertGreater(len(self.files), 5)

    def test_each_says_where_it_comes_from(self):
        lacking = {name: left for name, results in self.files.items()
                   if (left := [fact for fact in facts_of(results) if fact not in results])}
        self.assertEqual(lacking, {})

    def test_a_result_without_marks_has_every_fact_and_a_clean_commit(self):
        wrong = {name: faults for name, results in self.files.items()
                 if name not in MARKED and (faults := faults_of(results))}
        self.assertEqual(wrong, {}, "measure it again with ./dev bench, from a commit and on a quiet machine")

    def test_those_that_may_have_marks_have_some(self):
        self.assertEqual([name for name in sorted(MARKED) if name not in self.files
                          or not page.marks_of(self.files[name])], [], "take it out of MARKED")

    def test_results_of_different_machines_stand_in_different_folders(self):
        machines = {}
        for name, results in self.files.items():
            if name not in MARKED:
                machines.setdefault(os.path.dirname(name), set()).add((results["cpu"], results["cores"]))
        self.assertEqual({folder: found for folder, found in machines.items() if len(found) > 1}, {})

    def test_goals_are_those_that_follow_from_the_rows_by_todays_rules(self):
        for name, results in self.files.items():
            bench = results["bench"]
            if bench in WITHOUT_GOALS:
                continue
            driver = importlib.import_module(DRIVERS.get(bench, bench))
            self.assertEqual(results["goals"], report.judged(driver.all_goals(results)), name)

    def test_few_rounds_have_a_range_and_no_percentiles(self):
        self.assertEqual([where for name, results in self.files.items()
                          for where in percentiles_of_few(results, name)], [])


class Provenance(unittest.TestCase):
    def test_folders_have_the_names_of_cpus(self):
        zen3 = {"vendor_id": "AuthenticAMD", "model name": "AMD EPYC", "cpu family": "25", "model": "1"}
        self.assertEqual(provenance.machine_folder(zen3, 2), "zen3-2core")
        self.assertEqual(provenance.machine_folder({**zen3, "cpu family": "26", "model": "2"}, 4), "zen5-4core")
        self.assertEqual(provenance.machine_folder({"model name": "Intel(R) Xeon(R) 8481C",
                                                    "cpu family": "6", "model": "143"}, 8),
                         "intel-xeon-8481c-family-6-model-143-8core")

    def test_a_dirty_tree_and_a_busy_machine_are_marked(self):
        self.assertEqual(provenance.marks_of([], 0.2, 2), [])
        self.assertEqual(provenance.marks_of([], 0.21, 2),
                         ["busy: others used 0.21 of 2 cores before the start"])
        self.assertEqual(provenance.marks_of(list("abcde"), 0, 2),
                         ["dirty: a, b, c and 2 more differ from the commit"])

    def test_a_marked_result_does_not_take_the_place_of_a_kept_one(self):
        kept = f"{provenance.RESULTS}/zen3-2core/step.json"
        self.assertEqual(provenance.kept_path(kept, []), kept)
        self.assertEqual(provenance.kept_path(kept, ["busy"]),
                         f"{provenance.SOURCE}/build/bench/zen3-2core/step.json")
        self.assertEqual(provenance.kept_path("/tmp/step.json", ["busy"]), "/tmp/step.json")


if __name__ == "__main__":
    unittest.main(verbosity=2)
