"""What ./dev bench build reads from the output of README's two commands."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.environ["DTRAIN_SOURCE"], "bench", "builds"))

import fresh_clone  # noqa: E402

TRAIN = [(0.1, "\x1b[1m==>\x1b[0m set-up and build take about 9 minutes on 2 cores the first time"),
         (2.0, "\x1b[1m==>\x1b[0m LibTorch 2.11.0 from its PyPI wheel: 10 s"),
         (30.0, "    build of build/release: 0:30, 12 of 85 steps, 2:51 left"),
         (217.4, "\x1b[1m==>\x1b[0m build of build/release: 217 s"),
         (230.6, "step 1/20  loss 5.5894  4,149 tokens/s  ETA 0:09  lr 0  grad norm 13.9"),
         (233.0, "step 10/20  loss 3.9804  5,550 tokens/s"), (240.0, "")]
TEST = [(40.0, "==> build of build/release: 500 s"), (900.0, "tests took 1,027 s of the 1,200 s that they may take"),
        (910.0, "")]


class Reading(unittest.TestCase):
    def test_the_first_step_counts_and_not_the_end_of_the_training(self):
        first, build = fresh_clone.train_rows(TRAIN)
        self.assertEqual((first["seconds"], first["goal_s"]), (231, 480))
        self.assertEqual(build, {"what": "of these: the build (85 steps)", "seconds": 217})

    def test_a_training_without_a_step_ends_the_benchmark(self):
        with self.assertRaisesRegex(SystemExit, "printed no step"):
            fresh_clone.train_rows([line for line in TRAIN if not line[1].startswith("step")])

    def test_both_commands_together_are_set_against_the_goal(self):
        whole, build, tests = fresh_clone.test_rows(TRAIN, TEST)
        self.assertEqual([row["seconds"] for row in (whole, build, tests)], [1150, 500, 1027])
        self.assertEqual([goal[1:] for goal in fresh_clone.all_goals({"rows": [whole, build, tests]})],
                         [(1150, "<=", 3000), (1027, "<=", 1200)])


if __name__ == "__main__":
    unittest.main()
