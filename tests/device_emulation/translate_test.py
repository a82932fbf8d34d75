"""translate.py: its translation of CUDA's declarations of shared memory, and those that it refuses."""
import re
import unittest

from translate import with_shared


class SharedMemory(unittest.TestCase):
    def test_each_variable_is_filled_where_it_is_declared(self):
        for declaration, name in (("float values[256];", "values"),
                                  ("__align__(16) uint8_t tile[kRows][kColumns];", "tile"),
                                  ("Pair<float, int> best[Max(1, 2)];", "best"),
                                  ("unsigned last;", "last"),
                                  ("double\n      sums[kThreads];", "sums")):
            with self.subTest(declaration):
                text = f"void Kernel() {{\n  __shared__ {declaration}\n  int i;\n}}\n"
                filled = f"__shared__ {declaration} ::dtrain::emulation::BeginShared(&{name}, sizeof({name}));"
                self.assertEqual(with_shared(text), text.replace(f"__shared__ {declaration}", filled))

    def test_what_would_not_be_filled_is_refused_by_its_line(self):
        for declaration in ("float a[4], b[4];", "float x = 1;", "float a, b;", "float (*rows)[4];"):
            with self.subTest(declaration):
                text = f"void Kernel() {{\n  __shared__ float fine[2];\n  __shared__ {declaration}\n}}\n"
                with self.assertRaisesRegex(ValueError, re.escape("line 3: a __shared__ declaration")):
                    with_shared(text)


if __name__ == "__main__":
    unittest.main()
