"""Real runs under every launcher have the losses of dtrain launch, and TensorBoard's own backend shows
the expected values from their files."""
import json
import os
import shutil
import subprocess
import sys

import end_to_end
from end_to_end import BIN, SOURCE, EndToEnd

RUN = "report/tensorboard"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
SETS = ["train_steps=4", "eval_interval=2", "metrics.interval=2"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--no-python",
            "--standalone"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
# Number of terms of the longest sums, those over the tokens of a step.
TOLERANCE = end_to_end.fp32_tolerance(end_to_end.SMALL["train_batch_size"] *
                                      end_to_end.SMALL["data"]["sequence_length"])


class TensorBoard(EndToEnd):
    def shown(self):
        """TensorBoard's view of all runs in this test's folder, by their names there."""
        result = subprocess.run([sys.executable, f"{SOURCE}/tests/testing/read_tensorboard.py",
                                 self.folder], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def check(self, shown, name, ranks):
        run = f"{name}/{RUN}"
        scalars = shown["scalars"][run]
        losses = {step: round(loss, 4)
                  for step, loss in self.losses(f"{self.folder}/{name}").items()}
        self.assertEqual({step: round(value, 4) for step, value in scalars["train/loss"]}, losses)
        self.assertEqual([step for step, _ in scalars["train/loss"]], [1, 2, 3, 4])
        # A value that a program logs by name is a curve like those of the engine.
        self.assertEqual([step for step, _ in scalars["eval/loss"]], [2, 4])
        self.assertIn("perf/tokens_per_s", scalars)
        (session,) = [one for one in shown["hparams"] if one["session"] == run]
        self.assertEqual(session["status"], "STATUS_SUCCESS")
        values = session["values"]
        self.assertEqual(values["optimizer.params.lr"], 3e-3)
        self.assertEqual(values["optimizer.type"], "AdamW")
        self.assertEqual(values["model.hidden_size"], 32)
        self.assertEqual(values["world_size"], ranks)
        self.assertEqual(values["train_steps"], 4)
        self.assertNotIn("wandb.project", values)
        self.assertIn("train/loss", session["metrics"])
        self.assertIn("eval/loss", session["metrics"])
        text = shown["texts"][run]["configuration"]
        self.assertIn("| `optimizer.params.lr` | `0.003` | file |", text)
        self.assertIn("| `train_steps` | `4` | --set |", text)
        self.assertIn("| `seed` | `3` | file |", text)
        self.assertIn("| world_size |", shown["texts"][run]["run"])

    def run_under(self, launcher, name, sets=SETS):
        run_dir = f"{self.folder}/{name}"
        words = [*launcher, f"{BIN}/dtrain-gpt", self.config, "--run-dir", run_dir]
        for value in sets:
            words += ["--set", value]
        result = self.run_program(words, ONE_THREAD)
        self.assertEqual(result.code, 0, result.output)
        return self.losses(run_dir)

    def test_every_launcher_gives_the_losses_of_dtrain_launch_and_its_curves(self):
        ours = self.losses(self.train(2, "launch", SETS))
        self.assertEqual(self.run_under(TORCHRUN, "torchrun"), ours)
        self.assertEqual(self.run_under(MPIRUN, "mpirun"), ours)
        self.assert_close(self.run_under([], "alone"), ours, TOLERANCE)
        shutil.copytree(f"{self.folder}/alone", f"{self.folder}/resumed", symlinks=True)
        self.run_under([], "resumed", ["train_steps=6"])
        shown = self.shown()
        for name, ranks in (("launch", 2), ("torchrun", 2), ("mpirun", 2), ("alone", 1)):
            self.check(shown, name, ranks)
        scalars = shown["scalars"][f"resumed/{RUN}"]["train/loss"]
        self.assertEqual([step for step, _ in scalars], [1, 2, 3, 4, 5, 6])

    def test_is_switched_off_by_the_configuration_and_by_the_launchers_flag(self):
        off = self.train(2, "off", ["train_steps=2", "metrics.tensorboard=false"])
        self.assertFalse(os.path.exists(f"{off}/{RUN}"))
        flag = f"{self.folder}/flag"
        result = self.run_program(self.launch_command(1, flag, ["train_steps=2"],
                                                      extra=["--no-tensorboard"]))
        self.assertEqual(result.code, 0, result.output)
        self.assertFalse(os.path.exists(f"{flag}/{RUN}"))
        self.run_under([], "alone-off", ["train_steps=2", "metrics.tensorboard=false"])
        self.assertFalse(os.path.exists(f"{self.folder}/alone-off/{RUN}"))


if __name__ == "__main__":
    end_to_end.main()
