"""DeepSpeed's rules against DeepSpeed: its loss scaler, its learning-rate schedules and Muon's
Newton-Schulz iteration are run here, and dtrain's must give the same values."""
import json
import os
import random
import subprocess
import unittest

import end_to_end
from end_to_end import EndToEnd

PROGRAM = os.environ["DTRAIN_DEEPSPEED_RULES"]
SEED = 20
STEPS = 120

FP16 = [
    {}, {"loss_scale_window": 3}, {"loss_scale_window": 5, "hysteresis": 1},
    {"loss_scale_window": 4, "hysteresis": 3}, {"loss_scale_window": 2, "hysteresis": 4,
                                                "consecutive_hysteresis": True},
    {"loss_scale_window": 3, "initial_scale_power": 4, "min_loss_scale": 4},
    {"loss_scale_window": 7, "initial_scale_power": 1, "hysteresis": 1}]

LR = 3e-3
SCHEDULES = [
    ("WarmupLR", {"warmup_min_lr": 1e-5, "warmup_max_lr": 2e-3, "warmup_num_steps": 40}),
    ("WarmupLR", {"warmup_num_steps": 30, "warmup_type": "linear"}),
    ("WarmupLR", {"warmup_max_lr": 1e-3, "warmup_num_steps": 1}),
    ("WarmupDecayLR", {"warmup_max_lr": 2e-3, "warmup_num_steps": 20, "total_num_steps": 90}),
    ("WarmupDecayLR", {"warmup_min_lr": 1e-4, "warmup_max_lr": 2e-3, "warmup_num_steps": 50,
                       "total_num_steps": 100, "warmup_type": "linear"}),
    ("WarmupCosineLR", {"warmup_num_steps": 25, "total_num_steps": 100}),
    ("WarmupCosineLR", {"warmup_num_steps": 10, "total_num_steps": 80, "warmup_min_ratio": 0.1,
                        "cos_min_ratio": 0.05, "warmup_type": "linear"}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 7,
                     "lr_range_test_step_rate": 0.5}),
    ("LRRangeTest", {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 9,
                     "lr_range_test_step_rate": 2.0, "lr_range_test_staircase": True}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 30}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 20,
                  "cycle_second_step_size": 35, "decay_step_size": 10, "decay_lr_rate": 0.3,
                  "cycle_min_mom": 0.7, "cycle_max_mom": 0.95}),
    ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 24,
                  "cycle_first_stair_count": 4, "cycle_second_stair_count": 6,
                  "cycle_momentum": False})]

SHAPES = [[8, 8], [20, 7], [7, 20], [1, 9], [64, 48]]


def import_deepspeed():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # Otherwise Muon's functions would be compiled.
    try:
        import deepspeed
    except ImportError as error:
        raise unittest.SkipTest(f"{error}: ./dev deps test") from error
    return deepspeed


def optimizer_of(torch):
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=LR, betas=(0.9, 0.999))


class DeepSpeedRules(EndToEnd):
    @classmethod
    def setUpClass(cls):
        import_deepspeed()
        super().setUpClass()
        generator = random.Random(SEED)
        print(f"seed {SEED}")
        cls.cases = {
            "loss_scale": [
                {"config": {"fp16": {"enabled": True, **fp16}},
                 "overflows": [generator.random() < share for _ in range(STEPS)]}
                for fp16 in FP16 for share in (0.05, 0.3, 0.8)],
            "schedule": [
                {"config": {"optimizer": {"type": "AdamW", "params": {"lr": LR}},
                            "scheduler": {"type": kind, "params": params}}, "steps": STEPS}
                for kind, params in SCHEDULES],
            "newton_schulz": [
                {"shape": shape,
                 "values": [generator.gauss(0, 3) for _ in range(shape[0] * shape[1])]}
                for shape in SHAPES]}
        path = f"{cls.folder}/cases.json"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(cls.cases, file)
        result = subprocess.run([PROGRAM, path], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise AssertionError(result.stderr)
        cls.answers = json.loads(result.stdout)

    def each(self, kind):
        for case, answer in zip(self.cases[kind], self.answers[kind], strict=True):
            yield case, answer

    def test_the_loss_scale_moves_as_deepspeeds(self):
        from deepspeed.runtime.fp16 import loss_scaler
        loss_scaler.dist.get_rank = lambda: 1  # The scaler logs on rank 0, and there is no group to ask.
        for case, ours in self.each("loss_scale"):
            fp16 = case["config"]["fp16"]
            scaler = loss_scaler.DynamicLossScaler(
                init_scale=2.0 ** fp16.get("initial_scale_power", 16),
                scale_window=fp16.get("loss_scale_window", 1000),
                min_scale=fp16.get("min_loss_scale", 1), delayed_shift=fp16.get("hysteresis", 2),
                consecutive_hysteresis=fp16.get("consecutive_hysteresis", False),
                raise_error_at_min_scale=False)
            theirs = []
            for overflow in case["overflows"]:
                scaler.update_scale(overflow)
                theirs.append(scaler.cur_scale)
            self.assertEqual(ours, theirs, fp16)

    def test_learning_rates_and_momenta_follow_deepspeeds_schedules(self):
        import torch
        from deepspeed.runtime import lr_schedules
        for case, ours in self.each("schedule"):
            scheduler = case["config"]["scheduler"]
            optimizer = optimizer_of(torch)
            schedule = getattr(lr_schedules, scheduler["type"])(optimizer, **scheduler["params"])
            for step, (rate, beta) in enumerate(ours):
                group = optimizer.param_groups[0]
                where = f"{scheduler}, step {step}"
                # Both compute in doubles, in another order.
                self.assertAlmostEqual(rate, group["lr"], delta=1e-12, msg=where)
                self.assertAlmostEqual(beta, group["betas"][0], delta=1e-12, msg=where)
                optimizer.step()
                schedule.step()

    def test_matrices_are_orthogonalised_as_deepspeeds_muon_does(self):
        import torch
        from deepspeed.runtime.zero.muon import original_muon as muon
        muon.ns_compute_dtype = lambda *_: torch.float32  # The type of dtrain's host form.
        for case, ours in self.each("newton_schulz"):
            matrix = torch.tensor(case["values"]).view(case["shape"])
            theirs = muon.zeropower_via_newtonschulz5(matrix, steps=5)
            theirs = theirs * muon._aspect_ratio_scale(*case["shape"])
            # fp32 sums in another order, over five steps of products.
            torch.testing.assert_close(torch.tensor(ours).view(case["shape"]), theirs, rtol=1e-4,
                                       atol=1e-5)


if __name__ == "__main__":
    end_to_end.main()
