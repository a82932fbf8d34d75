"""The shape of the code: layers of runtime/, folders and functions that are not too large, and no
declaration that nothing uses. Each rule is a function of paths and texts, tested on made-up ones."""
import collections
import os
import re
import unittest

from cpp_text import Source
from tree import CODE, includes_in, sources, text_of

# Bottom to top. A file includes files of its own folder and of those below it.
LAYERS = ("plan", "device", "memory", "offload", "model", "ops", "gradients", "shard", "optimizer", "metrics", "job",
          "data", "engine", "checkpoint")
UPWARD = {}  # "FILE includes FILE": the reason. At most 3.

FILES_IN_FOLDER_MAX = 40
FUNCTION_LINES_MAX = 70
MEMBERS_MAX = 16
# Rooms whose classes have at most so many data members.
FEW_MEMBERS = ("comm/compression/", "launcher/ranks/", "runtime/engine/", "runtime/gradients/", "runtime/optimizer/",
               "runtime/shard/")
# "FILE: NAME" of functions that are longer, and why.
LONG_FUNCTIONS = {
    "kernels/layers/layernorm.cu: BackwardKernel": "its registers are counted: parts of it would spill",
    "kernels/layers/rmsnorm.cu: BackwardKernel": "its registers are counted: parts of it would spill",
}

# These repeat the declarations of other libraries in full, whichever of them dtrain reads.
FOREIGN = {"base/dl/nvml.h", "base/dl/verbs.h", "comm/nccl/nccl_api.h"}
# Twins of seams stand beside the real ones, though only tests use them.
SEAMS = ("Fake", "Faulty", "MemoryFileSystem")
# State machines that simulations drive: time and messages are arguments, and there are no files.
CORES = tuple(f"launcher/{name}." for name in (
    "nodes/coordinator_state", "nodes/elastic_job", "nodes/elastic_job_adopt", "nodes/elastic_job_aside",
    "nodes/elastic_job_end", "nodes/lobby_inbox", "nodes/lobby_messages", "nodes/world_choice", "restart"))
OUTSIDE = r'#include [<"](?:base/(?:file|clock|deadline)|fstream|filesystem|fcntl|unistd|poll|sys/|chrono|thread)'
# Declarations without a use that this test sees, or that only tests and benchmarks use: the reasons.
KEPT = {
    "TORCH_MODULE": "a macro of LibTorch",
    "AbslHashValue": "the hash that containers of Abseil look for",
    "kDebug": "the least level, which LogLevelFromName makes from a number",
    "SetLogLevel": "tests of failures silence their warnings",
    "DT_CHECK_OK": "programs of bench/ and tests end with it where nobody takes a Status",
    "DT_CHECK_LT": "one of a family; the fake of verbs uses it",
    "ActiveVariant": "programs of bench/ and tests name the variant that they run",
    "Crash": "what the file system of a seam does to its files",
    "EndProcess": "the same, where the process alone ends",
    "FindLatest": "tests look with it at what a run would go on from",
    "MakePosixStorage": "the storage over a seam, which tests exchange for one that fails",
    "NewMemoryStore": "the twin of a seam: the store of ranks that are threads",
    "FlightRecord": "tests count the collectives of a step in it",
    "futex_calls": "a test counts calls of the kernel with it",
    "kept_bytes": "a test checks the bound of the cache with it",
    "AdamWCpuBf16Grad": "./dev bench kernels measures bf16 gradients, which the engine sums in fp32",
    "AdamWCudaBf16Grad": "likewise",
    "CastFromFp8Cpu": "tests and benchmarks read FP8 codes with it; products read them themselves",
    "CastFromFp8Cuda": "likewise",
    "under_way": "a test checks with it what a ring holds",
}


def layer_of(path):
    """The number of the layer of a path in runtime/, or None: a public header belongs to no layer."""
    parts = path.split("/")
    return LAYERS.index(parts[1]) if parts[0] == "runtime" and parts[1] in LAYERS else None


def upward_includes(texts):
    """{path: text} -> the includes that go up."""
    wrong = []
    for path, text in texts.items():
        if not path.startswith("runtime/"):
            continue
        for include in includes_in(text):
            here, there = layer_of(path), layer_of(include)
            if include.startswith("runtime/") and (here is None or there is None or there > here):
                wrong.append(f"{path} includes {include}")
    return wrong


def full_folders(paths):
    count = collections.Counter(os.path.dirname(path) for path in paths)
    return [f"{folder}: {files} files" for folder, files in sorted(count.items()) if files > FILES_IN_FOLDER_MAX]


def long_functions(read):
    """{path: Source} -> {"FILE: NAME": lines}."""
    return {f"{path}: {name}": length for path, source in read.items() for name, length in source.functions
            if length > FUNCTION_LINES_MAX}


def large_classes(read):
    """{path: Source} -> {"FILE: CLASS": data members}."""
    return {f"{path}: {name}": members for path, source in read.items() for name, members in source.members.items()
            if members > MEMBERS_MAX}


def is_of_tests(path):
    return path.startswith(("tests/", "bench/")) or "/fake" in path


def unused_names(read):
    """{path: Source} -> {name: header} of what headers declare and nothing but tests uses.

    Equal names are one name. A use within the definition of the same name is none. The CPU form of a
    CUDA kernel is used by its comparison with it."""
    declared, accessors, used = {}, {}, set()
    for path, source in read.items():
        if path.endswith((".h", ".cuh")) and not is_of_tests(path):
            for name, is_function in source.declared:
                declared.setdefault(name, path)
                accessors[name] = accessors.get(name, True) and is_function and name.islower()
    for path, source in read.items():
        if not is_of_tests(path):
            # A variable may have the name of an accessor.
            used.update(name for name, after, within in source.used
                        if name not in within and (after in ("(", "<") or not accessors.get(name)))
    return {name: path for name, path in declared.items()
            if name not in used and not name.startswith(SEAMS) and not name.endswith("ForTesting")
            and not ("Cpu" in name and name.replace("Cpu", "Cuda") in used)
            and not (name.endswith("Impl") and name[:-4] in used)}  # TORCH_MODULE(Name) uses NameImpl.


READ = {path: Source(text_of(path)) for path in CODE}
PUBLIC = {"base/json.h", "base/status.h"}  # The package has them and runtime/include.


class Shape(unittest.TestCase):
    maxDiff = None

    def test_every_file_can_be_read(self):
        self.assertEqual([path for path, source in READ.items() if not source.is_balanced], [])

    def test_runtime_includes_no_layer_above(self):
        found = set(upward_includes({path: text_of(path) for path in CODE}))
        self.assertEqual(sorted(found ^ set(UPWARD)), [])
        self.assertLessEqual(len(UPWARD), 3)

    def test_every_folder_of_runtime_is_a_layer(self):
        folders = {path.split("/")[1] for path in CODE if path.startswith("runtime/") and path.count("/") > 1}
        self.assertEqual(sorted(folders - {"include"}), sorted(LAYERS))

    def test_folders_hold_few_files(self):
        self.assertEqual(full_folders(sources(".h", ".cc", ".cu", ".cuh", ".py")), [])

    def test_simulated_cores_know_no_files_clock_or_network(self):
        self.assertEqual([(path, found) for path in CODE if path.startswith(CORES)
                          if (found := re.findall(OUTSIDE, text_of(path)))], [])
        self.assertEqual(len({path.split(".")[0] for path in CODE if path.startswith(CORES)}), len(CORES))

    def test_functions_fit_a_screen(self):
        found = long_functions({path: source for path, source in READ.items() if not path.startswith("tests/")})
        self.assertEqual({name: length for name, length in found.items() if name not in LONG_FUNCTIONS}, {})
        self.assertEqual(sorted(set(LONG_FUNCTIONS) - set(found)), [], "are short by now")

    def test_classes_have_few_members(self):
        self.assertEqual(large_classes({path: source for path, source in READ.items()
                                        if path.startswith(FEW_MEMBERS)}), {})

    def test_what_headers_declare_is_used(self):
        unused = {name: path for name, path in unused_names(READ).items()
                  if path not in FOREIGN | PUBLIC and not path.startswith("runtime/include/")}
        self.assertEqual({name: path for name, path in unused.items() if name not in KEPT}, {})
        self.assertEqual(sorted(set(KEPT) - set(unused)), [], "are used by now, or gone")


class Rules(unittest.TestCase):
    maxDiff = None

    def test_an_include_of_a_layer_above_is_noticed(self):
        wrong = upward_includes({
            "runtime/ops/a.cc": '#include "runtime/ops/a.h"\n#include "runtime/model/b.h"\n#include <vector>\n',
            "runtime/model/b.cc": '// Why.\n  #  include "runtime/ops/a.h"\n',
            "runtime/include/dtrain/c.h": '#include "runtime/plan/d.h"\n',
            "tests/runtime/ops/a_test.cc": '#include "runtime/engine/e.h"\n'})
        self.assertEqual(wrong, ["runtime/model/b.cc includes runtime/ops/a.h",
                                 "runtime/include/dtrain/c.h includes runtime/plan/d.h"])

    def test_a_full_folder_is_noticed(self):
        self.assertEqual(full_folders([f"a/{i}.cc" for i in range(40)] + ["a/b/c.cc"]), [])
        self.assertEqual(full_folders([f"a/{i}.cc" for i in range(41)]), ["a: 41 files"])

    def functions(self, text):
        return Source(text).functions

    def test_a_long_function_is_noticed(self):
        body = "  Go();\n" * (FUNCTION_LINES_MAX - 2)
        self.assertEqual(long_functions({"a.cc": Source("void F() {\n" + body + "}\n")}), {})
        self.assertEqual(long_functions({"a.cc": Source("void F() {\n\n" + body + "}\n")}), {"a.cc: F": 71})

    def test_a_class_of_many_members_is_noticed(self):
        inner = "  struct B {\n    int c_;\n    int d() const { return c_; }\n  };\n"
        text = ("class A {\n public:\n  A();\n  static constexpr int kE = 1;\n  friend class F;\n" + inner +
                " private:\n  std::vector<int> g_ = {1};\n  H h_{g_, 1};\n  std::function<int(int)> i_;\n")
        self.assertEqual(Source(text + "};\nint j = 0;\n").members, {"A": 3, "A::B": 1})
        more = "".join(f"  int k{i}_ = 0;\n" for i in range(MEMBERS_MAX - 3))
        self.assertEqual(large_classes({"a.h": Source(text + more + "};\n")}), {})
        self.assertEqual(large_classes({"a.h": Source(text + more + "  int l_;\n};\n")}), {"a.h: A": 17})

    def test_lambdas_count_to_their_function_and_tables_to_none(self):
        self.assertEqual(self.functions("int A::F() {\n  const auto g = [] {\n    return 1;\n  };\n  return g();\n}\n"
                                        "constexpr Row kRows[] = {\n  {F(1)},\n  {2},\n};\n"), [("F", 6)])

    def test_comments_strings_and_initializers_open_no_body(self):
        self.assertEqual(
            self.functions('// {\nconst char* A() {\n  return "}{" /* { */;\n}\nconst char* B() {\n'
                           '  return R"x({)")x";\n}\nC::C(int a)\n    : a_{a},\n      b_{1\'0, \'{\'} {\n}\n'
                           "#define DT_OPEN {\nint D(std::vector<int> v = {1}) noexcept { return 1; }\n"
                           "namespace e {\ntemplate <typename T = int>\nstruct F : G<int(T)> {\n  T f() const {\n"
                           "    return {};\n  }\n  int g_{2};\n};\n}\n"
                           'extern "C" {\nint H() { return 1; }\n}\nextern "C" int I() {\n  return 1;\n}\n'),
            [("A", 3), ("B", 3), ("C", 2), ("D", 1), ("f", 3), ("H", 1), ("I", 3)])

    def test_braces_without_a_partner_are_noticed(self):
        for text, balanced in (("namespace a {\nint b[] = {1};\n}\n", True), ("namespace a {\n", False),
                               ("void F() {\n", False), ("}\n", False), ("struct A {\n};\n}\n", False)):
            self.assertEqual(Source(text).is_balanced, balanced, text)

    def unused(self, header, **files):
        return sorted(unused_names({"a.h": Source(header), **{
            name.replace("__", "/") + ".cc": Source(text) for name, text in files.items()}}))

    def test_a_name_without_a_use_is_noticed(self):
        header = ("#define DT_A(x) x\ninline constexpr int kA = 1;\nint F(int a);\n"
                  "class C {\n public:\n  static C Make();\n  int size() const { return size_; }\n\n"
                  " private:\n  int size_ = 0;\n};\nenum class E { kOne, kTwo };\nusing Alias = int;\n")
        self.assertEqual(self.unused(header, a="int F(int a) { return a; }\nC C::Make() { return C(); }\n"
                                               "// kA, kTwo\nconst char* const kText = \"E\";\n"),
                         ["Alias", "C", "DT_A", "E", "F", "Make", "kA", "kOne", "kTwo"] + ["size"])
        self.assertEqual(self.unused(header, b="int G() {\n  const C c = C::Make();\n  const Alias size = DT_A(kA);\n"
                                               "  return E::kOne == E::kTwo ? F(c.size()) : size;\n}\n"), [])

    def test_tests_benchmarks_and_the_function_itself_are_no_users(self):
        header = "int F(int a);\n"
        for user in ("tests__b", "bench__b", "comm__fake__b"):
            self.assertEqual(self.unused(header, **{user: "int G() { return F(1); }\n"}), ["F"])
        self.assertEqual(self.unused(header, b="int F(int a) { return F(a - 1); }\n"), ["F"])
        self.assertEqual(self.unused(header, b="int G() { return F(1); }\n"), [])

    def test_a_field_that_is_only_initialized_is_noticed(self):
        header = "struct T {\n  int a = 0;\n  int b = 0;\n};\n"
        self.assertEqual(self.unused(header, b="int G() {\n  const T t = {.a = 1, .b = 2};\n  return t.a;\n}\n"), ["b"])

    def test_a_cpu_form_belongs_to_its_kernel(self):
        header = "void SumCpu();\nvoid SumCuda();\nvoid CutCpu();\n"
        self.assertEqual(self.unused(header, b="void G() { SumCuda(); }\n"), ["CutCpu"])

    def test_an_accessor_is_not_used_by_a_variable_of_its_name(self):
        header = "struct C {\n  int size() const;\n};\nint F(C c);\n"
        self.assertEqual(self.unused(header, b="int G(C c) {\n  int size = F(c);\n  return size;\n}\n"), ["size"])
        self.assertEqual(self.unused(header, b="int G(C c) { return F(c) + c.size(); }\n"), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
