"""Keys that say when a run saves and what it keeps, as a user sets them: checkpoint.interval "continuous"
and checkpoint.keep_best."""
import glob
import re

import end_to_end
from end_to_end import EndToEnd


def steps_kept(run_dir):
    return sorted(int(re.search(r"step-(\d+)", path)[1])
                  for path in glob.glob(f"{run_dir}/checkpoints/step-*/MANIFEST.json"))


class Keys(EndToEnd):
    def test_continuous_saves_follow_each_other_and_change_no_bit(self):
        sets = ["train_steps=100", "deterministic=true", "metrics.tensorboard=false", "checkpoint.keep=2"]
        none = self.train(2, "without-saves", sets)
        run_dir = self.train(2, "continuous", [*sets, "checkpoint.interval=continuous"])
        self.assertEqual(self.losses(run_dir), self.losses(none))
        self.assertEqual(self.model_files(run_dir), self.model_files(none))
        saves, step = [], 0
        for record in self.records(run_dir):
            if record["kind"] == "step":
                step = record["step"]
            elif record["kind"] == "ckpt":
                self.assertTrue(record.get("durable"), record)  # None was skipped, none failed.
                saves.append((record["step"], step))
        # The next save begins when the one before is durable: not earlier, and soon, so that of most steps it is
        # true that a save began with them or was under way.
        for (_, durable_at), (next_step, _) in zip(saves, saves[1:]):
            self.assertGreaterEqual(next_step, durable_at)
        self.assertEqual(saves[0][0], 1)
        self.assertEqual(saves[-1][0], 100)
        self.assertGreater(sum(durable_at - step + 1 for step, durable_at in saves), 50, saves)

    def test_the_best_by_a_metric_stay_whatever_their_age(self):
        sets = ["eval_interval=2", "checkpoint.interval=2", "checkpoint.keep=2", "checkpoint.keep_best=1",
                "checkpoint.best_metric=eval/loss", "checkpoint.best_is=largest", "checkpoint.async=false",
                "metrics.tensorboard=false"]
        for steps, resumed in ((10, set()), (16, {10})):  # What a start has resumed from stays too.
            run_dir = self.train(2, "best", [*sets, f"train_steps={steps}"])
            values = {r["step"]: r["m"]["eval/loss"] for r in self.records(run_dir)
                      if "eval/loss" in r.get("m", {}) and r["step"] > 0}
            self.assertEqual(sorted(values), list(range(2, steps + 1, 2)))
            best = max(values, key=lambda step: (values[step], step))
            self.assertLess(best, steps - 2, "the loss does not fall, so this shows nothing")
            self.assertEqual(steps_kept(run_dir), sorted({best, steps - 2, steps} | resumed))


if __name__ == "__main__":
    end_to_end.main()
