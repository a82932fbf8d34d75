"""`dtrain plan` against the memory of real ranks, read from outside through /proc.

Two models are trained and the difference of their peaks is compared, so that the process itself,
LibTorch and the transport drop out. Every stage and precision is in one of the ways that are trained
here; DTRAIN_TEST_LONG trains each stage in each precision. glibc's allocator is told to give
large blocks back at once: what it keeps otherwise is fragmentation, for which the plan has its
reserve.
"""
import os
import subprocess
import sys

import end_to_end
from end_to_end import BIN, SOURCE, EndToEnd

sys.path.insert(0, f"{SOURCE}/bench")
from jobs import MemoryWatch, is_rank, records  # noqa: E402

UNITS = {"MB": 1e6, "GB": 1e9}
SEQUENCE = 128
STEPS = 2  # The optimizer's state exists from the second step on; a step is long enough for many samples.
# Stage 3 with room for only a part of the weights at a time.
TIGHT = ["zero_optimization.stage=3", "zero_optimization.stage3_max_live_parameters=2000000",
         "zero_optimization.stage3_prefetch_bucket_size=500000",
         "zero_optimization.reduce_bucket_size=400000"]


def model(hidden, intermediate, layers, vocabulary=256):
    return {"vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": intermediate,
            "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 4,
            "max_position_embeddings": SEQUENCE}


LARGE = model(384, 1024, 6)
TINY = model(32, 64, 1)
STAGES = {0: [], 2: ["zero_optimization.stage=2"], 3: TIGHT}
# A CPU multiplies bf16 slowly, so the bf16 cases take most of the time.
WAYS = {"fp32": (0, 3), "bf16": (2,)}
if "DTRAIN_TEST_LONG" in os.environ:
    WAYS = {precision: tuple(STAGES) for precision in WAYS}


class MemoryPlan(EndToEnd):
    def planned(self, config, sets):
        words = [word for value in sets for word in ("--set", value)]
        text = subprocess.run([f"{BIN}/dtrain", "plan", config, "--world-size", "2", *words],
                              check=True, capture_output=True, text=True).stdout
        number, unit = next(line for line in text.splitlines() if line.startswith("  total ")).split()[-2:]
        return float(number) * UNITS[unit]

    def measured(self, name, config, sets):
        run_dir = f"{self.folder}/{name}"
        process = self.start(self.launch_command(2, run_dir, sets, config=config),
                             env={"MALLOC_MMAP_THRESHOLD_": "262144",
                                  "MALLOC_TRIM_THRESHOLD_": "262144"})
        watch = MemoryWatch(process, is_rank)
        watch.start()
        output = process.communicate(timeout=end_to_end.TIME_BOUND_S)[0]
        watch.join()
        self.assertEqual(process.returncode, 0, output)
        steps = [r["ts"] for r in records(run_dir) if r["kind"] == "step"]
        self.assertEqual(len(steps), STEPS)
        return max(size for at, size in watch.samples if at <= steps[-1])  # Only samples before the save.

    def both(self, name, shape, sets):
        """(measured, planned) bytes of a rank."""
        config = self.write_config(f"{name}.json", model=shape)
        sets = [*sets, f"train_steps={STEPS}", f"data.sequence_length={SEQUENCE}"]
        return self.measured(name, config, sets), self.planned(config, sets)

    def check(self, name, shape, sets, tiny):
        """`tiny`: (measured, planned) of the small model, whose states are too small for the stages to
        make a visible difference."""
        seen, planned = (large - small for large, small in
                         zip(self.both(name, shape, sets), tiny, strict=True))
        print(f"{name}: measured {seen * 1e-6:.1f} MB, planned {planned * 1e-6:.1f} MB, "
              f"{seen / planned:.3f}", flush=True)
        self.assertGreater(seen, 0.9 * planned, name)
        self.assertLess(seen, 1.1 * planned, name)

    def test_the_plan_is_within_a_tenth_of_what_ranks_take(self):
        for precision, stages in WAYS.items():
            sets = [f"bf16.enabled={str(precision == 'bf16').lower()}"]
            tiny = self.both(f"{precision}-tiny", TINY, sets)
            for stage in stages:
                self.check(f"{precision}-{stage}", LARGE, [*sets, *STAGES[stage]], tiny)

    def test_a_large_vocabulary_takes_a_chunk_of_logits(self):
        # 512 tokens by 50,000 words are two chunks; logits of all, thrice in fp32, would be 307 MB
        # where the plan in all is about 165. The layers are small, because a CPU multiplies fp16
        # slowly, and each of the few steps takes long enough for many samples.
        folder = f"{self.folder}/nvme"
        os.makedirs(folder, exist_ok=True)
        sets = ["fp16.enabled=true", "zero_optimization.stage=1",
                "zero_optimization.reduce_bucket_size=1000000",
                "activation_checkpointing.mode=full",
                "zero_optimization.offload_optimizer.device=nvme",
                f"zero_optimization.offload_optimizer.nvme_path={folder}"]
        self.check("fp16-vocabulary", model(32, 64, 2, vocabulary=50000), sets,
                   self.both("fp16-tiny", TINY, sets))


if __name__ == "__main__":
    end_to_end.main()
