"""tools/convert_checkpoint.py: a DCP folder or a file of torch.save becomes weights that
`dtrain checkpoint import` reads, with the same bits."""
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

BIN = os.environ["DTRAIN_BIN"]
SCRIPT = f"{os.environ['DTRAIN_SOURCE']}/tools/convert_checkpoint.py"
SPEC = importlib.util.spec_from_file_location("convert_checkpoint", SCRIPT)
MODULE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MODULE)


class Convert(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-convert-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        torch.manual_seed(1)
        weight = torch.randn(6, 4)
        self.state = {"a.weight": weight, "a.bias": torch.randn(6).to(torch.bfloat16),
                      "tied.weight": weight, "count": torch.tensor(7), "turned.weight": torch.randn(3, 5).t()}
        self.out = f"{self.folder}/out.safetensors"

    def convert(self, source, *words, out=None):
        """Runs the script in this process: to import torch again for each case would take minutes."""
        stdout, stderr = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            code = MODULE.main([source, out or self.out, *words])
        return subprocess.CompletedProcess([], code, stdout.getvalue(), stderr.getvalue())

    def refused(self, source, *texts, words=(), code=64, out=None):
        done = self.convert(source, *words, out=out)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for text in texts:
            self.assertIn(text, done.stderr)
        self.assertEqual([name for name in os.listdir(self.folder) if "partial" in name], [])

    def imported(self, out):
        """The tensors of the checkpoint that is made of `out`."""
        run = f"{self.folder}/imported"
        done = subprocess.run([f"{BIN}/dtrain-checkpoint", "import", out, run], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        verified = subprocess.run([f"{BIN}/dtrain-checkpoint", "verify", run], capture_output=True, text=True)
        self.assertEqual(verified.returncode, 0, verified.stdout)
        return load_file(f"{run}/checkpoints/step-000000000000.e1/model/model.safetensors")

    def assert_state(self, found, expected):
        self.assertEqual(sorted(found), sorted(expected))
        for name, value in expected.items():
            self.assertEqual(found[name].dtype, value.dtype, name)
            self.assertTrue(found[name].equal(value), name)

    def test_a_file_of_torch_save(self):
        path = f"{self.folder}/state.pt"
        torch.save(self.state, path)
        done = subprocess.run([sys.executable, SCRIPT, path, self.out], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("wrote 5 tensors", done.stdout)
        self.assertIn(f"dtrain checkpoint import {self.out}", done.stdout)
        self.assert_state(self.imported(self.out), self.state)

    def test_a_dcp_folder(self):
        path = f"{self.folder}/dcp"
        dcp.save({"app": {"model": self.state, "epoch": 3}}, checkpoint_id=path, no_dist=True)
        done = self.convert(path, "--key", "app.model")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_state(self.imported(self.out), self.state)

    def test_a_dictionary_in_the_file_and_a_prefix(self):
        path = f"{self.folder}/state.pt"
        torch.save({"model": {f"module.{k}": v for k, v in self.state.items()} | {"version": 2}, "step": 5}, path)
        self.refused(path, "there is no tensor among model, step; try --key model")
        self.refused(path, "--key optimizer: there is no \"optimizer\"; there are: model, step",
                     words=["--key", "optimizer"])
        done = self.convert(path, "--key", "model", "--strip", "module.")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("left out, because they are no tensors: version\n", done.stdout)
        self.assert_state(self.imported(self.out), self.state)

    def test_shards_and_types(self):
        path = f"{self.folder}/state.pt"
        torch.save(self.state, path)
        out = f"{self.folder}/folder"
        done = self.convert(path, "--max-shard-size", "100B", "--dtype", "bf16", out=out)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(f"{out}/model.safetensors.index.json", encoding="utf-8") as file:
            self.assertGreater(len(set(json.load(file)["weight_map"].values())), 1)
        self.assert_state(self.imported(out), {
            name: value.to(torch.bfloat16) if value.is_floating_point() else value
            for name, value in self.state.items()})

    def test_a_dcp_folder_that_is_not_whole_is_refused_in_one_line(self):
        path = f"{self.folder}/dcp"
        dcp.save({"model": self.state}, checkpoint_id=path, no_dist=True)
        data = f"{path}/__0_0.distcp"
        with open(data, "rb") as file:
            whole = file.read()
        os.remove(data)
        self.refused(path, f"{data}: No such file or directory", words=["--key", "model"])
        for cut in (b"", whole[:len(whole) // 2], bytes(len(whole))):
            with open(data, "wb") as file:
                file.write(cut)
            self.refused(path, f"{path} cannot be read by torch", words=["--key", "model"])
        with open(data, "wb") as file:
            file.write(whole)
        with open(f"{path}/.metadata", "rb+") as file:
            file.truncate(50)
        self.refused(path, f"{path} cannot be read by torch", words=["--key", "model"])

    def test_tensors_that_are_no_arrays_are_refused_by_name(self):
        path = f"{self.folder}/state.pt"
        for value, kind in ((torch.eye(3).to_sparse(), "sparse"), (torch.empty(3, device="meta"), "meta"),
                            (torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8), "qint8")):
            torch.save({"w": value}, path)
            self.refused(path, "tensor w is ", kind)
        torch.save({"w": torch.zeros(2).to(torch.float8_e4m3fn), "v": torch.ones(2)}, path)
        done = self.convert(path, "--dtype", "bf16")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_state(self.imported(self.out), {"w": torch.zeros(2, dtype=torch.bfloat16),
                                                    "v": torch.ones(2, dtype=torch.bfloat16)})

    def test_a_disk_that_fills_ends_with_75_and_leaves_nothing(self):
        path = f"{self.folder}/state.pt"
        torch.save({"w": torch.zeros(1000)}, path)
        # A limit of file sizes fails the write as a full disk does.
        done = subprocess.run(["bash", "-c", "trap '' XFSZ; ulimit -f 2; exec \"$@\"", "-", sys.executable,
                               SCRIPT, path, self.out], capture_output=True, text=True)
        self.assertEqual(done.returncode, 75, done.stderr)
        self.assertRegex(done.stderr, f"^convert_checkpoint: {self.out}.*: File too large\n$")
        self.assertEqual(os.listdir(self.folder), ["state.pt"])

    def test_a_folder_may_end_with_a_slash(self):
        path = f"{self.folder}/state.pt"
        torch.save(self.state, path)
        out = f"{self.folder}/folder"
        done = self.convert(path, out=f"{out}/")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assert_state(self.imported(out), self.state)

    def test_what_cannot_be_used_is_refused_in_one_line(self):
        path = f"{self.folder}/state.pt"
        self.refused(path, path, "is not there")
        with open(path, "wb") as file:
            file.write(b"no pickle")
        self.refused(path, path, "cannot be read by torch", "holds other things than tensors")
        torch.save(torch.nn.Linear(2, 2), path)  # It would run code.
        self.refused(path, path, "cannot be read by torch", "save model.state_dict() instead of the model")
        torch.save([torch.zeros(2)], path)
        self.refused(path, "a state dict is a dictionary of tensors by name; found list")
        torch.save({"w": torch.tensor([70000.0])}, path)
        self.refused(path, "tensor w has values beyond the range of fp16", words=["--dtype", "fp16"])
        self.refused(path, "unrecognized arguments: --unknown", words=["--unknown"])
        self.refused(path, "is no size", words=["--max-shard-size", "many"])
        os.mkdir(f"{self.folder}/empty")
        self.refused(f"{self.folder}/empty", "is a folder without .metadata")
        with open(self.out, "w", encoding="utf-8") as file:
            file.write("mine")
        self.refused(path, f"{self.out} is there; it is left alone")
        with open(self.out, encoding="utf-8") as file:
            self.assertEqual(file.read(), "mine")


if __name__ == "__main__":
    unittest.main(verbosity=2)
