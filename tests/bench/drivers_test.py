"""The benchmarks' drivers: what they make of measured times, and that they run."""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

SOURCE, BIN = os.environ["DTRAIN_SOURCE"], os.environ["DTRAIN_BIN"]
sys.path[:0] = [f"{SOURCE}/bench", f"{SOURCE}/bench/twins", f"{SOURCE}/tests/testing"]

import comm  # noqa: E402
import compression  # noqa: E402
import cuda_libraries  # noqa: E402
import kernels  # noqa: E402
import optimizer  # noqa: E402
import overlap  # noqa: E402
import report  # noqa: E402
import roce  # noqa: E402
import rounds  # noqa: E402
import runner  # noqa: E402
import step  # noqa: E402
import step_trace  # noqa: E402
import zero  # noqa: E402
from gpu_fakes import write_program  # noqa: E402


def one_round(kernel, eager, compiled, probe=1.0, steady=True):
    return {"ours": {"probe_before_s": probe, "probe_after_s": probe, "kernel_s": kernel,
                     "steady": steady}, "eager": eager, "compile": compiled}


CASE = {"name": "op", "bytes": 10**9}


class KernelSummary(unittest.TestCase):
    def test_ratios_are_medians_of_rounds_not_ratios_of_medians(self):
        rounds = [one_round(1, 2, 1), one_round(2, 3, 2), one_round(4, 12, 2)]
        row = kernels.summary(CASE, rounds, kernels.PEERS)
        self.assertEqual(row["eager"]["ratio"], 2)
        self.assertEqual(row["compile"]["ratio"], 1)
        self.assertEqual(row["probe_fraction"], 0.5)
        self.assertEqual(row["gb_per_s"], 0.5)

    def test_an_unsteady_round_says_nothing_of_the_probe(self):
        rounds = [one_round(2, 2, 2), one_round(1, 2, 2, steady=False)]
        self.assertEqual(kernels.summary(CASE, rounds, kernels.PEERS)["probe_fraction"], 0.5)
        busy = kernels.summary(CASE, rounds[1:], kernels.PEERS)
        self.assertNotIn("probe_fraction", busy)
        self.assertNotIn("kernels.op.probe_fraction", [goal[0] for goal in kernels.goals_of(busy)])

    def test_nobody_is_asked_to_pass_the_probe(self):
        # Eager at 0.6 of the probe: 0.9 / 0.6 = 1.5 is as good as it gets.
        near = kernels.summary(CASE, [one_round(1, 1 / 0.6, 1)], kernels.PEERS)
        target = {goal[0]: goal[3] for goal in kernels.goals_of(near)}
        self.assertAlmostEqual(target["kernels.op.vs_eager"], 1.5)
        far = kernels.summary(CASE, [one_round(1, 10, 1)], kernels.PEERS)
        target = {goal[0]: goal[3] for goal in kernels.goals_of(far)}
        self.assertEqual(target["kernels.op.vs_eager"], 2)
        self.assertEqual(target["kernels.op.vs_compile"], 0.97)

    def test_no_goal_asks_for_less_than_eagers_own_speed(self):
        # Eager at 0.96 of the probe, and one that the probe did not bound.
        for eager in (1 / 0.96, 1 / 1.3):
            row = kernels.summary(CASE, [one_round(1.2, eager, 1)], kernels.PEERS)
            goal = next(goal for goal in kernels.goals_of(row) if goal[0].endswith("vs_eager"))
            self.assertEqual(goal[3], 1)
            self.assertEqual(report.judged([goal])[0]["verdict"], "short")

    def test_a_probe_that_was_slower_than_the_kernel_bounds_nothing(self):
        for kernel, verdict in ((1 / 0.8, "short"), (1 / 0.95, "ok"), (1 / 1.05, "no bound")):
            row = kernels.summary(CASE, [one_round(kernel, 2, 2)], kernels.PEERS)
            goal = report.judged(kernels.goals_of(row))[0]
            self.assertEqual((goal["name"], goal["verdict"]), ("kernels.op.probe_fraction", verdict))

    def test_a_slow_eager_form_of_an_older_file_judges_nothing(self):
        row = kernels.summary(CASE, [one_round(1, 30, 1)], kernels.PEERS)
        row["eager"]["not_fastest"] = "torch.linalg.vector_norm"
        verdicts = {goal["name"]: goal["verdict"] for goal in report.judged(kernels.goals_of(row))}
        self.assertEqual(verdicts["kernels.op.vs_eager"], "no bound")

    def test_the_eager_form_that_was_fastest_is_kept(self):
        row = kernels.summary(CASE, [one_round(1, 2, 1)], kernels.PEERS, {"eager_form": "aminmax"})
        self.assertEqual(row["eager"]["eager_form"], "aminmax")

    def test_goal_lines_say_ok_or_short(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            report.print_goals([("a", 0.5, ">=", 0.9), ("b", 0.5, "<=", 0.9)])
        self.assertIn("goal a measured 0.5 target >= 0.9 short\n", out.getvalue())
        self.assertIn("goal b measured 0.5 target <= 0.9 ok\n", out.getvalue())

    def test_how_far_the_compiled_form_is_off_eagers_is_kept_and_named_in_the_table(self):
        rounds = [one_round(1, 2, 1)]
        near = {"compiled": True, "distance": 1e-6, "allowed": 1e-4}
        row = kernels.summary(CASE, rounds, kernels.PEERS, near)
        self.assertEqual(row["compile"]["distance"], 1e-6)
        self.assertNotIn("distance", row["eager"])
        self.assertEqual(kernels.note_of(row), "")
        far = kernels.summary(CASE, rounds, kernels.PEERS, {**near, "distance": 5e-4})
        self.assertIn("0.0005 off eager, more than 0.0001", kernels.note_of(far))
        alone = kernels.summary(CASE, rounds, kernels.PEERS, {"compiled": False})
        self.assertIn("not compiled", kernels.note_of(alone))
        self.assertEqual(kernels.note_of(kernels.summary(CASE, rounds, [], {})), "")


def begun(path, changed=(), busy=0.0):
    """report.begin() where git and the machine say this."""
    with mock.patch("provenance.changed_files", lambda: list(changed)), \
            mock.patch("provenance.busy_cores", lambda: busy), \
            contextlib.redirect_stderr(io.StringIO()) as said:
        return report.begin("step", path), said.getvalue()


class Results(unittest.TestCase):
    def test_a_file_has_the_provenance_of_the_moment_before_it_was_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            path, said = begun(f"{folder}/r.json")
            report.write_results(path, "step", rows=[])
            written = report.read_results(path)
        self.assertEqual(said, "")
        self.assertEqual(list(written), ["bench", "command", "date", "commit", "cpu", "cores",
                                         "load_average", "busy_cores", "marks", "rows"])
        self.assertEqual(written["marks"], [])
        self.assertEqual(set(report.how_taken()), set(written) - {"bench", "cpu", "cores", "rows"})

    def test_a_dirty_tree_or_a_busy_machine_is_said_loudly_and_kept_apart(self):
        kept = f"{SOURCE}/bench/results/zen3-2core/step.json"
        for changed, busy, mark in ((["a.cc"], 0, "dirty: a.cc"), ([], 99, "busy: others used 99.00")):
            path, said = begun(kept, changed, busy)
            self.assertEqual(path, f"{SOURCE}/build/bench/zen3-2core/step.json")
            self.assertIn(f"MARKED RESULT: {mark}", said)
            self.assertTrue(report.how_taken()["marks"][0].startswith(mark))

    def test_a_writer_that_fails_leaves_the_earlier_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/new/r.json"
            report.write_json(path, {"rows": [1]})
            with self.assertRaises(TypeError):
                report.write_json(path, {"rows": [object()]})
            self.assertEqual(report.read_results(path), {"rows": [1]})
            self.assertEqual(os.listdir(f"{folder}/new"), ["r.json"])

    def test_the_command_has_its_arguments_and_no_path_of_the_machine(self):
        words = ["--bin", "/some/bin", "--json=/some/file", "--set", "a={\"b\": 1}", "--rounds", "3"]
        self.assertEqual(report.command_of("step", words),
                         "./dev bench step --set 'a={\"b\": 1}' --rounds 3")
        self.assertEqual(report.command_of("comm", []), "./dev bench comm")

    def test_an_earlier_run_is_added_to_on_the_same_machine_alone(self):
        with tempfile.TemporaryDirectory() as folder, \
                contextlib.redirect_stdout(io.StringIO()) as out:
            path = f"{folder}/r.json"
            self.assertEqual(report.measured_before(path), {})
            begun(path)
            report.write_results(path, "step", start=[1])
            before = report.measured_before(path)
            self.assertEqual((before["start"], out.getvalue()), ([1], ""))
            self.assertRegex(before["date"], r"^20\d\d-\d\d-\d\d$")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**before, "cpu": "another"}, file)
            self.assertEqual(report.measured_before(path), {})
            self.assertIn("cores of another): replaced", out.getvalue())

    def test_a_run_without_marks_adds_to_no_marked_results(self):
        with tempfile.TemporaryDirectory() as folder, \
                contextlib.redirect_stdout(io.StringIO()) as out:
            path = f"{folder}/r.json"
            begun(path, ["a.cc"])
            report.write_results(path, "step", start=[1])
            # A second marked run may add to it: the marks stay in the file.
            begun(path, busy=99)
            self.assertEqual((report.measured_before(path)["start"], out.getvalue()), ([1], ""))
            begun(path)
            self.assertEqual(report.measured_before(path), {})
            self.assertIn("has marks (dirty: a.cc differ from the commit): replaced", out.getvalue())

    def test_a_row_taken_again_takes_the_place_of_the_row_before(self):
        before = [{"model": "5M", "ranks": 1, "f": 1}, {"model": "5M", "ranks": 2, "f": 2}]
        taken = [{"model": "5M", "ranks": 2, "f": 3}, {"model": "100M", "ranks": 2, "f": 4}]
        rows = report.merged(before, taken, step.PARTS["speed"])
        self.assertEqual([row["f"] for row in rows], [1, 3, 4])


class Rounds(unittest.TestCase):
    def test_each_round_begins_with_the_next_program(self):
        orders = [rounds.rotated(("a", "b", "c"), number) for number in range(4)]
        self.assertEqual([order[0] for order in orders], ["a", "b", "c", "a"])
        self.assertEqual(orders[1], ["b", "c", "a"])
        self.assertEqual(rounds.rotated({"a": 1, "b": 2}, 3), ["b", "a"])

    def test_every_second_round_goes_back(self):
        self.assertEqual([rounds.back_and_forth({"a": 1, "b": 2, "c": 3}, number) for number in range(3)],
                         [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]])

    def test_few_rounds_have_a_range_and_many_have_percentiles(self):
        few = rounds.spread([3.0, 1.0, 2.0] * 3)
        self.assertEqual(few, {"median": 2.0, "rounds": 9, "least": 1.0, "most": 3.0})
        self.assertEqual(rounds.spread_text(few, 1), "2.0 (range of 9 rounds 1.0 to 3.0)")
        many = rounds.spread([float(i) for i in range(21)])
        self.assertEqual(many, {"median": 10.0, "rounds": 21, "p10": 2.0, "p90": 18.0})
        self.assertIn("10th to 90th percentile 2.0", rounds.spread_text(many, 1))


class Runner(unittest.TestCase):
    def test_what_a_program_printed_is_given_and_the_environment_is_added_to(self):
        said = runner.run(["sh", "-c", "echo $WORD $DTRAIN_SOURCE; echo aside >&2"], {"WORD": "at"})
        self.assertEqual(said, f"at {SOURCE}\n")

    def test_a_program_that_fails_ends_the_benchmark_with_its_last_words(self):
        with self.assertRaisesRegex(SystemExit, r"bench: sh -c .* ended with 3:\n(?s:.*)the last word"):
            runner.run(["sh", "-c", "echo the last word >&2; exit 3"])

    def test_times_are_found_among_other_lines(self):
        text = 'chatter\n{"bytes": 4096, "p50_us": 2.5}\n{"bytes": 8192, "p50_us": 3}\n'
        self.assertEqual(runner.times_by_size(text), {4096: 2.5, 8192: 3})


class CommGoals(unittest.TestCase):
    @staticmethod
    def verdict(probe):
        size = 256 << 20
        times = {"registered": {size: 100.0, 4096: 1.0}, "plain": {size: 300.0, 4096: 2.0},
                 "probe": {size: probe, 4096: 0.5}}
        times.update({peer: {size: 1000.0, 4096: 30.0} for peer in comm.PEERS})
        with contextlib.redirect_stdout(io.StringIO()):
            goals = report.print_goals(comm.goals_of([times], [4096, size]))
        goal = next(goal for goal in goals if goal["name"] == "comm.shm_256MiB_of_zero_copy_bound")
        return goal["verdict"], goal["ok"]

    def test_a_probe_that_was_slower_bounds_nothing(self):
        self.assertEqual(self.verdict(84), ("short", False))
        self.assertEqual(self.verdict(100), ("ok", True))
        self.assertEqual(self.verdict(125), ("no bound", False))

    def test_plain_memory_has_goals_of_its_own(self):
        sizes = [4096, 64 << 20]
        times = {peer: dict.fromkeys(sizes, 30.0) for peer in comm.PEERS}
        times.update(registered=dict.fromkeys(sizes, 1.0), plain=dict.fromkeys(sizes, 10.0),
                     probe=dict.fromkeys(sizes, 1.0))
        goals = {goal["name"]: goal for goal in report.judged(comm.goals_of([times], sizes))}
        for name in ("comm.shm_4KiB_vs_gloo", "comm.shm_from_1MiB_vs_gloo"):
            self.assertEqual((goals[name]["measured"], goals[f"{name}_plain"]["measured"]), (30, 3))
            self.assertEqual(goals[name]["target"], goals[f"{name}_plain"]["target"])
            self.assertEqual((goals[name]["verdict"], goals[f"{name}_plain"]["verdict"]), ("ok", "short"))

    def test_every_size_has_a_line_for_the_bound(self):
        sizes = [4096, 65536, 25 << 20]
        times = {name: dict.fromkeys(sizes, 1.0) for name in ("registered", "plain", "probe", *comm.PEERS)}
        names = [goal[0] for goal in comm.goals_of([times], sizes)]
        for label in ("4KiB", "64KiB", "25MiB"):
            self.assertIn(f"comm.shm_{label}_of_zero_copy_bound", names)

    def test_plain_memory_stands_against_the_best_peer_of_each_round(self):
        sizes, rounds = [4096], []
        for gloo, mpi in ((6.0, 3.0), (2.0, 9.0), (8.0, 8.0)):
            rounds.append({"registered": {4096: 1.0}, "plain": {4096: 2.0}, "probe": {4096: 1.0},
                           "gloo": {4096: gloo}, "openmpi": {4096: mpi}, "deepspeed-shm": {4096: 9.0}})
        self.assertEqual(comm.median_against_best(rounds, 4096, comm.PEERS, "plain"), 1.5)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            comm.print_table(rounds, sizes)
        head, row = out.getvalue().strip().split("\n")
        self.assertTrue(head.endswith("plain x best"), head)
        self.assertTrue(row.endswith("1.50"), row)


class FakeGuest:
    """A guest that has printed these sections."""

    def __init__(self, sections):
        self.sections = sections

    def section(self, name):
        return self.sections.get(name, ([], None))

    def text(self):
        return "the console"


class RoceRounds(unittest.TestCase):
    @staticmethod
    def group_line(small, large):
        lines = [{"what": what, "bytes": size, "mb_s": speed} for size, speed in
                 ((65536, small), (1 << 20, large))
                 for what in ("send_receive", "all_reduce_busbw")]
        return ["chatter", "JSON " + json.dumps({"transport": "rdma", "lines": lines})]

    def guests(self):
        """Two hosts: one has the group's figures, the other ib_write_bw's."""
        left, right = {}, {}
        for i, (limit, large) in enumerate(((40.0, 38.0), (20.0, 10.0), (10.0, 7.0))):
            left[f"group_bw-{i}"] = (self.group_line(1.0, large), 0)
            right[f"group_bw-{i}"] = (["RESULT OK"], 0)
            left[f"write_bw-{i}"] = (["server"], 0)
            right[f"write_bw-{i}"] = (["WRITE_BW 65536 5.0", f"WRITE_BW 1048576 {limit}"], 0)
        return [FakeGuest(left), FakeGuest(right)]

    def test_shares_are_of_their_round_and_shown_with_least_and_most(self):
        rounds = roce.bandwidth.read_rounds(self.guests(), 3)
        row = roce.bandwidth.summary(rounds)[2]
        self.assertEqual((row["what"], row["bytes"], row["mb_s"]), ("send_receive", 1 << 20, 10.0))
        self.assertAlmostEqual(row["share"], 0.7)
        self.assertAlmostEqual(row["share_least"], 0.5)
        self.assertAlmostEqual(row["share_most"], 0.95)
        self.assertEqual(roce.bandwidth.summary(rounds)[0]["share"], 0.2)
        sent, reduced = roce.bandwidth.table(rounds)[4:]
        self.assertEqual(sent.split(), ["send_receive", "1048576", "10.0", "20.0", "70%", "(50%-95%)",
                                        "90%", "short"])
        self.assertTrue(reduced.endswith("60% ok"), reduced)

    def test_what_was_faster_than_ib_write_bw_was_not_bound_by_it(self):
        guests = self.guests()
        for i in range(3):
            guests[0].sections[f"group_bw-{i}"] = (self.group_line(1.0, 50.0), 0)
        goals = report.judged(roce.goals_of("pair", roce.bandwidth.read_rounds(guests, 3)))
        self.assertEqual({goal["verdict"] for goal in goals}, {"no bound"})

    def test_goals_begin_at_a_mebibyte(self):
        goals = roce.goals_of("pair", roce.bandwidth.read_rounds(self.guests(), 3))
        self.assertEqual([(name, target) for name, _, _, target in goals],
                         [("comm.roce_pair_send_receive_1MiB_of_ib_write_bw", 0.9),
                          ("comm.roce_pair_all_reduce_busbw_1MiB_of_ib_write_bw", 0.6)])

    def test_a_round_that_failed_is_named_with_all_that_was_said(self):
        guests = self.guests()
        guests[1].sections["write_bw-1"] = (["Couldn't connect"], 1)
        with self.assertRaisesRegex(ValueError, r"write_bw-1: 0 lines .*\[0, 1\][\s\S]*the console"):
            roce.bandwidth.read_rounds(guests, 3)


class CompressionCurve(unittest.TestCase):
    def test_every_fiftieth_step_is_shown(self):
        rows = [{"policy": "fp32", "losses": {step: 5.0 - step / 100 for step in range(1, 121)}},
                {"policy": "int8", "losses": {50: 4.75, 100: 4.25}}]
        head, first, second = compression.curve_lines(rows)
        self.assertEqual(head.split()[-2:], ["50", "100"])
        self.assertEqual(first.split(), ["fp32", "4.5000", "4.0000"])
        self.assertEqual(second.split(), ["int8", "4.7500", "4.2500"])


class KernelDriver(unittest.TestCase):
    def run_driver(self, *arguments):
        return subprocess.run([sys.executable, f"{SOURCE}/bench/kernels.py", "--bin", BIN, "--no-peers",
                               "--elements", "65536", "--rounds", "2", *arguments], text=True,
                              capture_output=True, timeout=100, check=False)

    def test_it_measures_and_writes_what_it_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/kernels.json"
            done = self.run_driver("--filter", "copy_f32", "--json", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path, encoding="utf-8") as file:
                written = json.load(file)
        self.assertIn("copy_f32", [row["name"] for row in written["rows"]])
        self.assertGreater(written["rows"][0]["gb_per_s"], 0)
        self.assertEqual(written["elements"], 65536)
        for fact in ("date", "commit", "cpu", "cores", "load_average", "busy_cores", "marks"):
            self.assertIn(fact, written)

    def test_a_filter_without_a_case_names_the_cases(self):
        done = self.run_driver("--filter", "no such")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("copy_f32", done.stderr)


PROGRAM = """import json, sys
word = dict(zip(sys.argv[1:], sys.argv[2:]))
with open(word["--json"], "w") as file:
    json.dump({"bench": "classifier", "commit": "of the build", "load_average": 99,
               "rounds": int(word["--rounds"]), "goals": []}, file)
"""


class ProgramDriver(unittest.TestCase):
    """Benchmarks that are one program in C++."""

    def run_driver(self, folder, text):
        write_program(f"{folder}/bench_classifier", text, sys.executable)
        return subprocess.run([sys.executable, f"{SOURCE}/bench/classifier.py", "--bin", folder, "--json",
                               f"{folder}/out.json", "--rounds", "3"], text=True, capture_output=True,
                              timeout=100, check=False)

    def test_its_results_have_the_provenance_that_all_have(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_driver(folder, PROGRAM)
            self.assertEqual(done.returncode, 0, done.stderr)
            written = report.read_results(f"{folder}/out.json")
        self.assertEqual(written["rounds"], 3)
        self.assertEqual(written["command"], "./dev bench classifier --rounds 3")
        self.assertNotEqual(written["commit"], "of the build")
        self.assertLess(written["load_average"], 99)
        self.assertIn("busy_cores", written)

    def test_a_program_that_fails_leaves_no_results(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.run_driver(folder, "raise SystemExit(64)").returncode, 64)
            self.assertFalse(os.path.exists(f"{folder}/out.json"))


class StepShares(unittest.TestCase):
    def test_a_moment_counts_for_the_innermost_operation(self):
        shares = step_trace.shares([("dtrain::forward", 0, 60), ("aten::linear", 10, 40),
                                    ("aten::mm", 20, 40), ("aten::mul", 40, 50),
                                    ("dtrain::wait", 60, 80), ("aten::add_", 65, 70),
                                    ("dtrain::update", 90, 100)])
        self.assertAlmostEqual(shares["gemm_attention"], 0.2)
        self.assertAlmostEqual(shares["wait"], 0.2)
        self.assertAlmostEqual(shares["outside"], 0.8)
        rest = dict(shares["most"])
        self.assertAlmostEqual(rest["aten::mul"], 0.1)
        self.assertAlmostEqual(rest["between operations"], 0.1)
        self.assertNotIn("aten::add_", rest)

    def test_what_attention_calls_is_attention(self):
        shares = step_trace.shares([("aten::scaled_dot_product_attention", 0, 40),
                                    ("aten::softmax", 10, 20), ("aten::mul", 40, 50)])
        self.assertAlmostEqual(shares["gemm_attention"], 0.8)

    def test_a_trace_without_a_step_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/t.json", "w", encoding="utf-8") as file:
                json.dump({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0,
                                            "dur": 1, "tid": 1}]}, file)
            with self.assertRaisesRegex(ValueError, "no dtrain::forward"):
                step_trace.shares_of_trace(f"{folder}/t.json")

    def test_no_engine_is_asked_to_beat_one_over_f(self):
        result = {"model": "5M", "ranks": 1, "f": 0.9, "over_eager": {"median": 1.0},
                  "over_compile": {"median": 1.0}, "trace": {"outside": 0.05}}
        target = {goal[0]: goal[3] for goal in step.speed_goals(result)}
        self.assertAlmostEqual(target["step.5M.1.vs_eager"], 0.92 / 0.9)
        self.assertEqual(step.speed_goals({**result, "f": 0.5})[0][3], 1.25)
        self.assertEqual(step.speed_goals({**result, "f": 0.99})[0][3], 1)
        self.assertEqual(target["step.5M.1.outside_gemm_attention"], 0.10)


class StartRows(unittest.TestCase):
    @staticmethod
    def rounds(ways):
        return [{way: {"first_forward_s": seconds, "memory_before": 1e6, "memory_peak": 2e6,
                       "cuda_libraries": libraries, "torch": "2"} for way, (seconds, libraries) in ways.items()}] * 3

    def goals(self, ways):
        rows = [step.start_row(key, self.rounds(ways)) for key, _, _ in step.START_GOALS]
        return rows, {goal["name"]: goal for goal in report.judged(step.start_goals(rows))}

    def test_the_peer_that_maps_cudas_libraries_says_how_many(self):
        rows, goals = self.goals({"dtrain": (0.2, 0), "eager": (2.0, 14)})
        self.assertEqual((rows[0]["ratio"], rows[0]["ddp_cuda_libraries"]), (0.1, 14))
        self.assertEqual(rows[1]["ddp"], 1)
        self.assertEqual(goals["step.first_forward_vs_torchrun"]["verdict"], "ok")

    def test_goals_are_set_against_the_twin_without_them_where_there_is_one(self):
        rows, goals = self.goals({"dtrain": (0.2, 0), "eager": (2.0, 14), "eager-cpu": (0.8, 0)})
        self.assertEqual((rows[0]["ratio"], rows[0]["ratio_cpu"]), (0.1, 0.25))
        self.assertEqual(goals["step.first_forward_vs_torchrun_without_cuda"]["verdict"], "short")
        self.assertNotIn("step.first_forward_vs_torchrun", goals)

    def test_cudas_libraries_are_known_by_their_names(self):
        text = "".join(f"7f00-7f01 r-xp 0 0:0 1 /some/{name}\n" for name in (
            "libtorch_cpu.so", "libtorch_cuda.so", "libcudart.so.13", "libcublasLt.so.13", "libcublasLt.so.13",
            "libnccl.so.2", "libnvJitLink.so.13", "libc10.so", "libcurl.so.4", "libm.so.6"))
        with tempfile.NamedTemporaryFile("w", suffix=".maps") as file:
            file.write(text)
            file.flush()
            self.assertEqual(cuda_libraries.mapped_cuda_libraries(file.name), 5)


class FakeProbe:
    """Seconds in pairs: before and after each round."""

    def __init__(self, pairs):
        self.taken = iter([seconds for pair in pairs for seconds in pair])

    def seconds(self):
        return next(self.taken)


class OptimizerRounds(unittest.TestCase):
    def measure(self, pairs, rounds):
        with mock.patch("optimizer.seconds_of", lambda buffers, call: call()), \
                contextlib.redirect_stdout(io.StringIO()):
            return optimizer.measure(None, FakeProbe(pairs), {"dtrain": lambda: 1.0}, rounds, "adamw")

    def test_rounds_that_do_not_count_are_taken_again(self):
        counted, discarded = self.measure([(1, 2), (1, 1), (2, 1), (1, 1)], rounds=2)
        self.assertEqual((len(counted), discarded), (2, 2))

    def test_a_machine_that_is_too_busy_is_refused_with_what_counted(self):
        with self.assertRaisesRegex(SystemExit, "adamw: .* 5 of 6 rounds, so only 1 of 2 count"):
            self.measure([(1, 1)] + [(1, 2)] * 5, rounds=2)

    def test_a_probe_that_was_slower_bounds_nothing(self):
        rounds = [{"dtrain": 0.9, "probe": 1.0, "torch-calls": 2.0, "torch-scaled": 2.0}]
        goals = report.judged(optimizer.goals_of("mixed", "flat", rounds))
        self.assertEqual([goal["verdict"] for goal in goals], ["ok", "no bound"])


class ZeroResults(unittest.TestCase):
    ROUND = {"dtrain-0": 12.0, "ddp": 10.0, "dtrain-3": 11.0, "deepspeed-3": 8.0, "fsdp2-3": 10.0}

    def test_a_run_leaves_what_it_did_not_take(self):
        results = zero.with_speed([], "5M", [self.ROUND], {"command": "first"})
        results = zero.with_states(results, "5M", [{"stage": 1, "ratio": 1.0},
                                                   {"stage": 3, "ratio": 1.0}])
        results = zero.with_states(results, "100M", [{"stage": 0, "ratio": 1.0}])
        results = zero.with_states(results, "5M", [{"stage": 3, "ratio": 1.5},
                                                   {"stage": 0, "ratio": 1.0}])
        self.assertEqual([row["model"] for row in results], ["5M", "100M"])
        self.assertEqual([(row["stage"], row["ratio"]) for row in results[0]["states"]],
                         [(0, 1.0), (1, 1.0), (3, 1.5)])
        self.assertEqual(results[0]["speed_taken"], {"command": "first"})
        again = zero.with_speed(results, "5M", [{**self.ROUND, "ddp": 24.0}], {"command": "second"})
        self.assertEqual(again[0]["tokens_per_s"], [{**self.ROUND, "ddp": 24.0}])
        self.assertEqual(again[0]["states"], results[0]["states"])
        self.assertEqual(again[1], results[1])

    def test_goals_are_of_all_that_the_file_holds_and_of_the_stages_that_ran(self):
        results = zero.with_states(zero.with_speed([], "5M", [self.ROUND], {}), "100M",
                                   [{"stage": 2, "ratio": 0.97}])
        goals = {name: (measured, op, target)
                 for name, measured, op, target in zero.goals_of(results)}
        # Stage 0's speed takes the place of no goal.
        self.assertEqual(set(goals), {"zero.5M.stage0_vs_ddp", "zero.5M.stage3_vs_best_peer",
                                      "zero.5M.stage3_step_of_stage0",
                                      "zero.100M.stage2_states_off_the_plan"})
        self.assertEqual(goals["zero.5M.stage0_vs_ddp"], (1.2, ">=", 1.0))
        self.assertEqual(goals["zero.5M.stage3_vs_best_peer"], (1.1, ">=", 1.2))
        self.assertAlmostEqual(goals["zero.100M.stage2_states_off_the_plan"][0], 0.03)


class Overlap(unittest.TestCase):
    @staticmethod
    def facts(step, communication, backward=1.0, compute=1.6, cpu=0.1):
        return {"rounds": [{"communication_s": communication,
                            "dtrain": {"step_s": step, "waited_s": step - compute - cpu,
                                       "waited_of_last_s": (step - compute - cpu) / 2,
                                       "comm_cpu_s": cpu, "cpu_s": compute + cpu},
                            "compute": {"step_s": compute, "backward_s": backward,
                                        "cpu_s": compute}}] * 3}

    def test_what_is_neither_compute_nor_cpu_time_is_exposed(self):
        summary = overlap.summary(self.facts(step=1.72, communication=0.8))
        self.assertAlmostEqual(summary["exposed_s"], 0.02)
        self.assertAlmostEqual(summary["exposed_of_communication"], 0.025)
        self.assertAlmostEqual(summary["waited_s"], 0.02)
        self.assertAlmostEqual(summary["waited_of_last_s"], 0.01)
        self.assertEqual(overlap.goals_of("x", summary)[0][:1],
                         ("overlap.x.exposed_of_communication",))
        fast = overlap.summary(self.facts(step=1.69, communication=0.8))
        self.assertEqual(report.judged(overlap.goals_of("x", fast))[0]["verdict"], "no bound")

    def test_above_nine_tenths_of_backward_the_step_is_set_against_what_is_possible(self):
        summary = overlap.summary(self.facts(step=2.06, communication=2.0))
        self.assertFalse(summary["hideable"])
        name, measured, relation, target = overlap.goals_of("x", summary)[0]
        self.assertEqual((name, relation, target), ("overlap.x.step_of_possible", "<=", 1.03))
        self.assertAlmostEqual(measured, 1.03)
        fast = overlap.summary(self.facts(step=1.9, communication=2.0))
        self.assertEqual(report.judged(overlap.goals_of("x", fast))[0]["verdict"], "no bound")
        slow = overlap.summary(self.facts(step=1.87, communication=0.95))
        self.assertAlmostEqual(slow["step_of_possible"], 1.1)

    def test_cpu_time_is_read_between_samples_of_real_threads(self):
        watch = overlap.CpuWatch([7])
        watch.samples[7] = [(10.0, 1.0, 5.0), (20.0, 3.0, 9.0)]
        self.assertEqual(watch.between(7, 12.0, 17.0), [1.0, 2.0])
        self.assertEqual(watch.between(7, 0.0, 99.0), [2.0, 4.0])
        comm, everything = overlap.CpuWatch.read(os.getpid())
        self.assertEqual(comm, 0)
        self.assertGreater(everything, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
