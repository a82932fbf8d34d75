"""A run whose length is given in epochs, as its user sees it: the number of steps in the banner, the progress
line and the records, and the same number after a resume on another number of ranks."""
import json
import struct

import end_to_end
from end_to_end import SOURCE, EndToEnd

WINDOWS = 20
ROW = 32  # SMALL's data.sequence_length.


def write_tokens(path):
    """A file in llm.c's format that holds WINDOWS rows."""
    count = WINDOWS * ROW + 1
    with open(path, "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, count, *[0] * 253))
        file.write(struct.pack(f"<{count}H", *(at * at % 251 for at in range(count))))


class Epochs(EndToEnd):
    def values(self, run_dir):
        with open(f"{run_dir}/config.json", encoding="utf-8") as file:
            return json.load(file)

    def test_the_run_is_as_long_as_its_epochs_at_any_number_of_ranks(self):
        write_tokens(f"{self.folder}/small.bin")
        config = self.write_config(
            "epochs.json", train_steps=None, train_epochs=2,
            scheduler={"type": "WarmupCosineLR", "params": {"warmup_num_steps": 2}},
            data={"sequence_length": ROW, "train": [f"{self.folder}/small.bin"],
                  "validation": [f"{self.folder}/small.bin"]})
        run_dir = f"{self.folder}/run"
        first = self.run_program(self.launch_command(2, run_dir, config=config))
        self.assertEqual(first.code, 0, first.output)
        # 2 epochs of 20 samples by 8.
        self.assertRegex(first.output, r"steps +5 \(2 epochs\)")
        self.assertIn("5/5", first.output)
        self.assertEqual(max(self.losses(run_dir)), 5)
        values = self.values(run_dir)
        self.assertEqual((values["train_steps"], values["train_epochs"]), (5, 2))
        self.assertEqual(values["scheduler"]["params"]["total_num_steps"], 5)
        # One more epoch goes on with it: 7.5 steps.
        second = self.run_program(self.launch_command(1, run_dir, ["train_epochs=3"], config=config))
        self.assertEqual(second.code, 0, second.output)
        self.assertIn("train_epochs 3 is 8 steps now; the run had 5", second.output)
        self.assertEqual(sorted(self.losses(run_dir)), list(range(1, 9)))
        self.assertEqual(self.values(run_dir)["train_steps"], 8)

    def test_a_program_with_a_dataset_of_its_own_trains_for_epochs_too(self):
        with open(f"{SOURCE}/examples/cnn/cnn.json", encoding="utf-8") as file:
            config = json.load(file)
        run_dir = f"{self.folder}/cnn"
        # 512 samples by 32 are 16 steps; the file's train_steps gives way.
        result = self.run_program(self.launch_command(
            2, run_dir, ["train_epochs=0.25"], f"{SOURCE}/examples/cnn/cnn.json", "../tests/example-cnn"))
        self.assertEqual(result.code, 0, result.output)
        self.assertIn("train_steps", config)
        self.assertEqual(sorted(self.losses(run_dir)), [1, 2, 3, 4])
        self.assertEqual(self.values(run_dir)["train_steps"], 4)


if __name__ == "__main__":
    end_to_end.main()
