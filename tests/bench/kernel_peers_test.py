"""The peers of dtrain's kernels in ./dev gpu run: torch's twins and Liger's forms."""
import os
import sys
import types
import unittest
from unittest import mock

SOURCE = os.environ["DTRAIN_SOURCE"]
sys.path[:0] = [f"{SOURCE}/bench", f"{SOURCE}/bench/gpu", f"{SOURCE}/bench/twins"]

import torch  # noqa: E402
import kernel_peers  # noqa: E402
import kernel_twins  # noqa: E402
import liger_forms  # noqa: E402
import kernels as kernels_twin  # noqa: E402

SETTING = kernel_twins.Setting(1024 * 256, 256, {"cross_entropy": {"vocabulary": 64}})
# Liger's names and how many results they give; of the release that was read, 0.8.5.
FUNCTIONS = {"rms_norm.LigerRMSNormFunction": 1, "swiglu.LigerSiLUMulFunction": 1,
             "fused_add_rms_norm.LigerFusedAddRMSNormFunction": 2,
             "layer_norm.LigerLayerNormFunction": 1, "rope.LigerRopeFunction": 2,
             "cross_entropy.LigerCrossEntropyFunction": 1}


def recorder(calls, name, results):
    """A stand-in for one of Liger's functions: notes its inputs, depends on them smoothly."""
    def apply(*inputs):
        calls.append((name, inputs))
        tensors = [x for x in inputs if torch.is_tensor(x) and x.is_floating_point()]
        grown = sum(x.float().sum() for x in tensors) + tensors[0].float()
        return grown.to(tensors[0].dtype) if results == 1 else (grown.to(tensors[0].dtype),) * 2
    return types.SimpleNamespace(apply=apply)


class Peers(unittest.TestCase):
    def setUp(self):
        self.calls = []
        modules = {"liger_kernel": types.ModuleType("liger_kernel"),
                   "liger_kernel.ops": types.ModuleType("liger_kernel.ops")}
        for path, results in FUNCTIONS.items():
            file, name = path.split(".")
            module = types.ModuleType(f"liger_kernel.ops.{file}")
            setattr(module, name, recorder(self.calls, path, results))
            modules[module.__name__] = module
        patch = mock.patch.dict(sys.modules, modules)
        patch.start()
        self.addCleanup(patch.stop)

    def form(self, name):
        return liger_forms.form(name, SETTING, torch.bfloat16)

    def test_every_name_has_a_twin_once(self):
        self.assertEqual(len(set(kernel_peers.NAMES)), len(kernel_peers.NAMES))
        for name in kernel_peers.NAMES:
            self.assertIsNotNone(kernel_twins.find(name), name)

    def test_liger_has_forms_of_these_and_of_no_others(self):
        both = {"rmsnorm": "rms_norm", "rmsnorm_add": "fused_add_rms_norm",
                "layernorm": "layer_norm", "swiglu": "swiglu", "swiglu_fused": "swiglu"}
        expected = {f"{case}_{way}": file for case, file in both.items()
                    for way in ("forward", "backward")}
        expected |= {"rope_halves": "rope", "cross_entropy": "cross_entropy"}
        found = {}
        for name in kernel_peers.NAMES:
            if name.endswith("_bf16") and (call := self.form(name)):
                self.calls.clear()
                call()
                found[name.removesuffix("_bf16")] = self.calls[-1][0].split(".")[0]
        self.assertEqual(found, expected)

    def test_a_backward_is_timed_less_its_forward_and_gives_each_gradient(self):
        for case, inputs in (("rmsnorm", 2), ("rmsnorm_add", 3), ("layernorm", 3), ("swiglu", 2)):
            call = self.form(f"{case}_backward_bf16")
            self.assertEqual(len(call()), inputs, case)
            self.assertFalse(hasattr(self.form(f"{case}_forward_bf16"), "forward"))
            self.calls.clear()
            call.forward()
            self.assertEqual(len(self.calls), 1)

    def test_a_case_has_the_elements_of_dtrains(self):
        for name in ("rope_halves", "cross_entropy"):
            self.form(f"{name}_bf16")()
            big = [x for x in self.calls[-1][1] if torch.is_tensor(x) and x.dtype == torch.bfloat16
                   and x.requires_grad == (name == "cross_entropy") and x.dim() != 3]
            self.assertEqual(sum(x.numel() for x in big), SETTING.elements, name)

    def test_the_fastest_of_several_forms_is_the_peer(self):
        times = {"slow": 3.0, "fast": 1.0}
        with mock.patch("kernel_peers.measure", lambda call, args: times[call()]):
            row = kernel_peers.row("amax_f32", "eager", lambda: {"slow": lambda: "slow",
                                                                 "fast": lambda: "fast"}, None)
            self.assertEqual(row, {"name": "amax_f32", "way": "eager", "us": 1.0, "form": "fast"})
            self.assertIsNone(kernel_peers.row("amax_f32", "liger", dict, None))

    def test_forms_of_one_operation_give_the_same(self):
        for name in ("amax_f32", "amax_bf16", "cast_to_e4m3_f32", "cast_to_e5m2_bf16"):
            maker, dtype = kernel_twins.find(name)
            forms = maker(SETTING, dtype).eager_forms()
            self.assertGreater(len(forms), 1)
            first, *others = [kernels_twin.flatten(form()) for form in forms.values()]
            for other in others:
                for a, b in zip(first, other):
                    self.assertTrue(torch.equal(a, b), name)

    def test_without_liger_a_row_says_so_and_the_others_are_measured(self):
        with mock.patch.dict(sys.modules, {"liger_kernel.ops.layer_norm": None}):
            row = kernel_peers.row("layernorm_forward_bf16", "liger",
                                   lambda: self.form("layernorm_forward_bf16"), None)
        self.assertIn("ModuleNotFoundError", row["missing"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
