"""What ./dev and packaging/ say, as far as it can be known without a build: wrong values, which halves
a package has, a full disk; and the names of the systems that packages are tried on."""
import os
import shutil
import subprocess
import tempfile
import unittest

import end_to_end

SOURCE = os.environ["DTRAIN_SOURCE"]


class Folder(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-refusals-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name


class Dev(Folder):
    """./dev in a folder without a tree: what it does not refuse at once fails there."""

    def dev(self, *words, **variables):
        shutil.copy(f"{SOURCE}/dev", self.folder)
        return subprocess.run([f"{self.folder}/dev", *words], capture_output=True, text=True, check=False,
                              timeout=60, env={**os.environ, **variables})

    def test_a_wrong_number_of_jobs_is_refused_before_anything_is_done(self):
        for value in ("0", "-1", "abc", "08", "2.5", "1 2"):
            result = self.dev("build", DTRAIN_JOBS=value)
            self.assertEqual(result.returncode, 64, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(f'DTRAIN_JOBS="{value}"', result.stderr)
            self.assertIn("an integer of 1 or more", result.stderr)
            self.assertEqual(os.listdir(self.folder), ["dev"])
        self.assertEqual(self.dev("--help", DTRAIN_JOBS="0").returncode, 0)


if __name__ == "__main__":
    end_to_end.main()
