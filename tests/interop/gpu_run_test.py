"""./dev gpu run: its plan for a GPU and a time, the results that it keeps, and its summary."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE, BUILD = os.environ["DTRAIN_SOURCE"], os.environ["DTRAIN_BUILD"]
sys.path[:0] = [f"{SOURCE}/bench/gpu", f"{SOURCE}/tests/testing"]

import goals  # noqa: E402
import machine  # noqa: E402
import run  # noqa: E402
import summary  # noqa: E402
import training_lines  # noqa: E402
import trainings as plans  # noqa: E402
from gpu_fakes import GpuMachine  # noqa: E402

H100_GB, H200_GB = machine.gigabytes("81559 MiB"), machine.gigabytes("143771 MiB")
HOST_GB = 120
MFU_S = dict(run.SHARES)["mfu"] * run.BUDGET_S
# The output of dtrain-bench-mfu for a training, without parts that are not needed here.
ROW = {"tokens_per_s": 100.0, "mfu_strict": 0.61, "mfu_palm": 0.652, "hfu": 0.613,
       "speed_of_light_fraction": 0, "gemm_fraction": 0.75, "memory_peak_bytes": 64.5e9,
       "step_seconds": [1.0, 2.0], "optimizer_states": "bf16", "recompute": "none", "zero_stage": 0,
       "gradient_clipping": 1.0, "micro_batch": 4, "accumulation": 128, "sequence": 1024.0,
       "peak_flops_per_s": 989.4e12, "peak_source": "a datasheet", "versions": "dtrain 0 (abc)",
       "breakdown": {"GEMM": {"s": 1, "share": 0.8}, "idle": {"s": 1, "share": 0.2}}}


def training(name):
    return next(one for part in plans.ALL.values() for one in part if one.name == name)


def row_of(name, **facts):
    return {**training(name).facts(), "call": "now", **ROW, **facts}


def on_card(card_gb, part="mfu"):
    return [one for one in plans.chosen(part, card_gb, [])
            if not plans.does_not_fit(one, card_gb, HOST_GB)]


class Shares(unittest.TestCase):
    def test_a_part_that_is_cut_off_takes_nothing_from_the_next(self):
        budget = run.Budget(40, (("a", 0.05), ("b", 0.95)))
        budget.begin("a")
        done = run.run_command(["sh", "-c", "sleep 600 & wait"], budget.left())
        self.assertIsNone(done["code"])
        self.assertLess(done["s"], 15)  # Although the inner sleep keeps the pipe open.
        budget.begin("b")
        self.assertGreater(budget.left(), 25)
        self.assertLessEqual(budget.left(), 38)

    def test_what_a_part_leaves_goes_to_the_next(self):
        budget = run.Budget(40, (("a", 0.5), ("b", 0.5)))
        budget.begin("a")
        self.assertEqual(run.run_command(["sleep", "0"], budget.left())["code"], 0)
        budget.begin("b")
        self.assertGreater(budget.left(), 25)
        self.assertEqual(run.run_command(["sleep", "9"], 0.5)["output"], "no time left")

    def test_parts_that_are_not_wanted_have_no_share(self):
        for shares in ((("b", 0.2),), (("b", 0.0),)):
            budget = run.Budget(40, shares)
            budget.begin("b")
            self.assertGreater(budget.left(), 39)

    def test_the_shares_are_the_whole(self):
        self.assertAlmostEqual(sum(share for _, share in run.SHARES), 1)


class Plans(unittest.TestCase):
    def test_every_goal_is_measured_within_the_time_on_a_large_card(self):
        self.assertEqual(list(plans.plan(on_card(H200_GB), MFU_S)), [
            "qwen2.5-7b-bf16", "qwen2.5-3b-bf16", "qwen2.5-3b-fp8", "qwen2.5-1.5b-bf16"])

    def test_what_the_parts_before_leave_gives_every_goal_its_steps(self):
        before = run.BUDGET_S - MFU_S
        large = plans.plan(on_card(H200_GB), MFU_S + before / 3)
        self.assertEqual((len(large), set(large.values())), (4, {2}))
        self.assertEqual(list(plans.plan(on_card(H100_GB), MFU_S + before / 4)), [
            "qwen2.5-7b-bf16-offload", "qwen2.5-3b-bf16", "qwen2.5-3b-fp8", "qwen2.5-1.5b-bf16"])

    def test_a_plan_takes_no_more_than_there_is_and_a_step_of_each_at_least(self):
        for card in (H100_GB, H200_GB):
            for left in range(0, 700, 3):
                steps = plans.plan(on_card(card), left)
                taken = sum(plans.seconds(training(name), count) for name, count in steps.items())
                self.assertLessEqual(taken, left)
                self.assertTrue(all(1 <= count <= 2 for count in steps.values()), steps)

    def test_what_is_no_goal_comes_when_the_goals_have_their_steps(self):
        other = "qwen2.5-3b-bf16-flash"
        for left in range(0, 700, 3):
            steps = plans.plan(on_card(H200_GB), left)
            if other in steps:
                self.assertEqual({steps.get(one.name) for one in on_card(H200_GB) if one.goal}, {2})
        self.assertIn(other, plans.plan(on_card(H200_GB), 500))

    def test_three_calls_at_the_goals_rates_take_everything(self):
        said = run.__doc__[run.__doc__.index("three calls"):]
        calls = [line.split()[2:] for line in said.splitlines() if line.startswith("  run")]
        self.assertEqual(len(calls), 3)
        for card, other in ((H200_GB, "qwen2.5-7b-bf16-offload"), (H100_GB, "qwen2.5-7b-bf16")):
            taken = set(plans.plan(on_card(card), MFU_S))
            for names in calls[1:]:
                chosen = [one for part in plans.ALL for one in plans.chosen(part, card, names)]
                self.assertEqual(len(chosen), len(names))
                self.assertLess(sum(plans.seconds(one, one.steps_max) for one in chosen), run.BUDGET_S)
                taken |= set(names)
            self.assertEqual(taken, set(plans.NAMES) - {other})

    def test_steps_are_524288_tokens_and_take_what_the_goals_rates_give(self):
        strict_flop = {"qwen2.5-7b": 43.0403e9, "qwen2.5-3b": 18.9686e9, "qwen2.5-1.5b": 9.5265e9}
        goal = {"qwen2.5-7b": 0.60, "qwen2.5-3b": 0.60, "qwen2.5-1.5b": 0.55}
        for one in plans.TRAININGS:
            self.assertEqual(one.micro_batch * one.accumulation * plans.SEQUENCE, 524288)
            seconds = 524288 * strict_flop[one.model] / (goal[one.model] * 989.4e12)
            seconds /= 1.35 if one.dtype == "fp8" else 1
            self.assertGreater(one.step_s, 0.98 * seconds)
            self.assertLess(one.step_s, (1.25 if one.host_gb else 1.1) * seconds)

    def test_a_peer_has_the_micro_batches_of_the_training_beside_it(self):
        for peer in plans.PEERS:
            ours = training(f"{peer.model}-bf16")
            self.assertEqual((peer.micro_batch, peer.accumulation), (ours.micro_batch, ours.accumulation))

    def test_trainings_and_peers_are_presets_of_the_program(self):
        said = subprocess.run([f"{BUILD}/bin/dtrain-bench-mfu", "--preset", "none"], check=False,
                              capture_output=True, text=True).stderr
        presets = re.search("there are: ([^;]*);", said)[1].split(", ")
        for part in plans.ALL.values():
            for one in part:
                self.assertIn(one.model, presets)
        self.assertEqual(len(set(plans.NAMES)), len(plans.NAMES))

    def test_the_host_stands_in_only_where_the_card_is_too_small(self):
        def names(card):
            return [one.name for one in plans.chosen("mfu", card, [])]

        self.assertIn("qwen2.5-7b-bf16-offload", names(H100_GB))
        self.assertNotIn("qwen2.5-7b-bf16-offload", names(H200_GB))
        asked = plans.chosen("mfu", H200_GB, ["qwen2.5-7b-bf16-offload"])
        self.assertEqual([one.name for one in asked], ["qwen2.5-7b-bf16-offload"])

    def test_what_does_not_fit_the_card_or_the_host_is_named(self):
        self.assertEqual(plans.does_not_fit(training("qwen2.5-7b-bf16"), H100_GB, HOST_GB),
                         "it needs about 130 GB of memory, this GPU has 86")
        offload = training("qwen2.5-7b-bf16-offload")
        self.assertIsNone(plans.does_not_fit(offload, H100_GB, HOST_GB))
        self.assertEqual(plans.does_not_fit(offload, H100_GB, 40),
                         "it needs about 66 GB of the host's memory, 40 are available")

    def test_the_memory_of_the_host_is_what_the_container_leaves_of_it(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (("meminfo", "MemTotal: 9 kB\nMemAvailable:   100000000 kB\n"),
                               ("memory.max", "max\n"), ("memory.current", "30000000000\n"),
                               ("memory.stat", "anon 5\ninactive_file 10000000000\n")):
                with open(f"{folder}/{name}", "w", encoding="ascii") as file:
                    file.write(text)
            self.assertAlmostEqual(machine.host_gb(f"{folder}/meminfo", folder), 102.4)
            with open(f"{folder}/memory.max", "w", encoding="ascii") as file:
                file.write("64000000000\n")
            self.assertAlmostEqual(machine.host_gb(f"{folder}/meminfo", folder), 44.0)

    def test_the_program_takes_the_words_of_the_protocol_and_trains_by_them(self):
        for name in ("qwen2.5-3b-bf16", "qwen2.5-7b-bf16-offload"):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                words = training(name).words("", folder, 1)
                of_cpu = {"--preset": None, "--device": "cpu", "--micro-batch": "1", "--seq": "16",
                          "--accumulation": "4", "--attention": "flash"}  # cuDNN is a GPU's.
                given = [word for flag, value in zip(words, words[1:]) if flag in of_cpu
                         for word in (flag, of_cpu[flag] or value)]
                self.assertEqual(len(given), 2 * len(of_cpu))
                for flag, value in of_cpu.items():
                    at = words.index(flag)
                    words[at:at + 2] = [flag, value] if value else ["--hf", f"{folder}/config.json"]
                with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
                    json.dump({"model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64,
                               "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128,
                               "num_key_value_heads": 2, "max_position_embeddings": 64,
                               "tie_word_embeddings": True}, file)
                done = subprocess.run([f"{BUILD}/bin/dtrain-bench-mfu", *words[1:], "--json",
                                       f"{folder}/out.json"], capture_output=True, text=True,
                                      check=False, timeout=200)
                self.assertEqual(done.returncode, 0, done.stderr)
                with open(f"{folder}/out.json", encoding="utf-8") as file:
                    said = json.load(file)
                self.assertEqual(said["optimizer_states"], "bf16")
                self.assertEqual(said["zero_stage"], 1 if "offload" in name else 0)
                self.assertEqual(said["profiled_micro_batches"], plans.SHORT_MICRO_BATCHES)
                text = "\n".join(training_lines.mfu_lines(
                    [{**training(name).facts(), "call": "now", **said}], []))
                self.assertIn(f"| {name} | 64 = 1 x 16 x 4 | 1 | bf16, stochastic rounding |", text)

    def test_states_are_rounded_by_chance_and_masters_are_where_the_name_says(self):
        for one in plans.TRAININGS:
            words = one.words("", "", 1)
            self.assertIn("bf16.stochastic_rounding=true", words)
            self.assertEqual("zero_optimization.offload_optimizer.device=cpu" in words,
                             one.name.endswith("-offload"))


class Kept(GpuMachine):
    def setUp(self):
        super().setUp()
        self.use_pack(ROW)

    def start(self, *words, **variables):
        return subprocess.Popen(
            [sys.executable, f"{SOURCE}/bench/gpu/run.py", "--pack", f"{self.folder}/pack", "--results",
             f"{self.folder}/results", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**self.environment, **variables})

    def call(self, *words):
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        return out

    def rows(self):
        with open(f"{self.folder}/results/a/mfu.json", encoding="utf-8") as file:
            return {row["name"]: row for row in json.load(file)["results"]}

    def await_file(self, path):
        deadline = time.monotonic() + 60
        while not os.path.exists(path):
            self.assertLess(time.monotonic(), deadline, path)
            time.sleep(0.01)

    def test_what_was_measured_is_there_when_the_run_is_ended_from_outside(self):
        process = self.start("--parts", "mfu", DTRAIN_FAKE_HANGS="qwen2.5-3b-bf16")
        pid = self.environment["DTRAIN_FAKE_PID"]
        self.await_file(pid)
        self.assertEqual(self.rows()["qwen2.5-7b-bf16"]["tokens_per_s"], 100.0)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        with open(f"{self.folder}/results/a/SUMMARY.md", encoding="utf-8") as file:
            self.assertIn("| qwen2.5-7b-bf16 | 100 | 61.0 |", file.read())
        with open(pid, encoding="ascii") as file:
            training = int(file.read())
        deadline = time.monotonic() + 60
        while is_running(training):  # A process that is killed ends a moment later.
            self.assertLess(time.monotonic(), deadline, "the training goes on without its run")
            time.sleep(0.01)

    def test_a_second_call_adds_to_what_the_first_has_measured(self):
        self.call("--trainings", "qwen2.5-1.5b-bf16")
        self.assertEqual(list(self.rows()), ["qwen2.5-1.5b-bf16"])
        self.call("--trainings", "qwen2.5-3b-bf16", "qwen2.5-3b-bf16-flash")
        rows = self.rows()
        self.assertEqual(list(rows), ["qwen2.5-3b-bf16", "qwen2.5-1.5b-bf16", "qwen2.5-3b-bf16-flash"])
        self.assertTrue(all(map(run.is_measured, rows.values())))

    def test_what_there_is_no_time_for_is_named_with_the_command_that_takes_it(self):
        self.call("--trainings", "qwen2.5-3b-bf16")
        out = self.call("--parts", "mfu", "--budget", "60")
        self.assertIn("not measured: qwen2.5-7b-bf16: not taken: time", out)
        self.assertIn("run --trainings qwen2.5-7b-bf16\n", out)
        rows = self.rows()
        self.assertFalse(run.is_measured(rows["qwen2.5-7b-bf16"]))
        self.assertTrue(run.is_measured(rows["qwen2.5-3b-bf16"]))

    def test_quick_measures_one_step(self):
        self.call("--trainings", "qwen2.5-3b-bf16", "--quick")
        self.assertEqual(len(self.rows()["qwen2.5-3b-bf16"]["step_seconds"]), 1)
        self.call("--trainings", "qwen2.5-3b-bf16")
        self.assertEqual(len(self.rows()["qwen2.5-3b-bf16"]["step_seconds"]), 2)

    def test_what_was_measured_stays_where_a_later_call_has_nothing_to_say(self):
        before = [{"name": "qwen2.5-3b-bf16", "tokens_per_s": 1.0}, {"name": "qwen2.5-3b-fp8", "error": "x"}]
        for row, stays in (({"skipped": "no time"}, True), ({"error": "cut off"}, True),
                           ({"error": "exit 70"}, False), ({"tokens_per_s": 2.0}, False)):
            kept = run.with_earlier(before, [{"name": "qwen2.5-3b-bf16", **row}])
            self.assertEqual(kept[0] == before[0], stays, row)
            self.assertEqual(kept[1], before[1])


def is_running(pid):
    """Whether the process is running, and not only a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Goals(unittest.TestCase):
    def test_without_results_every_goal_has_its_target_and_is_not_yet_measured(self):
        with tempfile.TemporaryDirectory() as results:
            text = summary.overview(results)
            self.assertIsNone(summary.page(results))
        for what, target in (
                ("strict MFU, Qwen2.5 7B, bf16, %", ">= 60"), ("strict MFU, Qwen2.5 3B, bf16, %", ">= 60"),
                ("strict MFU, Qwen2.5 1.5B, bf16, %", ">= 55"),
                ("FP8 over bf16, tokens/s, Qwen2.5 3B", ">= 1.35"),
                ("kernels forward, % of the copy rate", ">= 95"),
                ("kernels backward, % of the copy rate", ">= 90"),
                ("all-reduce between GPUs, bus rate, % of one link", "none set"),
                ("CUDA tests that pass, % of those that ran", ">= 100")):
            self.assertIn(f"| {what} | {target} | {summary.NOT_YET} |", text)
        self.assertEqual(text.count(summary.NOT_YET), len(goals.GOALS))

    def test_the_committed_overview_is_what_the_results_say(self):
        with open(f"{SOURCE}/bench/results/GPU.md", encoding="utf-8") as file:
            self.assertEqual(file.read(), summary.overview(f"{SOURCE}/bench/results"))

    def test_goals_are_judged_by_what_was_measured(self):
        def kernel(name, fraction, goal):
            verdict = "no bound" if fraction > 1 else "ok" if fraction >= goal else "short"
            return {"name": name, "copy_fraction": fraction, "verdict": verdict}

        time_of = {"of_limit": 0.7}
        found = {goal["name"]: goal for goal in goals.judged({
            "tests": [{"state": "passed"}, {"state": "failed"}, {"state": "skipped"}],
            "kernels": {"results": [kernel("a_forward", 0.96, 0.95), kernel("b", 0.94, 0.95),
                                    kernel("c", 1.02, 0.95),
                                    kernel("a_backward", 0.93, 0.9)]},
            "comm": [{"backend": "nccl", "ranks": 2, "rows": [
                {"collective": "all_reduce", "size": 8, "limit": "one link", "in_place": time_of,
                 "out_of_place": None}]}],
            "mfu": [row_of("qwen2.5-3b-bf16"), row_of("qwen2.5-3b-fp8", tokens_per_s=140.0),
                    row_of("qwen2.5-3b-bf16-flash", tokens_per_s=90.0, mfu_strict=0.5),
                    {**training("qwen2.5-7b-bf16").facts(), "skipped": "too big"},
                    row_of("qwen2.5-7b-bf16-offload", mfu_strict=0.59)]})}
        self.assertEqual({name: (goal["measured"], goal["verdict"]) for name, goal in found.items()}, {
            "mfu.qwen2.5-7b": (59.0, "short"), "mfu.qwen2.5-3b": (61.0, "ok"),
            "fp8.qwen2.5-3b.over_bf16": (1.4, "ok"), "kernels.forward": (94.0, "short"),
            "kernels.backward": (93.0, "ok"), "comm.all_reduce": (70.0, "-"),
            "tests.cuda": (50.0, "short")})
        self.assertIn("qwen2.5-7b-bf16-offload", found["mfu.qwen2.5-7b"]["how"])
        self.assertIn("1 of 3 meet it, 1 were faster than the copy: no bound",
                      found["kernels.forward"]["how"])
        self.assertIn("1 of 2, 1 skipped", found["tests.cuda"]["how"])


class Summary(unittest.TestCase):
    FACTS = {"gpu": "A GPU", "driver": "1", "memory": "80 GB"}

    def write(self, folder, part, results):
        with open(f"{folder}/{part}.json", "w", encoding="utf-8") as file:
            json.dump({**self.FACTS, "part": part, "results": results}, file)

    def test_a_page_shows_peers_as_ratios_and_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as results:
            folder = f"{results}/a-gpu"
            os.mkdir(folder)
            self.write(folder, "tests", [{"name": "t", "state": "passed", "s": 1.0}])
            self.write(folder, "kernels", {"elements": 8, "results": [
                {"name": "op", "us": 10.0, "gb_per_s": 100.0, "copy_fraction": 0.5,
                 "verdict": "short"}]})
            self.write(folder, "kernel_peers", {"peers": {"torch": "2"}, "results": [
                {"name": "op", "way": "eager", "us": 25.0},
                {"name": "op", "way": "liger", "missing": "ImportError"}]})
            text = summary.write_summary(folder)
            self.assertIn("| op | 10.0 | 100 | 50.0 | short | 2.50 | - |", text)
            self.assertIn("1 passed", text)
            self.assertIn(f"mfu: {summary.NOT_YET}", text)
            self.assertIn("| kernels forward, % of the copy rate | >= 95 | 50 | short |", text)
            self.assertIn(f"| strict MFU, Qwen2.5 7B, bf16, % | >= 60 | {summary.NOT_YET} | - | - |", text)
            overview = summary.overview(results)
            self.assertIn("a-gpu/SUMMARY.md", overview)
            self.assertIn("| kernels forward, % of the copy rate | >= 95 | 50 (short) |", overview)

    def test_products_stand_behind_the_kernels_or_the_reason_why_they_do_not(self):
        peers = {"peers": {"torch": "2"}, "results": [{"name": "product_bf16", "way": "eager", "us": 40.0}]}
        kernels = {"elements": 8, "results": []}
        product = {"name": "product_bf16", "us": 20.0, "tflops": 700.0, "best_fraction": 0.9}
        lines = "\n".join(summary.kernel_lines({**kernels, "products": {
            "best": "product_bf16", "tokens": 8192, "results": [product]}}, peers))
        self.assertIn("| product_bf16 | 20.0 | 700.0 | 90.0 | 2.00 |", lines)
        self.assertIn("Products: no cublasLt.", summary.kernel_lines(
            {**kernels, "products": {"error": "no cublasLt"}}, peers))

    def test_collectives_of_the_largest_size_stand_beside_what_limits_them(self):
        time_of = {"time_us": 9.6, "algbw_gb_s": 5.0, "busbw_gb_s": 7.5, "of_limit": 0.75}
        row = {"collective": "all_reduce", "limit": "one link", "out_of_place": time_of,
               "in_place": time_of}
        lines = "\n".join(summary.comm_lines(
            [{"backend": "nccl", "ranks": 4, "rows": [{**row, "size": 8}, {**row, "size": 16}]},
             {"backend": "staged", "ranks": 2, "error": "exit 64"}]))
        self.assertIn("| all_reduce, nccl, 4 ranks | 16 | 10 | 5.0 | 7.5 | 75 of one link |", lines)
        self.assertIn("| staged, 2 ranks | exit 64 |", lines)
        self.assertNotIn("| 8 |", lines)

    def test_a_training_says_all_that_its_figure_depends_on(self):
        lines = training_lines.mfu_lines([row_of("qwen2.5-3b-bf16")], [])
        text = "\n".join(lines)
        self.assertIn("| qwen2.5-3b-bf16 | 100 | 61.0 | - | 65.2 | 61.3 | 75.0 | 64.5 |", text)
        self.assertIn("| qwen2.5-3b-bf16 | 524288 = 4 x 1024 x 128 | 2 | bf16, stochastic rounding | fp32 "
                      "| 0 | none | 1 | cudnn | 989.4 TFLOP/s, a datasheet | dtrain 0 (abc); now |", text)
        self.assertIn("| training | GEMM | idle |", text)
        self.assertIn("| qwen2.5-3b-bf16 | 80.0 | 20.0 |", text)
        heads = "".join(line for line in lines if line.startswith("| training"))
        for said in ("PaLM-style MFU %", "HFU %", "memory peak GB", "AdamW's states", "masters",
                     "recompute", "clip", "peak and its source"):
            self.assertIn(said, heads)

    def test_masters_are_said_of_each_training_and_of_no_other(self):
        text = "\n".join(training_lines.mfu_lines(
            [row_of("qwen2.5-7b-bf16-offload", zero_stage=1)], []))
        self.assertIn("| bf16, stochastic rounding | fp32, host memory | 1 |", text)
        self.assertNotIn("fp32 masters", text)

    def test_a_run_that_was_cut_off_is_named(self):
        lines = training_lines.mfu_lines([{**training("qwen2.5-3b-fp8").facts(), "error": "cut off"}], [])
        self.assertIn("| qwen2.5-3b-fp8 | cut off |", "\n".join(lines))


class Beside(unittest.TestCase):
    """Ratios to torch compare the same work and name all differences."""

    def peer(self, **facts):
        return {**training("qwen2.5-3b-eager").facts(), "tokens_per_s": 50.0, "torch": "2",
                "transformers": "5", "memory_peak_bytes": 50e9, "micro_batch": 4, "accumulation": 128,
                "sequence": 1024, "dtype": "bf16", "gradient_clipping": 1.0, "recompute": "none",
                "optimizer_states": "bf16", "rounding": "nearest", "masters": "none",
                "gradients": "bf16", "loss": "whole logits", "attention": "sdpa", "call": "now", **facts}

    def lines(self, runs, **facts):
        return "\n".join(training_lines.mfu_lines(runs, [self.peer(**facts)]))

    def test_a_ratio_is_of_the_same_tokens_a_step_and_says_what_was_equal_and_what_not(self):
        text = self.lines([row_of("qwen2.5-3b-bf16")])
        self.assertIn("| qwen2.5-3b-eager | 50 | 50.0 | 2.00 | qwen2.5-3b-bf16 |", text)
        self.assertIn("equal: tokens a step 524288; micro batch 4;", text)
        self.assertIn("Not equal (dtrain, torch): rounding stochastic, nearest; masters fp32, none; "
                      "gradients fp32, bf16; loss logits in chunks, whole logits; "
                      "attention cudnn, sdpa.", text)

    def test_another_call_is_said(self):
        self.assertIn("call now, before", self.lines([row_of("qwen2.5-3b-bf16")], call="before"))

    def test_steps_of_other_tokens_have_no_ratio(self):
        text = self.lines([row_of("qwen2.5-3b-bf16")], accumulation=1)
        self.assertIn("| - | not compared: steps of 524288 and of 4096 tokens |", text)
        self.assertNotIn("2.00", text)

    def test_fp8_and_offloaded_trainings_are_not_compared_with_torchs_bf16(self):
        text = self.lines([row_of("qwen2.5-3b-fp8", tokens_per_s=999.0),
                           row_of("qwen2.5-3b-bf16", masters="fp32, host memory")])
        self.assertIn("| - | dtrain's is not measured |", text)

    def test_the_twin_steps_after_all_its_micro_batches_and_says_how_it_trains(self):
        check = ("import mfu_torch, sys; calls = []\n"
                 "forward = mfu_torch.transformers.Qwen2ForCausalLM.forward\n"
                 "def counted(self, *args, **words):\n"
                 "    calls.append(1)\n"
                 "    return forward(self, *args, **words)\n"
                 "mfu_torch.transformers.Qwen2ForCausalLM.forward = counted\n"
                 "step = mfu_torch.torch.optim.AdamW.step\n"
                 "def stepped(self, *args, **words):\n"
                 "    calls.append(0)\n"
                 "    return step(self, *args, **words)\n"
                 "mfu_torch.torch.optim.AdamW.step = stepped\n"
                 "mfu_torch.main()\n"
                 "print(''.join(map(str, calls)))\n")
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
                json.dump({"model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64,
                           "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 128,
                           "num_key_value_heads": 2, "max_position_embeddings": 64}, file)
            done = subprocess.run(
                [sys.executable, "-c", check, "--config", f"{folder}/config.json", "--dtype", "bf16",
                 "--micro-batch", "2", "--accumulation", "3", "--short-steps", "2", "--warm-up", "1",
                 "--steps", "2", "--seq", "16", "--json", f"{folder}/out.json"], text=True, check=False,
                capture_output=True, env={**os.environ, "PYTHONPATH": f"{SOURCE}/bench/twins"}, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stdout.strip(), "110" + 2 * "1110")
            with open(f"{folder}/out.json", encoding="utf-8") as file:
                said = json.load(file)
        self.assertAlmostEqual(said["tokens_per_s"] * sum(said["step_seconds"]) / 2, 2 * 3 * 16, places=6)
        for key in training_lines.COMPARED:
            self.assertTrue(key in ("tokens a step", "call") or key in said, key)


if __name__ == "__main__":
    unittest.main(verbosity=2)
