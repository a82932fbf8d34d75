"""The API pages: doxygen accepts every public header, and each public symbol has a comment. A program outside, which
wheel_test compiles with an installed package alone, names each public function."""
import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import end_to_end
from public_functions import public_functions
from time_bounds import bound_s

SOURCE = os.environ["DTRAIN_SOURCE"]
HEADERS = "runtime/include/dtrain"
# Their comments say that they are for dtrain itself.
OWN_FUNCTIONS = {"FromState", "Replay", "group", "state"}


def text_of(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


@unittest.skipUnless(shutil.which("doxygen"), "LOUD SKIP: no doxygen here; ./dev deps test installs it")
class ApiPages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-api-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        shutil.copytree(f"{SOURCE}/{HEADERS}", f"{self.folder}/{HEADERS}")
        for name in ("base", "docs"):
            os.mkdir(f"{self.folder}/{name}")
        for name in ("json.h", "status.h"):
            shutil.copy(f"{SOURCE}/base/{name}", f"{self.folder}/base")
        for name in ("Doxyfile", "doxygen.sed", "mainpage.dox"):
            shutil.copy(f"{SOURCE}/docs/{name}", f"{self.folder}/docs")
        os.makedirs(f"{self.folder}/build/docs")

    def doxygen(self):
        """The exit code, and what is wrong."""
        result = subprocess.run(["doxygen", "docs/Doxyfile"], cwd=self.folder, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                timeout=bound_s(30), check=False)
        return result.returncode, result.stdout

    def page(self, name):
        return text_of(f"{self.folder}/build/docs/{name}")

    def test_every_public_symbol_is_documented(self):
        code, output = self.doxygen()
        self.assertEqual((code, output), (0, ""))
        self.assertIn(">Main</a> parses the command line", self.page("index.html"))
        engine = self.page("classdtrain_1_1Engine.html")
        for text in ("One optimizer step over gradient_accumulation_steps micro-batches",
                     "How many steps this engine has finished."):
            self.assertIn(text, engine)
        self.assertIn("returns it from this function when it is an error", self.page("status_8h.html"))
        self.assertIn("Queries, keys and values", self.page("structdtrain_1_1ops_1_1Qkv.html"))

    def test_symbols_without_a_comment_are_named(self):
        with open(f"{self.folder}/{HEADERS}/extra.h", "w", encoding="utf-8") as file:
            file.write("// A header of this test.\n#pragma once\n\nnamespace dtrain {\n\n"
                       "int Bare(int x);\n\n"
                       "// Has a comment.\nint Told(int x);\n\n"
                       "struct Naked {\n  int told = 0;  // Has one too.\n  int untold = 0;\n};\n\n"
                       "namespace internal {\nint Hidden(int x);\n}  // namespace internal\n\n"
                       "}  // namespace dtrain\n")
        code, output = self.doxygen()
        self.assertNotEqual(code, 0)
        wrong = {line for line in output.splitlines() if "is not documented" in line}
        self.assertEqual(len(wrong), 3, output)
        for name in ("Bare(int x)", "dtrain::Naked", "untold"):
            self.assertTrue(any(name in line and "extra.h:" in line for line in wrong), (name, output))


class PublicFunctions(unittest.TestCase):
    def test_a_program_outside_names_each(self):
        program = re.sub(r"//.*", "", text_of(f"{SOURCE}/tests/package/public_calls.cc"))
        headers = glob.glob(f"{SOURCE}/{HEADERS}/*.h")
        declared = set().union(*(public_functions(text_of(path)) for path in headers))
        self.assertGreater(len(declared), 200)
        self.assertLessEqual(OWN_FUNCTIONS, declared)
        self.assertEqual(sorted(name for name in declared - OWN_FUNCTIONS
                                if not re.search(rf"\b{name}\b", program)), [])

    def test_functions_are_told_from_what_stands_beside_them(self):
        self.assertEqual(public_functions("""
            #define DT_MACRO(x) Macro(x)
            namespace dtrain {
            // Comment(x);
            absl::StatusOr<std::pair<int, std::string>> Free(const std::function<void(int)>& call,
                                                             Options options = {.a = Other(1)});
            template <typename T>
            T Template(T value) { return Called(value); }
            TORCH_MODULE(Linear);
            namespace internal { void Hidden(); }
            enum class Kind { kOne, kTwo };
            struct Open {
              int64_t number = Made(3);
              std::function<bool(const std::string&)> member = {};
              bool inline_one() const { if (a) { b(); } return c(); }
              bool operator==(const Open&) const = default;
             private:
              void Private();
            };
            class Closed final : public Base {
              void Private();
             public:
              explicit Closed(int x) : x_(x) {}
              ~Closed();
              Closed(const Closed&) = delete;
              static std::unique_ptr<Closed> Make();
              friend void Friend(Closed&);
              struct Inner {
                double scale() const;
              };
              const std::string& last() const;
             protected:
              void Protected();
            };
            }  // namespace dtrain
            """), {"Free", "Template", "inline_one", "Make", "scale", "last"})


if __name__ == "__main__":
    end_to_end.main()
