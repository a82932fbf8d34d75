"""Tests what bench/cuda_in_flight.py and bench/cuda_arithmetic.py read from instructions that are written here, and
what the kernels' headers say of NaN. cuda_code_test.py holds the kernels themselves to the figures.
"""
import glob
import os
import re
import sys
import unittest

SOURCE = os.environ["DTRAIN_SOURCE"]
sys.path.insert(0, f"{SOURCE}/bench")
import cuda_arithmetic  # noqa: E402
import cuda_code  # noqa: E402
import cuda_in_flight  # noqa: E402
import cuda_sass  # noqa: E402
from cuda_code_test import NARROW_LOAD, WIDE, code_of, kernel_of  # noqa: E402


class InFlight(unittest.TestCase):
    def test_loads_count_until_something_uses_one_of_them(self):
        loaded = cuda_in_flight.loaded
        two = (WIDE, "LDG.E.128 R8, [R2.64+0x10]")
        self.assertEqual(loaded(code_of(*two, "FADD R12, R4, R8", "EXIT")), 32)
        self.assertEqual(loaded(code_of(two[0], "FADD R12, R7, R1", two[1], "EXIT")), 16)
        self.assertEqual(loaded(code_of(two[0], "FADD R12, R13, R1", two[1], "EXIT")), 32)
        self.assertEqual(loaded(code_of(NARROW_LOAD, "EXIT")), 0)
        self.assertEqual(loaded(code_of("LDG.E.128 R4, [R4.64]", "LDG.E.128 R8, [R4.64]", "EXIT")), 16)

    def test_nothing_is_on_the_way_behind_code_that_goes_elsewhere(self):
        loaded = cuda_in_flight.loaded
        two = (WIDE, "LDG.E.128 R8, [R2.64+0x10]")
        for jump in ("EXIT", "BRA 0x0", "RET.REL.NODEC R2 0x0"):
            self.assertEqual(loaded(code_of(two[0], jump, two[1], "EXIT")), 16, jump)
        for jump in ("@P0 EXIT", "@!P0 BRA 0x0", "BRA P2, 0x0"):
            self.assertEqual(loaded(code_of(two[0], jump, two[1], "EXIT")), 32, jump)

    def test_bytes_on_the_way_follow_from_the_launch_and_what_is_resident(self):
        def row(name, source, width, *lines):
            return cuda_in_flight.estimate(kernel_of(*lines, name=name)._replace(source=source), width,
                                           cuda_code.resident_blocks)
        two = (WIDE, "LDG.E.128 R8, [R2.64+0x10]", "EXIT")
        flat = row("ElementwiseKernel<true, ScaleBody<float>>", "flat.cu", None, *two)
        self.assertEqual((flat.threads, flat.blocks, flat.loaded, flat.bytes), (256, 8, 32, 8 * 256 * 32))
        # An H100 needs 3.35e12 * 650e-9 bytes, which 132 multiprocessors share.
        one = row("ElementwiseKernel<true, ScaleBody<float>>", "flat.cu", None, WIDE, "EXIT")
        self.assertEqual(one.share, 1)
        slow = kernel_of(WIDE, "EXIT")._replace(registers=255, source="cross_entropy.cu", threads=512,
                                                name="RowsKernel<float, 8, true>")
        slow = cuda_in_flight.estimate(slow, 50304, lambda *_: 1)
        self.assertAlmostEqual(slow.share, 512 * 16 * 132 / (3.35e12 * 650e-9))
        self.assertEqual(slow.kernel, "RowsKernel + gradient")
        narrow = row("Kernel<float, true>", "rope.cu", 768, *two)
        self.assertEqual((narrow.threads, narrow.blocks), (96, 21))
        # A norm's backward has no more blocks than chunks, and a width has one instantiation.
        norm = "BackwardKernel<float, 8, 2, 0, true>"
        self.assertEqual(row(norm, "rmsnorm.cu", 4096, *two).blocks, 2)
        self.assertIsNone(row(norm, "rmsnorm.cu", 768, *two))

    def test_the_row_of_a_kind_is_its_worst(self):
        kernels = [kernel_of(*lines, "EXIT", name=f"ElementwiseKernel<true, ForwardBody<(Activation){i}, float>>")
                   for i, lines in enumerate(((WIDE, "LDG.E.128 R8, [R2.64+0x10]"), (WIDE,)))]
        (row,) = cuda_in_flight.rows(kernels, cuda_code.resident_blocks)
        self.assertEqual((row.kernel, row.types, row.loaded), ("ForwardBody", "fp32", 16))
        self.assertIn("ForwardBody", cuda_in_flight.table([row]))
        self.assertEqual(cuda_in_flight.kind_of(kernels[0]._replace(name="Cast<8, float, __nv_bfloat16>")),
                         ("Cast", "fp32 bf16"))

    def test_plans_are_those_of_the_kernels(self):
        with open(f"{SOURCE}/kernels/cuda/row_chunks.h", encoding="utf-8") as file:
            text = file.read()
        most = int(re.search(r"kRowChunksMaxCuda = (\d+);", text).group(1))
        self.assertEqual([cuda_in_flight.PLANS[width][3] for width in cuda_in_flight.WIDTHS], [most, most, most // 2])


def arithmetic_of(*lines):
    code = code_of(*lines)
    return cuda_arithmetic.of(code, cuda_sass.Graph(code))


class Computing(unittest.TestCase):
    def test_passes_are_loops_of_wide_loads_behind_a_reduction(self):
        def passes(*lines):
            return arithmetic_of(*lines).passes
        first, second = (WIDE, "@P0 BRA 0x0"), (WIDE, "@P0 BRA 0x30")
        self.assertEqual(passes(*first, "EXIT"), 1)
        self.assertEqual(passes(*first, "NOP", *second, "EXIT"), 1, "a loop's rest")
        self.assertEqual(passes(*first, "SHFL.BFLY PT, R1, R2, 0x10, 0x1f", *second, "EXIT"), 2)
        self.assertEqual(passes(WIDE, "BAR.SYNC.DEFER_BLOCKING 0x0", WIDE, "@P0 BRA 0x0", "EXIT"), 1)
        self.assertEqual(passes(WIDE, "BAR.SYNC.DEFER_BLOCKING 0x0", "STG.E.128 [R2.64], R4", "EXIT"), 1)

    def test_fp64_counts_where_each_round_comes_by(self):
        def fp64(*lines):
            arithmetic = arithmetic_of(*lines)
            return arithmetic.fp64, arithmetic.fp64_rounds
        self.assertEqual(fp64(WIDE, "DADD R4, R4, R6", "@P0 BRA 0x0", "EXIT"), (1, 1))
        self.assertEqual(fp64(WIDE, "@P1 BRA 0x30", "DFMA R4, R4, R6, R8", "@P0 BRA 0x0", "EXIT"), (1, 0))
        self.assertEqual(fp64(WIDE, "@P1 DADD R4, R4, R6", "@P0 BRA 0x0", "EXIT"), (1, 0))
        self.assertEqual(fp64(WIDE, "@P0 BRA 0x0", "DMUL R4, R4, R6", "EXIT"), (1, 0))
        self.assertEqual(fp64("LDS.128 R4, [R2]", "DADD R4, R4, R6", "@P0 BRA 0x0", "EXIT"), (1, 0))

    def test_conversions_are_told_from_integer_operations(self):
        arithmetic = arithmetic_of(
            "F2FP.BF16.F32.PACK_AB R4, R5, R4", "F2FP.BF16.PACK_AB R4, RZ, R4", "F2FP.F16.F32.PACK_AB R4, R5, R4",
            "F2FP.SATFINITE.E4M3.F32.PACK_AB_MERGE_C R4, R5, R4, RZ", "F2FP.F16.E5M2.UNPACK_B R4, R5",
            "IADD3 R4, R5, 0x7fff, R6", "IADD3 R4, R5, 0x7fffffff, R6", "LOP3.LUT R4, R5, 0x7fff, RZ, 0xc0, !PT",
            "VIADD R4, R5, 0xfffff", "EXIT")
        self.assertEqual((arithmetic.packs, arithmetic.unpacks, arithmetic.integers),
                         ({"BF16": 2, "E4M3": 1}, {"E5M2": 1}, 2))


PROMISE = re.compile(r"same bits[^;]*CUDA|CUDA[^;]*same bits|bits are the same|bits of the (?:CPU|host's)",
                     re.IGNORECASE)


class Headers(unittest.TestCase):
    def test_a_header_that_promises_the_bits_of_the_cpu_says_what_a_nan_is_on_cuda(self):
        promises = []
        for path in sorted(path for folder in ("kernels", "comm", "runtime")
                           for path in glob.glob(f"{SOURCE}/{folder}/**/*.h", recursive=True)):
            with open(path, encoding="utf-8") as file:
                head = file.read().split("#pragma once")[0]
            for sentence in re.split(r"\.\s", " ".join(head.replace("//", " ").split())):
                if PROMISE.search(sentence):
                    promises.append(os.path.basename(path))
                    self.assertIn("NaN", sentence, path)
        self.assertGreaterEqual(len(promises), 17, promises)
        self.assertLess({"packed_on_device.h", "partitioned_on_device.h"}, set(promises))


if __name__ == "__main__":
    unittest.main(verbosity=2)
