"""TensorBoard files of real runs under every launcher, as TensorBoard's own backend shows them."""
import json
import os
import subprocess
import sys

import end_to_end
from end_to_end import BIN, SOURCE, EndToEnd

RUN = "report/tensorboard"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
SETS = ["train_steps=4", "eval_interval=2", "metrics.interval=2"]


class TensorBoard(EndToEnd):
    def read(self, run_dir):
        result = subprocess.run([sys.executable, f"{SOURCE}/tests/testing/read_tensorboard.py", run_dir],
                                capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def check(self, run_dir, ranks):
        shown = self.read(run_dir)
        scalars = shown["scalars"][RUN]
        losses = {step: round(loss, 4) for step, loss in self.losses(run_dir).items()}
        self.assertEqual({step: round(value, 4) for step, value in scalars["train/loss"]}, losses)
        self.assertEqual([step for step, _ in scalars["train/loss"]], [1, 2, 3, 4])
        # What a program logs by name is a curve like those of the engine.
        self.assertEqual([step for step, _ in scalars["eval/loss"]], [2, 4])
        self.assertIn("perf/tokens_per_s", scalars)
        (session,) = shown["hparams"]
        self.assertEqual(session["session"], RUN)
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
        text = shown["texts"][RUN]["configuration"]
        self.assertIn("| `optimizer.params.lr` | `0.003` | file |", text)
        self.assertIn("| `train_steps` | `4` | --set |", text)
        self.assertIn("| `seed` | `3` | file |", text)
        self.assertIn("| world_size |", shown["texts"][RUN]["run"])

    def run_under(self, launcher, name, ranks):
        run_dir = f"{self.folder}/{name}"
        words = [*launcher, f"{BIN}/dtrain-gpt", self.config, "--run-dir", run_dir]
        for value in SETS:
            words += ["--set", value]
        result = self.run_program(words, ONE_THREAD)
        self.assertEqual(result.code, 0, result.output)
        self.check(run_dir, ranks)

    def test_under_the_launcher_of_dtrain(self):
        self.check(self.train(2, "launch", SETS), 2)

    def test_under_torchrun(self):
        self.run_under([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
                        "--no-python", "--standalone"], "torchrun", 2)

    def test_under_mpirun(self):
        self.run_under(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"], "mpirun", 2)

    def test_alone_and_resumed(self):
        self.run_under([], "alone", 1)
        run_dir = f"{self.folder}/alone"
        again = [f"{BIN}/dtrain-gpt", self.config, "--run-dir", run_dir, "--set", "train_steps=6"]
        self.assertEqual(self.run_program(again, ONE_THREAD).code, 0)
        scalars = self.read(run_dir)["scalars"][RUN]["train/loss"]
        self.assertEqual([step for step, _ in scalars], [1, 2, 3, 4, 5, 6])

    def test_is_switched_off_by_the_configuration_and_by_the_launchers_flag(self):
        off = self.train(2, "off", ["train_steps=2", "metrics.tensorboard=false"])
        self.assertFalse(os.path.exists(f"{off}/{RUN}"))
        flag = f"{self.folder}/flag"
        result = self.run_program(self.launch_command(2, flag, ["train_steps=2"],
                                                      extra=["--no-tensorboard"]))
        self.assertEqual(result.code, 0, result.output)
        self.assertFalse(os.path.exists(f"{flag}/{RUN}"))
        alone = f"{self.folder}/alone-off"
        result = self.run_program([f"{BIN}/dtrain-gpt", self.config, "--run-dir", alone, "--set",
                                   "train_steps=2", "--set", "metrics.tensorboard=false"], ONE_THREAD)
        self.assertEqual(result.code, 0, result.output)
        self.assertFalse(os.path.exists(f"{alone}/{RUN}"))


if __name__ == "__main__":
    end_to_end.main()
