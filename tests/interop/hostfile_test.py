"""Hostfiles and their filters, read by `dtrain launch --dry-run` and by DeepSpeed's own launcher."""
import contextlib
import io
import os
import random
import re
import subprocess
import tempfile
import unittest

import end_to_end

BIN = os.environ["DTRAIN_BIN"]
SEED = 20261126
CASES = 400


def deepspeed_runner():
    """DeepSpeed's launcher, without what it prints while it is imported."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            from deepspeed.launcher import runner
    except ImportError as error:
        raise unittest.SkipTest(f"{error}: ./dev deps test") from error
    runner.logger.disabled = True
    return runner


class Hostfile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.runner = deepspeed_runner()
        cls.random = random.Random(SEED)
        print(f"seed {SEED}")

    def theirs(self, lines, include, exclude):
        """[(host, slots)], or None for an error."""
        try:
            pool = self.runner._parse_hostfile(lines)
            chosen = self.runner.parse_inclusion_exclusion(pool, include, exclude)
        except ValueError:
            return None
        return [(host, list(slots)) for host, slots in chosen.items()] or None

    @staticmethod
    def ours(lines, include, exclude):
        with tempfile.TemporaryDirectory(prefix="dtrain-hostfile-") as folder:
            with open(f"{folder}/hosts", "w", encoding="utf-8") as file:
                file.writelines(lines)
            words = [f"{BIN}/dtrain", "launch", "--hostfile", f"{folder}/hosts", "--dry-run"]
            words += ["--include", include] if include else []
            words += ["--exclude", exclude] if exclude else []
            result = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
        if result.returncode != 0:
            assert result.returncode == 64, result
            return None
        hosts = []
        for block in re.split(r"^node \d+ of \d+: ", result.stdout, flags=re.MULTILINE)[1:]:
            host, ranks = re.match(r"host (\S+), (\d+) ranks?\n", block).groups()
            slots = re.search(r'CUDA_VISIBLE_DEVICES="([\d,]+)"', block)
            hosts.append((host, [int(slot) for slot in slots.group(1).split(",")] if slots
                          else list(range(int(ranks)))))
            assert len(hosts[-1][1]) == int(ranks), block
        return hosts

    def lines(self):
        """A hostfile, at times a wrong one."""
        names = self.random.sample(["w-0", "w-1", "10.0.0.3", "node_4.lab"], self.random.randint(1, 4))
        if self.random.random() < 0.05:
            names.append(names[0])
        lines = [f"{name}{self.random.choice([' ', '  ', chr(9)])}slots={self.random.randint(1, 4)}\n"
                 for name in names]
        if self.random.random() < 0.3:
            lines.insert(self.random.randint(0, len(lines)), self.random.choice(["\n", "# w-9 slots=1\n", "   \n"]))
        if self.random.random() < 0.05:
            lines.insert(self.random.randint(0, len(lines)), self.random.choice(["w-8\n", "slots=2\n", "w-8 gpus=1\n"]))
        return lines

    def filter(self):
        """A text for --include or --exclude, at times a wrong one."""
        parts = []
        for _ in range(self.random.randint(1, 4)):
            part = self.random.choice(["w-0", "w-1", "10.0.0.3", "node_4.lab"])
            if self.random.random() < 0.6:
                slots = [str(self.random.randint(0, 3)) for _ in range(self.random.randint(1, 3))]
                part += ":" + ",".join(slots)
            parts.append(part)
        if self.random.random() < 0.05:
            parts.append(self.random.choice(["", "w-0:", "w-0:x", "w-0:1:2", "nobody"]))
        return "@".join(parts)

    def test_the_same_hosts_and_slots_are_chosen_and_the_same_texts_refused(self):
        refused = 0
        for case in range(CASES):
            lines = self.lines()
            include = self.filter() if self.random.random() < 0.5 else ""
            exclude = self.filter() if self.random.random() < (0.05 if include else 0.6) else ""
            theirs = self.theirs(lines, include, exclude)
            self.assertEqual(self.ours(lines, include, exclude), theirs, (case, lines, include, exclude))
            refused += theirs is None
        self.assertGreater(refused, CASES // 10)
        self.assertGreater(CASES - refused, CASES // 10)


if __name__ == "__main__":
    end_to_end.main()
