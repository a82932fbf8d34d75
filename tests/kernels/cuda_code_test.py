"""The CUDA kernels as nvcc compiled them, for every architecture: no local memory (so no spills), accesses of 16
bytes in every form for aligned data, in each of its loops and on the way beside them, enough bytes on the way from
memory, conversions by the hardware, and no fp64 for each element. Narrower accesses are listed here with their
reasons; bench/cuda_sass.py says how loops are found.

The resources of every architecture are looked at, and the code of one (READ), which takes most of the
time; cuda_code_all_test of `./dev test long` reads them all."""
import json
import os
import re
import sys
import unittest

SOURCE = os.environ["DTRAIN_SOURCE"]
BUILD = os.environ["DTRAIN_BUILD"]
sys.path.insert(0, f"{SOURCE}/bench")
import cuda_arithmetic  # noqa: E402
import cuda_code  # noqa: E402
import cuda_in_flight  # noqa: E402
import cuda_sass  # noqa: E402

OCCUPANCY_MIN = 0.25
READ = cuda_code.ARCHITECTURES if "DTRAIN_TEST_LONG" in os.environ else ("sm_90a",)

# Wide forms that load nothing, or store nothing, by 16 bytes.
LOADS_NOTHING = {"FillBody": "only writes"}
STORES_NOTHING = {
    "ScaleKernel": "gives two numbers",
    "SquarePartials": "gives one number a block",
    "BlockSquareSumsKernel": "gives a number for each 4,096 elements",
    "RowsKernel<float, 8, false>": "gives two numbers a row",
    "RowsKernel<dtrain::BFloat16, 8, false>": "gives two numbers a row",
}

# Forms for aligned data that load eight codes of a byte: fp32 numbers of sixteen would be stored by half sectors, at
# 54 % of a copy's rate on an H100, where these have 85 to 91 %. The table of bytes on the way counts 16-byte loads.
LOADS_EIGHT = {"FromKernel<(Fp8Format)0, float, true>", "FromKernel<(Fp8Format)1, float, true>",
               "DequantizeKernel<float, true, false>"}
EIGHT_ON_THE_WAY = {("FromKernel", "fp32"), ("DequantizeKernel", "fp32")}

# Kernels whose types are of what they read alone.
ONLY_READ = {"BlockSquareSumsKernel", "QuantizeKernel", "RowsToKernel", "ScaleKernel", "SquarePartials", "ToKernel",
             "TransposeKernel"}

# Narrow accesses that a wide form has once, outside of its loops: how many at most.
SCALARS = {
    "AdamWBody": (11, "the step's scalars"),
    "AdamWStochasticKernel": (13, "the step's scalars and the random stream"),
    "ApplyBody": (4, "the step's scalars"),
    "DequantizeKernel": (2, "a block's scale, and eight codes where fp32 is written"),
    "DirectionBody": (3, "the step's scalars"),
    "DropoutKernel": (2, "the random stream"),
    "ForwardKernel": (2, "a row's mean and rstd"),
    "FromKernel": (2, "the scale, and eight codes where fp32 is written"),
    "MomentsKernel": (4, "the step's scalars, two at once"),
    "OneStateBody": (8, "the step's scalars"),
    "PlainSgdBody": (5, "the step's scalars"),
    "QuantizeKernel": (1, "a block's scale"),
    "RowsToKernel": (1, "a row's scale"),
    "ScaleKernel": (3, "a scale, its inverse and what blocks share, once"),
    "ToKernel": (1, "the scale"),
    "TransposeKernel": (1, "the scale"),
    "cross_entropy.cu RowsKernel": (14, "a row's target, its logit, sums and results, and around its words "
                                        "an element a thread, in both passes"),
    "embedding.cu RowsKernel": (3, "where a row's tokens begin and end, and the first one's number"),
    "rope.cu Kernel": (1, "a token's position"),
}
# Narrow accesses inside a loop of wide ones.
IN_LOOPS = {
    "BackwardKernel": (2, "a row's mean and rstd"),
    "embedding.cu RowsKernel": (4, "a token's number beside its 16 bytes, four tokens at once"),
}
# fp64 operations of a kernel, none of them in each round of a loop over its data: how many at most.
FP64 = {
    "BlockSquareSumsKernel": (72, "numbers whose squares fp32 cannot hold; the block's sum"),
    "MomentsKernel": (116, "the same of two sums"),
    "SquarePartials": (96, "the same"),
    "cross_entropy.cu RowsKernel": (46, "a row's loss"),
    "muon.cu ElementwiseKernel": (6, "the step's scalars, once for eight elements and for each at the end"),
}
# The elements left at the ends are taken one by one, in code of their own.
GRID = {  # The rest has no loop over data: the grid is it.
    "AdamWStochasticKernel": "a run of 64 that is partly beyond the ends",
    "DropoutKernel": "a run of 128 that is partly beyond the end",
    "ElementwiseKernel": "the last seven elements",
}
TAILS = {
    "AddParts": "the last seven elements",
    "BlockSquareSumsKernel": "the last seven elements, and all where the address is odd",
    "Cast": "the last seven elements",
    "MomentsKernel": "the last seven elements, and all where an address is odd",
    "SquarePartials": "the last seven elements",
    **GRID,
}


def listed(kernel, names):
    full = f"{kernel.source} {kernel.name}"
    return next((name for name in names
                 if full.startswith(name) or f" {name}" in full or f"::{name}" in full), None)


def most(kernel, limits):
    name = listed(kernel, limits)
    return limits[name][0] if name else 0


def narrow_once(kernel):
    """Narrow accesses of the straight code that are not for the ends."""
    return kernel.shape.beside + (0 if listed(kernel, TAILS) else kernel.shape.apart)


def faults(kernel):
    """The accesses of less than 16 bytes in forms for aligned data, where they should not be."""
    found = []
    if narrow_once(kernel) > most(kernel, SCALARS):
        found.append(f"{narrow_once(kernel)} narrow accesses outside of loops")
    for loop in kernel.shape.loops:
        if loop.tail and not listed(kernel, TAILS):
            found.append(f"a loop of {loop.narrow} narrow accesses and no wide ones")
        elif not loop.tail and loop.narrow > most(kernel, IN_LOOPS):
            found.append(f"a loop with {loop.narrow} narrow accesses beside {loop.wide} wide ones")
    if kernel.shape.loops and not listed(kernel, GRID) and not any(loop.wide for loop in kernel.shape.loops):
        found.append("no loop of wide accesses")
    return found


def fp8_format(kernel):
    """The format that an FP8 kernel's name has, as instructions write it; None of another kernel."""
    match = re.search(r"\(Fp8Format\)(\d)", kernel.name)
    return match and ("E4M3", "E5M2")[int(match.group(1))]


def writes_bf16(kernel):
    """Whether a form for aligned data stores bf16: its last type, or an optimizer's copy of the weights."""
    name = kernel.name.split("<")[0]
    if name in ONLY_READ or (kernel.source == "cross_entropy.cu" and not kernel.name.endswith("true>")):
        return False
    if re.search(r"(AdamW|OneState|PlainSgd|Apply)Body<(.*, )?true>|AdamWStochasticKernel", kernel.name):
        return True
    types = cuda_in_flight.TYPE.findall(kernel.name)
    loads = cuda_in_flight.kind_of(kernel)[0] not in cuda_in_flight.EXEMPT
    return bool(types) and cuda_in_flight.TYPES[types[-1]] == "bf16" and loads


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
        self.assertEqual(occupancy(256, 32, 0, "sm_120"), 1)  # 48 warps.
        self.assertEqual(occupancy(32, 16, 0, "sm_120"), 0.5)  # 24 blocks.


def code_of(*lines):
    """Instructions as cuobjdump writes them, sixteen bytes apart from 0 on."""
    text = "".join(f"        /*{16 * i:04x}*/                   {line} ;       /* 0x0000000000007919 */\n"
                   f"{' ' * 90}/* 0x000e220000002500 */\n" for i, line in enumerate(lines))
    (code,) = cuda_sass.functions(f"arch = sm_90a\n\t\tFunction : one\n{text}").values()
    return code


def kernel_of(*lines, name="SomeKernel<float, 8>"):
    code = code_of(*lines)
    graph = cuda_sass.Graph(code)
    loads, stores = cuda_sass.widths(code)
    return cuda_code.Kernel("some.cu", "some", name, "wide", "sm_90a", 32, 0, 0, 0, 256, loads, stores,
                            cuda_sass.shape(graph), 1.0, cuda_in_flight.loaded(code), cuda_arithmetic.of(code, graph))


WIDE, NARROW_LOAD, NARROW_STORE = "LDG.E.128 R4, [R2.64]", "LDG.E.U16 R8, desc[UR4][R6.64+0x2]", "STG.E [R2.64], R8"


class Loops(unittest.TestCase):
    def test_accesses_are_read_with_their_widths(self):
        loads, stores = cuda_sass.widths(code_of(
            "LDG.E R0, [R2.64]", "@P0 LDG.E.64.CONSTANT R4, desc[UR4][R2.64]", "LDG.E.U8 R1, [R2.64]", WIDE,
            NARROW_LOAD, "LD.E.128 R4, [R2]", "@!P1 STG.E.128 desc[UR6][R2.64+0x10], R4", "STG.E.EF.64 [R2.64], R4",
            "LDS.128 R4, [R2]", "LDL R4, [R2]", "LDC.64 R2, c[0x0][0x210]", "EXIT"))
        self.assertEqual(loads, {32: 1, 64: 1, 8: 1, 128: 2, 16: 1})
        self.assertEqual(stores, {128: 1, 64: 1})

    def test_a_loop_of_wide_accesses_with_a_scalar_before_it_is_one(self):
        kernel = kernel_of(NARROW_LOAD, WIDE, "STG.E.128 [R2.64], R4", "@P0 BRA 0x10", "EXIT")
        self.assertEqual(kernel.shape, ([(2, 0, False)], 1, 0))
        self.assertEqual(faults(kernel), ["1 narrow accesses outside of loops"])

    def test_a_narrow_loop_behind_a_wide_load_is_found(self):
        kernel = kernel_of(WIDE, NARROW_LOAD, NARROW_STORE, "@P0 BRA 0x10", "EXIT")
        self.assertEqual(kernel.shape, ([(0, 2, False)], 0, 0))
        self.assertEqual(faults(kernel), ["a loop with 2 narrow accesses beside 0 wide ones",
                                          "no loop of wide accesses"])

    def test_a_narrow_loop_behind_a_wide_load_that_may_be_skipped_is_found(self):
        lines = ("@P1 BRA 0x20", WIDE, NARROW_LOAD, "@P0 BRA 0x20", "EXIT")
        self.assertEqual(kernel_of(*lines).shape, ([(0, 1, True)], 0, 0))
        self.assertIn("a loop of 1 narrow accesses and no wide ones", faults(kernel_of(*lines)))
        self.assertEqual(faults(kernel_of(*lines, name="Cast<8, float>")), ["no loop of wide accesses"])

    def test_one_narrow_stream_in_a_wide_loop_is_found(self):
        kernel = kernel_of(WIDE, *[NARROW_STORE] * 4, "@P0 BRA 0x0", "EXIT", name="Cast<8, float>")
        self.assertEqual(faults(kernel), ["a loop with 4 narrow accesses beside 1 wide ones"])

    def test_one_narrow_stream_of_a_grid_is_told_from_its_ends(self):
        ends = ("@P1 BRA 0x50", WIDE, WIDE, "STG.E.128 [R2.64], R4", "EXIT",
                NARROW_LOAD, NARROW_STORE, "@P0 BRA 0x50", "EXIT")
        name = "ElementwiseKernel<true, ScaleBody<float>>"
        self.assertEqual(faults(kernel_of(*ends, name=name)), [])
        narrow = (*ends[:2], NARROW_LOAD, *ends[3:])
        self.assertEqual(faults(kernel_of(*narrow, name=name)), ["1 narrow accesses outside of loops"])

    def test_an_access_belongs_to_the_innermost_loop(self):
        kernel = kernel_of("NOP", NARROW_LOAD, "NOP", WIDE, "@P0 BRA 0x30", "@P1 BRA.U 0x10", "EXIT")
        self.assertEqual(kernel.shape, ([(1, 0, False), (0, 1, False)], 0, 0))

    def test_code_set_aside_that_jumps_back_is_no_loop(self):
        kernel = kernel_of("@P0 BRA 0x40", WIDE, "STG.E.128 [R2.64], R4", "EXIT", "MOV R1, R2", "BRA 0x10")
        self.assertEqual(kernel.shape, ([], 0, 0))

    def test_threads_that_meet_again_and_calls_are_followed(self):
        kernel = kernel_of("BSSY B0, 0x40", "@P0 BRA 0x30", "CALL.REL.NOINC 0x60", "BSYNC B0", NARROW_LOAD,
                           "@P1 BRA P2, 0x0", "LDG.E R1, [R2.64]", "RET.REL.NODEC R2 0x0")
        self.assertEqual(kernel.shape, ([(0, 1, True)], 0, 1))

    def test_a_jump_that_cannot_be_followed_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "no jump leads to the access at 0x10"):
            kernel_of("BRX R2 -0x10", WIDE, "EXIT")


class CudaCode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if cuda_code.find_cuobjdump() is None:
            raise unittest.SkipTest("no cuobjdump: ./dev deps test brings one")
        cls.kernels, cls.sources = cuda_code.read_build(BUILD, READ)
        cuobjdump = cuda_code.find_cuobjdump()
        cls.usage = {os.path.basename(path).removesuffix(".o"): cuda_code.resources(cuobjdump, path)
                     for path in cuda_code.objects_of(BUILD)}

    def test_every_source_was_compiled_for_every_architecture(self):
        wanted = set()
        for folder in ("kernels", "comm/nccl"):
            with open(f"{SOURCE}/{folder}/CMakeLists.txt", encoding="utf-8") as file:
                wanted |= set(re.findall(r"^\s+(?:\w+/)?(\w+\.cu)\)?$", file.read(), re.MULTILINE))
        self.assertGreater(len(wanted), 10)
        self.assertEqual(set(self.sources) & wanted, wanted, "objects are missing: build first")
        found = {(source, arch) for source, usage in self.usage.items() for arch, _ in usage}
        for source in wanted:
            for arch in cuda_code.ARCHITECTURES:
                self.assertIn((source, arch), found)

    def test_every_architecture_from_8_0_on_has_code_or_ptx(self):
        cuobjdump = cuda_code.find_cuobjdump()
        for path in cuda_code.objects_of(BUILD):
            self.assertIn(cuda_code.PTX, cuda_code.ptx_architectures(cuobjdump, path), path)

    def test_every_architecture_of_the_build_is_held_to_these_rules(self):
        with open(f"{SOURCE}/cmake/DtrainCuda.cmake", encoding="utf-8") as file:
            (default,) = re.findall(r'set\(DTRAIN_CUDA_ARCHITECTURES "([^"]+)"', file.read())
        real = {f"sm_{word.removesuffix('-real')}" for word in default.split(";") if word.endswith("-real")}
        self.assertEqual(real, set(cuda_code.ARCHITECTURES))

    def test_the_committed_table_is_of_these_sources_and_kernels(self):
        with open(f"{SOURCE}/bench/results/cuda_code.json", encoding="utf-8") as file:
            committed = json.load(file)
        for key, rows, words in (("rows", cuda_code.summary(self.kernels), ("source", "kernel", "form", "arch")),
                                 ("in_flight", [row._asdict() for row in self.in_flight()],
                                  ("source", "kernel", "types", "width", "arch"))):
            kept = {tuple(str(row[word]) for word in words) for row in committed[key] if row["arch"] in READ}
            here = {tuple(str(row[word]) for word in words) for row in rows}
            self.assertEqual(sorted(kept ^ here), [], "./dev bench cuda writes it anew")

    def test_no_kernel_uses_local_memory(self):
        self.assertEqual(sorted(f"{function} {arch}" for usage in self.usage.values()
                                for (arch, function), facts in usage.items()
                                if "dtrain" in function and facts["STACK"] + facts["LOCAL"] > 0), [])

    def test_every_kernel_has_a_wide_form_or_a_reason(self):
        wide = {(k.source, k.name.split("<")[0]) for k in self.kernels if k.form == "wide"}
        lacking = {k.name.split("<")[0] for k in self.kernels
                   if (k.source, k.name.split("<")[0]) not in wide} - cuda_in_flight.BOTH
        self.assertEqual(lacking, set(cuda_in_flight.NARROW), "each has a reason there, and nothing else")

    def held(self):
        return [k for k in self.kernels if cuda_in_flight.is_held(k)]

    def test_wide_forms_load_sixteen_bytes_at_once(self):
        wrong = [f"{k.source} {k.name} {k.arch}" for k in self.held()
                 if not k.loads.get(128) and not listed(k, LOADS_NOTHING) and not listed(k, LOADS_EIGHT)]
        self.assertEqual(wrong, [])

    def test_wide_forms_store_sixteen_bytes_at_once(self):
        wrong = [f"{k.source} {k.name} {k.arch}" for k in self.held()
                 if not k.stores.get(128) and not listed(k, STORES_NOTHING)]
        self.assertEqual(wrong, [])

    def test_hot_code_of_wide_forms_goes_by_sixteen_bytes(self):
        wrong = [f"{k.source} {k.name} {k.arch}: {fault}" for k in self.held() for fault in faults(k)]
        self.assertEqual(wrong, [])

    def test_the_rule_finds_every_form_that_is_narrow(self):
        wide = {(k.source, k.name.split("<")[0]) for k in self.kernels if k.form == "wide"}
        narrow = [k for k in self.kernels if k.form == "other" and (k.source, k.name.split("<")[0]) in wide
                  and not listed(k, GRID)]
        self.assertGreater(len(narrow), 50)
        self.assertEqual([f"{k.source} {k.name} {k.arch}" for k in narrow if not faults(k)], [])

    def test_limits_on_narrow_accesses_are_still_needed(self):
        for name in SCALARS:
            self.assertTrue(any(narrow_once(k) for k in self.held() if listed(k, [name])), name)
        for name in IN_LOOPS:
            self.assertTrue(any(loop.narrow and not loop.tail for k in self.held() if listed(k, [name])
                                for loop in k.shape.loops), name)
        for name in TAILS:
            self.assertTrue(any(k.shape.apart or any(loop.tail for loop in k.shape.loops)
                                for k in self.held() if listed(k, [name])), name)

    def test_exceptions_are_still_needed(self):
        for names, place in ((LOADS_NOTHING, "loads"), (LOADS_EIGHT, "loads"), (STORES_NOTHING, "stores")):
            for name in names:
                self.assertTrue(any(listed(k, [name]) and not getattr(k, place).get(128)
                                    for k in self.held()), name)

    def in_flight(self):
        return cuda_in_flight.rows(self.kernels, cuda_code.resident_blocks)

    def test_every_kernel_for_aligned_data_is_in_the_table_of_bytes_on_the_way(self):
        rows = {(row.source, row.kernel, row.types, row.arch): set() for row in self.in_flight()}
        for row in self.in_flight():
            rows[row.source, row.kernel, row.types, row.arch].add(row.width)
        used = set()
        for k in self.held():
            launch, kind = cuda_in_flight.launch_of(k), cuda_in_flight.kind_of(k)
            self.assertIsNotNone(launch, f"{k.source} {k.name} has no launch in cuda_in_flight.LAUNCHES")
            used.add(id(launch))
            if kind[0] not in cuda_in_flight.EXEMPT:
                self.assertEqual(rows.get((k.source, *kind, k.arch)), set(launch.widths), k.name)
        self.assertEqual([name for name, launch in cuda_in_flight.LAUNCHES.items() if id(launch) not in used], [])

    def test_memory_bound_kernels_have_enough_bytes_on_the_way(self):
        rows = self.in_flight()
        norms = {(row.source, row.kernel, row.types, row.width) for row in rows
                 if row.source in ("layernorm.cu", "rmsnorm.cu")}
        self.assertEqual(len(norms), 2 * 2 * 2 * 3, "two norms, both ways, two types, three widths")
        # A B200 needs more than that for its full rate, and a 5090 less.
        low = [f"{row.source} {row.kernel} {row.types} at {row.width} on {row.machine}: {row.bytes / 1024:.1f} KiB, "
               f"{row.share:.0%}" for row in rows
               if (row.kernel, row.types) not in EIGHT_ON_THE_WAY and (
                   row.bytes < cuda_in_flight.BYTES_MIN
                   or (row.machine in ("A100", "H100") and row.share < cuda_in_flight.SHARE_MIN))]
        self.assertEqual(low, [])

    def test_what_is_not_held_to_bytes_on_the_way_loads_nothing_by_16_bytes(self):
        exempt = [k for k in self.held() if cuda_in_flight.kind_of(k)[0] in cuda_in_flight.EXEMPT]
        self.assertEqual({cuda_in_flight.kind_of(k)[0] for k in exempt}, set(cuda_in_flight.EXEMPT))
        self.assertEqual({k.in_flight for k in exempt}, {0})

    def test_rows_are_gone_over_as_often_as_their_headers_say(self):
        passes = {(row.source, row.kernel): row.passes for row in self.in_flight()}
        often = {key: count for key, count in passes.items() if count != 1}
        self.assertEqual(often, {("cross_entropy.cu", "RowsKernel + gradient"): 2, ("fp8.cu", "RowsToKernel"): 2,
                                 ("int8_blocks.cu", "QuantizeKernel"): 2})
        self.assertEqual(passes["cross_entropy.cu", "RowsKernel"], 1)

    def test_numbers_are_rounded_by_the_hardwares_conversions(self):
        wrong, packed = [], set()
        for k in self.kernels:
            packs, codes = k.arithmetic.packs, fp8_format(k)
            by_integers = codes and k.arch == "sm_80"  # It has no conversion to FP8.
            if k.arithmetic.integers and not by_integers:
                wrong.append(f"{k.source} {k.name} {k.arch} rounds {k.arithmetic.integers} numbers by integers")
            if cuda_in_flight.is_held(k) and writes_bf16(k) and packs.get("BF16", 0) < 4:
                wrong.append(f"{k.source} {k.name} {k.arch} writes bf16 by other conversions: {packs}")
            if cuda_in_flight.is_held(k) and codes and not by_integers:
                found = k.arithmetic.unpacks if k.name.startswith("FromKernel") else packs
                if found.get(codes, 0) < (4 if listed(k, LOADS_EIGHT) else 8):  # Two numbers each.
                    wrong.append(f"{k.source} {k.name} {k.arch} casts by other conversions: {found}")
            packed |= {(k.source, word) for word in packs}
        self.assertEqual(wrong, [])
        self.assertLess({("rmsnorm.cu", "BF16"), ("layernorm.cu", "BF16"), ("adamw.cu", "BF16"), ("flat.cu", "BF16"),
                         ("activation.cu", "BF16"), ("fp8.cu", "E4M3"), ("fp8.cu", "E5M2")}, packed)

    def test_no_element_costs_fp64(self):
        wrong = [f"{k.source} {k.name} {k.arch}: {k.arithmetic.fp64} of fp64, {k.arithmetic.fp64_rounds} in each round"
                 for k in self.kernels if k.name.split("<")[0] not in cuda_in_flight.NARROW
                 and (k.arithmetic.fp64 > most(k, FP64) or (k.arithmetic.fp64_rounds > 0 and not listed(k, GRID)))]
        self.assertEqual(wrong, [])
        for name in FP64:
            self.assertTrue(any(k.arithmetic.fp64 for k in self.held() if listed(k, [name])), name)

    def test_wide_forms_leave_room_for_enough_warps(self):
        low = [f"{k.source} {k.name} {k.arch}: {k.occupancy:.0%}" for k in self.held()
               if k.occupancy < OCCUPANCY_MIN]
        # The same kernels elsewhere: a function's name and its block are those of every architecture.
        threads = {k.function: k.threads for k in self.held()}
        for usage in self.usage.values():
            for (arch, function), facts in usage.items():
                share = cuda_code.occupancy(threads[function], facts["REG"],
                                            cuda_code.own_shared(arch, facts), arch) \
                    if function in threads else 1
                if share < OCCUPANCY_MIN:
                    low.append(f"{function} {arch}: {share:.0%}")
        self.assertEqual(low, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
