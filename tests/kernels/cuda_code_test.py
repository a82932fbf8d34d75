"""The CUDA kernels as nvcc compiled them, for every architecture: no local memory (so no spills), and
accesses of 16 bytes in every form for aligned data. What has none is listed here with its reason."""
import json
import os
import re
import sys
import unittest

SOURCE = os.environ["DTRAIN_SOURCE"]
BUILD = os.environ["DTRAIN_BUILD"]
sys.path.insert(0, f"{SOURCE}/bench")
import cuda_code  # noqa: E402

OCCUPANCY_MIN = 0.25

# Kernels without a form for aligned data.
NARROW = {
    "AddInOrder": "one thread over a number a rank",
    "AddPartials": "one block over 256 numbers",
    "KeysKernel": "widens nothing: a token's id of 8 bytes becomes two numbers of 4; the sort follows",
    "StartsKernel": "a binary search",
    "SetClipKernel": "one number",
    "StepVerdictKernel": "one block over two numbers a rank",
    "TotalsKernel": "one block over a number a token",
    "TreeKernel": "a tree over one number for each 4,096 elements",
    "TrustKernel": "one block over two numbers for each 4,096 elements",
    "ColumnsKernel": "adds columns of the partial sums, a thread each",
}
# Both forms in one kernel, chosen by the address; held to the rule for wide forms.
BOTH = {"BlockSquareSumsKernel", "MomentsKernel"}
# What a wide form does not load or store.
LOADS_NOTHING = {"FillBody": "only writes"}
STORES_NOTHING = {
    "AmaxKernel": "gives one number",
    "SquarePartials": "gives one number a block",
    "BlockSquareSumsKernel": "gives a number for each 4,096 elements",
    "RowsKernel<float, 8, true, false>": "gives two numbers a row",
    "RowsKernel<dtrain::BFloat16, 8, true, false>": "gives two numbers a row",
}


def listed(kernel, names):
    return next((name for name in names if kernel.name.startswith(name) or f" {name}" in kernel.name
                 or f"::{name}" in kernel.name), None)


class Parsing(unittest.TestCase):
    def test_names_and_template_arguments_are_read_from_signatures(self):
        read = cuda_code.kernel_name
        space = "dtrain::kernels::(anonymous namespace)::"
        self.assertEqual(read(f"void {space}RowsKernel<float, (int)8, (bool)1>(dtrain::Args<float>)"),
                         ("RowsKernel", "float, 8, 1"))
        self.assertEqual(read(f"{space}TreeKernel(double*, long, long)"), ("TreeKernel", ""))
        self.assertEqual(
            read(f"void dtrain::kernels::ElementwiseKernel<true, {space}FillBody<float> >(long, "
                 f"{space}FillBody<float>)")[0], "ElementwiseKernel")

    def test_the_wide_form_is_told_by_its_first_number(self):
        for wide in ("float, 8, 2, true", "true, FillBody<float>", "(Fp8Format)0, float, true, false"):
            self.assertTrue(cuda_code.wide_form(wide), wide)
        for other in ("float, 1, 0, true", "false, FillBody<float>", "float", ""):
            self.assertFalse(cuda_code.wide_form(other), other)

    def test_occupancy_is_the_calculators(self):
        occupancy = cuda_code.occupancy
        self.assertEqual(occupancy(256, 32, 0, "sm_80"), 1)
        self.assertEqual(occupancy(256, 33, 0, "sm_80"), 0.75)  # 40 registers: 6 blocks of 8 warps.
        self.assertEqual(occupancy(256, 255, 0, "sm_90a"), 0.125)
        self.assertEqual(occupancy(1024, 64, 0, "sm_90a"), 0.5)
        self.assertEqual(occupancy(32, 16, 0, "sm_100"), 0.5)  # 32 blocks of a warp.
        self.assertEqual(occupancy(128, 32, 48 * 1024, "sm_80"), 3 * 4 / 64)


class CudaCode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if cuda_code.find_cuobjdump() is None:
            raise unittest.SkipTest("no cuobjdump: ./dev deps test brings one")
        cls.kernels, cls.sources = cuda_code.read_build(BUILD)

    def failing(self, rule):
        return sorted({f"{k.source} {k.name} {k.arch}" for k in self.kernels if rule(k)})

    def test_every_source_was_compiled_for_every_architecture(self):
        wanted = set()
        for folder in ("kernels", "comm/nccl"):
            with open(f"{SOURCE}/{folder}/CMakeLists.txt", encoding="utf-8") as file:
                wanted |= set(re.findall(r"^\s+(?:plugin/)?(\w+\.cu)\)?$", file.read(), re.MULTILINE))
        self.assertGreater(len(wanted), 10)
        self.assertEqual(set(self.sources) & wanted, wanted, "objects are missing: build first")
        found = {(k.source, k.arch) for k in self.kernels}
        for source in wanted - {"cuda_launch.cu"}:  # Which holds no kernel.
            for arch in cuda_code.ARCHITECTURES:
                self.assertIn((source, arch), found)

    def test_the_committed_table_is_of_these_sources_and_kernels(self):
        with open(f"{SOURCE}/bench/results/cuda_code.json", encoding="utf-8") as file:
            rows = json.load(file)["rows"]
        kept = {(row["source"], row["kernel"], row["form"], row["arch"]) for row in rows}
        here = {(row["source"], row["kernel"], row["form"], row["arch"])
                for row in cuda_code.summary(self.kernels)}
        self.assertEqual(sorted(kept ^ here), [], "./dev bench cuda writes it anew")

    def test_no_kernel_uses_local_memory(self):
        self.assertEqual(self.failing(lambda k: k.stack + k.local > 0), [])

    def test_every_kernel_has_a_wide_form_or_a_reason(self):
        wide = {(k.source, k.name.split("<")[0]) for k in self.kernels if k.form == "wide"}
        lacking = {k.name.split("<")[0] for k in self.kernels
                   if (k.source, k.name.split("<")[0]) not in wide}
        self.assertEqual(lacking - BOTH - set(NARROW), set(), "a kernel without a reason in NARROW")
        self.assertEqual(set(NARROW) - lacking, set(), "a reason in NARROW for no kernel")

    def held(self):
        return [k for k in self.kernels if k.form == "wide" or k.name.split("<")[0] in BOTH]

    def test_wide_forms_load_sixteen_bytes_at_once(self):
        wrong = [f"{k.source} {k.name} {k.arch}" for k in self.held()
                 if not k.loads.get(128) and not listed(k, LOADS_NOTHING)]
        self.assertEqual(wrong, [])

    def test_wide_forms_store_sixteen_bytes_at_once(self):
        wrong = [f"{k.source} {k.name} {k.arch}" for k in self.held()
                 if not k.stores.get(128) and not listed(k, STORES_NOTHING)]
        self.assertEqual(wrong, [])

    def test_exceptions_are_still_needed(self):
        for names, place in ((LOADS_NOTHING, "loads"), (STORES_NOTHING, "stores")):
            for name in names:
                self.assertTrue(any(listed(k, [name]) and not getattr(k, place).get(128)
                                    for k in self.held()), name)

    def test_wide_forms_leave_room_for_enough_warps(self):
        low = [f"{k.source} {k.name} {k.arch}: {k.occupancy:.0%}" for k in self.held()
               if k.occupancy < OCCUPANCY_MIN]
        self.assertEqual(low, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
