"""`dtrain train`: from an empty folder to a trained model, resuming, and its errors."""
import json
import os
import shutil
import signal
import tempfile

import end_to_end
from end_to_end import BIN, EndToEnd

QUICK = ["--set", "train_steps=2", "--set", "eval_interval=0", "--set", "sample.bytes=0",
         "--set", "data.sequence_length=32", "--set", "model.num_hidden_layers=1"]


class TrainCommand(EndToEnd):
    def setUp(self):
        self.place = tempfile.mkdtemp(dir=self.folder)

    def run_here(self, *words):
        here = os.getcwd()
        os.chdir(self.place)
        try:
            return self.run_program(list(words))
        finally:
            os.chdir(here)

    def test_an_empty_folder_is_all_it_needs_and_the_same_command_resumes(self):
        first = self.run_here(f"{BIN}/dtrain", "train", *QUICK)
        self.assertEqual(first.code, 0, first.output)
        # The line at the end says for how long saves held the training up.
        self.assertRegex(first.output,
                         r"exit code 0.* after .*, of which 1 checkpoint held training up for [0-9.]+ m?s; run dir")
        self.assertIn("writing token files to data/headers from the headers in /usr/include", first.output)
        self.assertGreater(os.path.getsize(f"{self.place}/data/headers/train.bin"), 1 << 20)
        run_dir = f"{self.place}/runs/gpt"
        self.assertEqual(sorted(self.losses(run_dir)), [1, 2])
        self.assertTrue(os.path.exists(f"{run_dir}/metrics/rank-1.jsonl"), "2 ranks")
        with open(f"{run_dir}/config.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file)["optimizer"]["params"]["lr"], 3e-3)
        again = self.run_here(f"{BIN}/dtrain", "train", *QUICK, "--set", "train_steps=3")
        self.assertEqual(again.code, 0, again.output)
        self.assertNotIn("writing token files", again.output)
        self.assertEqual(sorted(self.losses(run_dir)), [1, 2, 3])

    def test_arguments_go_to_the_program(self):
        result = self.run_here(
            f"{BIN}/dtrain", "train", *QUICK, "--run-dir", "elsewhere",
            "--set", f'data.train=["{self.folder}/data/train.bin"]',
            "--set", f'data.validation=["{self.folder}/data/val.bin"]')
        self.assertEqual(result.code, 0, result.output)
        self.assertFalse(os.path.exists(f"{self.place}/data"), "the data is named")
        self.assertEqual(sorted(self.losses(f"{self.place}/elsewhere")), [1, 2])
        self.assertTrue(os.path.exists(f"{self.place}/elsewhere/events.jsonl"), "the launcher follows")
        wrong = self.run_here(f"{BIN}/dtrain", "train", "--frobnicate",
                              "--set", f'data.train=["{self.folder}/data/train.bin"]')
        self.assertEqual(wrong.code, 64)
        self.assertIn("unknown argument --frobnicate", wrong.output)

    def test_a_tree_without_its_parts_says_what_is_missing(self):
        os.makedirs(f"{self.place}/bin")
        shutil.copy(f"{BIN}/dtrain", f"{self.place}/bin/dtrain")
        result = self.run_here(f"{self.place}/bin/dtrain", "train")
        self.assertEqual(result.code, 64)
        self.assert_one_line(result.output, "share/dtrain/configs/gpt.json is missing", "dtrain launch")
        os.makedirs(f"{self.place}/share/dtrain")
        shutil.copytree(f"{BIN}/../share/dtrain/configs", f"{self.place}/share/dtrain/configs")
        result = self.run_here(f"{self.place}/bin/dtrain", "train")
        self.assertEqual(result.code, 64)
        self.assert_one_line(result.output, "dtrain-gpt is missing")

    def test_ctrl_c_saves_and_the_same_command_goes_on(self):
        command = [f"{BIN}/dtrain", "train", *QUICK, "--set", "train_steps=100000",
                   "--run-dir", f"{self.place}/run",
                   "--set", f'data.train=["{self.folder}/data/train.bin"]',
                   "--set", f'data.validation=["{self.folder}/data/val.bin"]']
        process = self.start(command)
        self.await_step(f"{self.place}/run", 3, process)
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.finish(process).code, 130)
        reached = max(self.losses(f"{self.place}/run"))
        result = self.run_program([*command, "--set", f"train_steps={reached + 2}"])
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual(max(self.losses(f"{self.place}/run")), reached + 2)

    def test_fresh_moves_the_old_run_aside_and_shows_the_new_one(self):
        command = [f"{BIN}/dtrain", "train", *QUICK, "--run-dir", f"{self.place}/run",
                   "--set", f'data.train=["{self.folder}/data/train.bin"]',
                   "--set", f'data.validation=["{self.folder}/data/val.bin"]']
        self.assertEqual(self.run_program(command).code, 0)
        again = self.run_program([*command, "--fresh", "--set", "optimizer.params.lr=1e-3"])
        self.assertEqual(again.code, 0, again.output)
        self.assertIn("step 2/2", again.output)
        for folder in ("run", "run.old-1"):
            self.assertEqual(sorted(self.losses(f"{self.place}/{folder}")), [1, 2], folder)
            self.assertTrue(os.path.exists(f"{self.place}/{folder}/logs/attempt-0/rank-1.out"), folder)
            self.assertTrue(os.path.exists(f"{self.place}/{folder}/events.jsonl"), folder)

    def test_help_says_what_it_does(self):
        result = self.run_program([f"{BIN}/dtrain", "train", "--help"])
        self.assertEqual(result.code, 0)
        for text in ("2 ranks", "data/headers", "--set KEY=VALUE", "Default: runs/gpt", "Examples:"):
            self.assertIn(text, result.output)


if __name__ == "__main__":
    end_to_end.main()
