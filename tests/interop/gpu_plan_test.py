"""./dev gpu run: the order of its parts, the findings of its short run, and its early stops."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE, BUILD = os.environ["DTRAIN_SOURCE"], os.environ["DTRAIN_BUILD"]
sys.path[:0] = [f"{SOURCE}/bench/gpu", f"{SOURCE}/tests/testing"]

import machine  # noqa: E402
import programs  # noqa: E402
import run  # noqa: E402
import short_run  # noqa: E402
import stops  # noqa: E402
import test_shards  # noqa: E402
import trainings as plans  # noqa: E402
from gpu_fakes import GpuMachine  # noqa: E402
from short_run_lines import short_run_lines  # noqa: E402

H100_GB, H200_GB = machine.gigabytes("81559 MiB"), machine.gigabytes("143771 MiB")
TESTS = ["kernels_cuda_test", "cuda_plugin_test", "gpt_engine_gpu_test", "nccl_gpu_test", "runtime_gpu_test"]
FIRST = ["nccl_gpu_test", "runtime_gpu_test", "gpt_engine_gpu_test"]
# Fields of a training that summaries read.
ROW = {"tokens_per_s": 100.0, "mfu_strict": 0.61, "mfu_palm": 0.652, "hfu": 0.613, "gemm_fraction": 0.75,
       "memory_peak_bytes": 64.5e9, "step_seconds": [1.0], "optimizer_states": "bf16", "recompute": "none",
       "zero_stage": 0, "gradient_clipping": 1.0, "micro_batch": 4, "accumulation": 128,
       "sequence": 1024.0, "peak_flops_per_s": 989.4e12, "peak_source": "a datasheet",
       "versions": "dtrain 0 (abc)", "breakdown": {}}
LOSSES = [5.5 - 0.1 * step for step in range(short_run.STEPS)]


def taken(name, losses=None, **facts):
    """A row of the short run."""
    losses = LOSSES if losses is None else losses
    return {"name": name, "s": 1.0, "losses": losses, "norms": [1.0] * len(losses), "step_s": 0.01,
            "graphs": 2 if name == "graphs" else 0, "warnings": [], "card_rise_bytes": None,
            "engine_bytes": None, **facts}


def moved(by, step=9):
    """LOSSES, one of them larger by the share `by`."""
    return [loss * (1 + by if i == step else 1) for i, loss in enumerate(LOSSES)]


def on_card(part, card_gb):
    return [one for one in plans.chosen(part, card_gb, []) if not plans.does_not_fit(one, card_gb, 120)]


def share_until(part):
    names = [name for name, _ in run.SHARES]
    return sum(share for _, share in run.SHARES[:names.index(part) + 1])


class Shares(unittest.TestCase):
    def test_tests_and_the_short_run_take_a_quarter_at_most_and_come_first(self):
        self.assertEqual([part for part, _ in run.SHARES][:2], ["tests", "short_run"])
        self.assertLessEqual(share_until("short_run"), 0.25)
        self.assertEqual(run.BUDGET_S, 540)

    def test_half_an_hour_takes_all_trainings_and_peers_in_one_call(self):
        for card in (H100_GB, H200_GB):
            left = 1800 * (1 - share_until("kernel_peers"))  # Even if all parts before took their whole time.
            trainings, peers = on_card("mfu", card), on_card("mfu_peers", card)
            steps = plans.plan(trainings, 1800 * dict(run.SHARES)["mfu"])
            self.assertEqual({one.name for one in trainings}, set(steps))
            self.assertEqual(set(steps.values()), {2})
            left -= sum(plans.seconds(one, steps[one.name]) for one in trainings)
            self.assertEqual(plans.plan(peers, left), {one.name: one.steps_max for one in peers})

    def test_nine_minutes_are_too_few_for_that(self):
        taken_names = plans.plan(on_card("mfu", H200_GB), run.BUDGET_S * dict(run.SHARES)["mfu"])
        self.assertNotIn("qwen2.5-3b-bf16-flash", taken_names)


class Stops(unittest.TestCase):
    """A run says which parts are left out, and why."""

    @staticmethod
    def states(**states):
        return [{"name": name, "state": states.get(name, "passed")} for name in TESTS]

    def test_nothing_is_left_out_where_nothing_is_wrong_or_nothing_is_known(self):
        self.assertEqual(stops.stopped(self.states(), {"problems": []}), {})
        self.assertEqual(stops.stopped(None, None), {})

    def test_an_engine_that_fails_leaves_out_trainings_and_peers_and_no_kernel(self):
        for name in ("runtime_gpu_test", "gpt_engine_gpu_test"):
            self.assertEqual(stops.stopped(self.states(**{name: "failed"}), None),
                             {"mfu": f"{name} failed", "mfu_peers": f"{name} failed"})

    def test_collectives_that_fail_leave_out_their_benchmark_too(self):
        self.assertEqual(set(stops.stopped(self.states(nccl_gpu_test="failed"), None)),
                         {"comm", "mfu", "mfu_peers"})

    def test_what_was_cut_off_or_skipped_or_is_a_kernels_leaves_the_word_to_the_short_run(self):
        tests = self.states(nccl_gpu_test="skipped", runtime_gpu_test="cut off", kernels_cuda_test="failed")
        self.assertEqual(stops.stopped(tests, {"problems": []}), {})
        self.assertEqual(stops.stopped(tests, {"problems": ["eager: cut off"]})["mfu"],
                         "short run: eager: cut off")


class Judged(unittest.TestCase):
    """The short run's judgement of its trainings."""

    def problems(self, *runs):
        return short_run.judged(list(runs))["problems"]

    def test_trainings_that_agree_are_said_to(self):
        found = short_run.judged([taken("eager"), taken("graphs"), taken("cpu", LOSSES[:4])])
        self.assertEqual(found["problems"], [])
        self.assertIn("have the same bits in all 16", found["compared"][0])
        self.assertIn("first 4 losses", found["compared"][1])

    def test_one_bit_of_graphs_is_wrong_where_eager_steps_repeat_theirs(self):
        graphs = taken("graphs", moved(2.0 ** -50))
        found = self.problems(taken("eager"), graphs, taken("eager again"))
        self.assertEqual(len(found), 1)
        self.assertIn("graphs differ from eager steps from step 10 on", found[0])
        self.assertIn("eager steps repeat their bits", found[0])
        self.assertIn("is not known", self.problems(taken("eager"), graphs)[0])

    def test_a_gradient_norm_counts_as_a_loss_does(self):
        graphs = taken("graphs", norms=[1.0] * 15 + [1.0 + 2.0 ** -50])
        self.assertIn("from step 16 on", self.problems(taken("eager"), graphs, taken("eager again"))[0])

    def test_where_eager_steps_do_not_repeat_their_bits_the_tolerance_counts(self):
        again = taken("eager again", moved(1e-6))
        self.assertEqual(self.problems(taken("eager"), taken("graphs", moved(0.01)), again), [])
        self.assertIn("losses by 0.03", self.problems(taken("eager"), taken("graphs", moved(0.03)), again)[0])
        far = taken("eager again", moved(0.03))
        self.assertIn("second eager", self.problems(taken("eager"), taken("graphs", moved(1e-6)), far)[0])

    def test_losses_that_are_not_finite_are_named_by_run_and_step(self):
        for value in (float("nan"), float("inf")):
            broken = LOSSES[:3] + [value] + LOSSES[4:]
            self.assertIn("graphs: step 4 is not finite",
                          self.problems(taken("eager"), taken("graphs", broken))[0])
        self.assertIn("eager: step 1 is not finite",
                      self.problems(taken("eager", norms=[float("nan")] * 16), taken("graphs"))[0])

    def test_missing_steps_errors_and_losses_that_do_not_fall_are_wrong(self):
        for row, said in ((taken("graphs", LOSSES[:9]), "graphs: 9 of 16 steps"),
                          (taken("graphs", error="exit 70"), "graphs: exit 70"),
                          (taken("graphs", [5.5] * 16), "graphs: nothing was learnt")):
            self.assertIn(said, self.problems(taken("eager"), row)[0])

    def test_the_cpu_is_compared_as_far_as_it_came(self):
        both = taken("eager"), taken("graphs")
        self.assertIn("GPU and CPU differ in the first 2 steps",
                      self.problems(*both, taken("cpu", [6.0, 5.4], error="cut off"))[0])
        for cpu, said in (((), "no time"), ((taken("cpu", [], error="cut off"),), "cut off")):
            found = short_run.judged([*both, *cpu])
            self.assertEqual(found["problems"], [])
            self.assertIn(f"Not compared with the CPU: {said}.", found["compared"])

    def test_trainings_without_a_graph_are_said(self):
        self.assertIn("No graph was captured", " ".join(
            short_run.judged([taken("eager"), taken("graphs", graphs=0)])["compared"]))

    def test_a_run_that_was_cut_off_takes_nothing_from_an_earlier_call(self):
        before = [taken("eager"), taken("graphs"), taken("cpu", LOSSES[:4])]
        cut = taken("graphs", [], error="cut off")
        self.assertEqual(short_run.with_earlier(before, [taken("eager", s=2.0), cut]),
                         [taken("eager", s=2.0), *before[1:]])
        failed = taken("graphs", [], error="exit 70")
        self.assertEqual(short_run.with_earlier(before, [failed])[1], failed)
        self.assertEqual(short_run.with_earlier([], [cut]), [cut])

    def test_warnings_are_found_in_the_logs_of_dtrain_and_libtorch_once_each(self):
        self.assertEqual(short_run.warnings_of(
            "step 1/12  loss 5\n"
            "[I 00:17:12.781] all is well\n"
            "[W 00:17:12.781 rank 0] products are slow\n"
            "[W 00:17:13.000 rank 0] products are slow\n"
            "[W1126 00:17:12.1 Context.cpp:9] Warning: not deterministic (function f)\n"
            "ptxas warning : spilled\n"),
            ["products are slow", "Warning: not deterministic (function f)", "ptxas warning : spilled"])

    def test_memory_time_and_warnings_are_shown_beside_the_plan(self):
        lines = "\n".join(short_run_lines({
            "runs": [taken("eager", card_rise_bytes=1.5e9, engine_bytes=0.9e9, warnings=["slow"]),
                     taken("graphs", step_s=0.0025, warnings=["slow"]), taken("cpu", LOSSES[:4])],
            "plan_bytes": 0.93e9, "problems": ["it is wrong"], "compared": ["It agrees."]}))
        self.assertIn("| eager | 16 | 5.5000 | 4.0000 | 10.00 | 0 | 1.50 | 0.90 | 0.93 |", lines)
        self.assertIn("| graphs | 16 | 5.5000 | 4.0000 | 2.50 | 2 | - | - | 0.93 |", lines)
        self.assertIn("- eager, graphs: slow", lines)
        self.assertIn("- **wrong**: it is wrong\n- It agrees.", lines)


class Real(unittest.TestCase):
    """The programs themselves, on the CPU."""

    def test_the_training_program_takes_the_configuration_and_learns_what_it_is_given(self):
        smaller = ["model.hidden_size=64", "model.intermediate_size=128", "model.num_hidden_layers=1",
                   "model.num_attention_heads=2", "model.num_key_value_heads=1", "optimizer.params.lr=0.01",
                   "data.sequence_length=32", f"train_steps={short_run.STEPS}"]
        with tempfile.TemporaryDirectory() as folder:
            short_run.write_input(folder)
            words = short_run.words(f"{BUILD}/bin/dtrain-gpt", "cpu", folder)
            words += [word for setting in smaller for word in ("--set", setting)]
            done = run.run_command([*words, "--run-dir", f"{folder}/run"], 200)
            self.assertEqual(done["code"], 0, done["output"])
            row = short_run.row_of("cpu", done, short_run.steps_of(f"{folder}/run"), None)
        self.assertEqual(short_run.faults(row), [])
        self.assertGreater(row["step_s"], 0)
        self.assertGreater(row["engine_bytes"], 0)

    def test_the_plan_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            short_run.write_input(folder)
            done = run.run_command(short_run.words(f"{BUILD}/bin/dtrain-plan", "graphs", folder), 60)
        self.assertEqual(done["code"], 0, done["output"])
        # 18 bytes for each parameter, in 6 layers of about 6.3 million, and activations.
        self.assertGreater(short_run.planned_bytes(done["output"]), 18 * 6 * 6.3e6)
        self.assertLess(short_run.planned_bytes(done["output"]), 2e9)
        self.assertIsNone(short_run.planned_bytes("dtrain plan: no model"))


class Packed(unittest.TestCase):
    def test_programs_are_unpacked_anew_and_a_broken_one_is_said(self):
        with tempfile.TemporaryDirectory() as pack:
            os.mkdir(f"{pack}/bin")
            for text in ("echo one", "echo another"):
                with open(f"{pack}/bin/program", "w", encoding="ascii") as file:
                    file.write(f"#!/bin/sh\n{text}\n")
                programs.compress(f"{pack}/bin/program")
                self.assertEqual(os.listdir(f"{pack}/bin"), ["program.gz"])
                if text == "echo another":  # The first program was unpacked here and stays.
                    shutil.copy(f"{pack}/first", f"{pack}/bin/program")
                self.assertIsNone(programs.unpack(pack))
                self.assertEqual(run.run_command([f"{pack}/bin/program"], 60)["output"], f"{text[5:]}\n")
                os.remove(f"{pack}/bin/program.gz")
                if text == "echo one":
                    os.rename(f"{pack}/bin/program", f"{pack}/first")
            with open(f"{pack}/bin/program.gz", "wb") as file:
                file.write(b"\x1f\x8bno more")
            self.assertIn("cannot be unpacked", programs.unpack(pack))


class Shards(unittest.TestCase):
    PROGRAM = """import os, sys, time
shard = dict(os.environ)["GTEST_SHARD_INDEX"]
say = [{says}][int(shard)]
print(say)
time.sleep(60 if say == "hangs" else 0)
sys.exit(1 if "FAILED" in say else 0)"""

    def state(self, *says):
        text = self.PROGRAM.replace("{says}", ", ".join(map(repr, says)))

        def command(variables):
            return run.run_command([sys.executable, "-c", text], 4, {**os.environ, **variables}, 100_000)
        return test_shards.run(command, len(says))

    def test_the_worst_process_is_the_programs_state(self):
        passed, skipped = "[  PASSED  ] 3 tests.", "*** SKIPPED: NOT TESTED ON A GPU: none ***"
        failed, none = "[  FAILED  ] A.B", "Running 0 tests from 0 test suites."
        self.assertEqual(self.state(passed)["state"], "passed")
        self.assertEqual(self.state(passed, skipped, none)["state"], "passed")
        self.assertEqual(self.state(skipped, none)["state"], "skipped")
        self.assertEqual(self.state(none)["state"], "passed")
        self.assertEqual(self.state(passed, "hangs", passed)["state"], "cut off")
        both = self.state(passed, failed, "hangs")
        self.assertEqual((both["state"], both["code"]), ("failed", 1))
        self.assertIn(failed, both["output"])

    def test_the_output_of_every_fault_is_kept_and_only_the_end_of_others(self):
        done = self.state("[  FAILED  ] A.B" + "x" * 20_000, "y" * 20_000, "[  FAILED  ] C.D")
        self.assertIn("A.B", done["output"])
        self.assertIn("C.D", done["output"])
        self.assertNotIn("y", done["output"])
        self.assertLess(len(self.state("y" * 20_000)["output"]), 5000)


class Calls(GpuMachine):
    def setUp(self):
        super().setUp()
        self.make_pack()

    def make_pack(self, **codes):
        self.use_pack(ROW, {name: codes.get(name, 0) for name in TESTS})

    def start(self, *words, short=None):
        with open(f"{self.folder}/pack/short.json", "w", encoding="utf-8") as file:
            json.dump(short or {}, file)
        return subprocess.Popen(
            [sys.executable, f"{SOURCE}/bench/gpu/run.py", "--pack", f"{self.folder}/pack", "--results",
             f"{self.folder}/results", "--shards", "1", *words], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=self.environment)

    def call(self, *words, code=0, short=None):
        """The programs that were started, in order, and the output of the call."""
        order = f"{self.folder}/pack/order"
        if os.path.exists(order):
            os.remove(order)
        process = self.start(*words, short=short)
        out, err = process.communicate(timeout=100)
        self.assertEqual(process.returncode, code, out + err)
        if not os.path.exists(order):
            return [], out
        with open(order, encoding="ascii") as file:
            return file.read().splitlines(), out

    def page(self):
        with open(f"{self.folder}/results/a/SUMMARY.md", encoding="utf-8") as file:
            return file.read()

    def results(self, part):
        with open(f"{self.folder}/results/a/{part}.json", encoding="utf-8") as file:
            return json.load(file)["results"]

    def test_what_the_rest_rests_upon_comes_first(self):
        started, _ = self.call()
        self.assertEqual(started[:12], [
            *FIRST, "kernels_cuda_test", "cuda_plugin_test", "gpt eager", "gpt graphs", "gpt cpu",
            "dtrain-bench-kernels-cuda", "dtrain-bench-comm", "dtrain-bench-comm", "mfu qwen2.5-7b-bf16"])
        page = self.page()
        self.assertIn("have the same bits", page)
        self.assertIn("| graphs | 16 | 5.5000 | 4.0000 | 2.00 | 2 | 1.05 | 0.50 | 0.93 |", page)
        self.assertIn("| eager | 16 | 5.5000 | 4.0000 | 8.00 | 0 | 1.05 | 0.50 | 0.93 |", page)
        self.assertIn("warned of nothing", page)
        self.assertNotIn("Stopped early", page)
        self.assertEqual(self.results("stopped"), [])

    def test_an_engine_test_that_fails_stops_the_trainings_and_keeps_the_rest(self):
        self.make_pack(runtime_gpu_test=1)
        started, out = self.call(code=1)
        self.assertEqual([name for name in started if name.startswith("mfu")], [])
        self.assertEqual(started.count("dtrain-bench-comm"), 2)
        for name in [*TESTS, "gpt graphs", "dtrain-bench-kernels-cuda"]:
            self.assertIn(name, started)
        page = self.page()
        for part in ("mfu", "mfu_peers"):
            self.assertIn(f"\n- {part} not started: runtime_gpu_test failed\n", page)
            self.assertIn(f"{part}: not started: runtime_gpu_test failed\n", out)
        self.assertIn("| runtime_gpu_test | failed |", page)
        self.assertIn("have the same bits", page)

    def test_collectives_that_fail_are_not_timed(self):
        self.make_pack(nccl_gpu_test=1)
        started, _ = self.call(code=1)
        self.assertNotIn("dtrain-bench-comm", started)
        self.assertIn("dtrain-bench-kernels-cuda", started)
        self.assertIn("- comm not started: nccl_gpu_test failed\n", self.page())

    def test_losses_that_differ_or_are_not_finite_stop_the_trainings(self):
        for losses, said, more in ((moved(0.001), "graphs differ from eager steps from step 10 on",
                                    ["gpt eager-again"]),
                                   (["NaN"] * 16, "graphs: step 1 is not finite", [])):
            with self.subTest(said):
                started, _ = self.call(code=1, short={"graphs": {"losses": losses}})
                self.assertEqual([name for name in started if name.startswith("mfu")], [])
                self.assertEqual([name for name in started if name == "gpt eager-again"], more)
                self.assertIn("dtrain-bench-comm", started)
                self.assertIn(f"- mfu not started: short run: {said}", self.page())
                self.assertIn(f"- **wrong**: {said}", self.page())

    def test_keep_going_takes_the_trainings_all_the_same(self):
        self.make_pack(gpt_engine_gpu_test=1, nccl_gpu_test=1)
        started, _ = self.call("--keep-going", code=1, short={"graphs": {"exit": 70}})
        self.assertIn("mfu qwen2.5-7b-bf16", started)
        self.assertIn("dtrain-bench-comm", started)
        self.assertNotIn("Stopped early", self.page())
        self.assertIn("| graphs | exit 70 |", self.page())

    def test_warnings_are_listed_with_the_runs_that_gave_them(self):
        warning = "cuda_graphs: micro-batches run eagerly from here: no memory"
        self.call(short={"graphs": {"says": f"[W 00:00:00.001] {warning}"}})
        self.assertEqual(self.results("short_run")["runs"][1]["warnings"], [warning])
        self.assertIn(f"\n- graphs: {warning}\n", self.page())

    def test_a_short_run_that_hangs_is_cut_off_and_stops_the_trainings(self):
        started, _ = self.call("--parts", "short_run", "mfu", "--budget", "300", code=1,
                               short={"graphs": {"hangs": True}})
        self.assertEqual(started, ["gpt eager", "gpt graphs"])
        page = self.page()
        self.assertIn("- mfu not started: short run: graphs: cut off\n", page)
        self.assertIn("| eager | 16 |", page)

    def test_what_the_short_run_knew_is_kept_when_the_call_is_ended_from_outside(self):
        process = self.start(short={"graphs": {"hangs": True}})
        deadline = time.monotonic() + 100
        while not os.path.exists(self.environment["DTRAIN_FAKE_PID"]):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertIn("| eager | 16 |", self.page())
        self.assertIn("| nccl_gpu_test | passed |", self.page())

    def test_a_later_call_is_held_to_what_an_earlier_one_has_found(self):
        self.call("--parts", "short_run", code=1, short={"eager": {"exit": 70}})
        started, _ = self.call("--trainings", "qwen2.5-3b-bf16", code=1)
        self.assertEqual(started, [])
        self.assertIn("- mfu not started: short run: eager: exit 70\n", self.page())
        started, _ = self.call("--trainings", "qwen2.5-3b-bf16", "--keep-going")
        self.assertEqual(started, ["mfu qwen2.5-3b-bf16"])
        self.assertNotIn("Stopped early", self.page())
        started, _ = self.call("--parts", "short_run", "mfu")  # The fault has been repaired.
        self.assertIn("mfu qwen2.5-7b-bf16", started)
        self.assertNotIn("**wrong**", self.page())

    def test_programs_of_a_changed_tree_are_not_taken_for_those_of_an_earlier_call(self):
        path = f"{self.folder}/pack/pack.json"
        with open(path, encoding="utf-8") as file:
            packed = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**packed, "commit": "0123456789ab-dirty"}, file)
        self.call("--parts", "short_run", code=1, short={"eager": {"exit": 70}})
        started, _ = self.call("--trainings", "qwen2.5-3b-bf16")
        self.assertEqual(started, ["mfu qwen2.5-3b-bf16"])

    def test_a_resumed_call_keeps_the_runs_that_it_is_cut_off_in(self):
        self.call("--parts", "short_run")
        self.call("--parts", "short_run", "--budget", "4", code=1, short={"graphs": {"hangs": True}})
        rows = self.results("short_run")["runs"]
        self.assertEqual([row["name"] for row in rows], ["eager", "graphs", "cpu"])
        self.assertTrue(all("error" not in row for row in rows))

    def test_a_test_that_hangs_leaves_time_to_those_after_it(self):
        with open(f"{self.folder}/pack/tests/nccl_gpu_test", "w", encoding="ascii") as file:
            file.write("#!/bin/sh\nsleep 600\n")
        started, _ = self.call("--parts", "tests", "--budget", "30", code=1)
        self.assertEqual(started, [*FIRST[1:], "kernels_cuda_test", "cuda_plugin_test"])
        self.assertEqual(self.results("tests")[0]["state"], "cut off")


if __name__ == "__main__":
    unittest.main(verbosity=2)
