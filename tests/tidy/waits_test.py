"""Tests and benchmarks in Python wait for what they need, and not for a time in which it mostly comes: a
sleep is the pause between two looks of a wait that ends. The rule is a function of a text, tested on made-up
ones."""
import ast
import unittest

from tree import sources, text_of

PAUSE_MAX_S = 0.5
# These bound a loop: a clock that it reads, or a process whose end it waits for.
BOUNDS = {"monotonic", "time", "poll"}
# "FILE: FUNCTION" that sleeps outside of a wait, and why.
KEPT = {"bench/kernels.py: ask": "nothing tells when the threads of the other process have fallen asleep",
        "tests/faults/checkpoint_remote_test.py: answer_late": "a store is to be slow"}

Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def is_sleep(node):
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep"
            and isinstance(node.func.value, ast.Name) and node.func.value.id == "time")


def own_nodes(node):
    """The node and what is in it, without the functions that it defines."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Function):
            yield from own_nodes(child)


def is_bounded(loop):
    return any(isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in BOUNDS
               for node in own_nodes(loop))


def is_pause(sleep):
    """Whether it is short, as far as the text says how long it is."""
    [length] = sleep.args
    return not isinstance(length, ast.Constant) or length.value <= PAUSE_MAX_S


def loose_sleeps(text):
    """[(line, function)] of the sleeps that are no pause of a bounded `while`."""
    found = []

    def visit(node, function, loop):
        if isinstance(node, Function):
            function, loop = getattr(node, "name", "lambda"), None
        elif isinstance(node, ast.While):
            loop = node
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            # By another name it would not be seen.
            found.extend((node.lineno, function) for name in node.names if name.name == "sleep")
        elif is_sleep(node) and not (loop is not None and is_bounded(loop) and is_pause(node)):
            found.append((node.lineno, function))
        for child in ast.iter_child_nodes(node):
            visit(child, function, loop)

    visit(ast.parse(text), "", None)
    return found


class Waits(unittest.TestCase):
    maxDiff = None

    def test_sleeps_are_pauses_of_waits_that_end(self):
        found = [(path, line, function) for path in sources(".py") if path.startswith(("tests/", "bench/"))
                 for line, function in loose_sleeps(text_of(path))]
        self.assertEqual([f"{path}:{line}: wait for the condition itself, with a bound (end_to_end.wait_until)"
                          for path, line, function in found if f"{path}: {function}" not in KEPT], [])
        self.assertEqual(sorted(set(KEPT) - {f"{path}: {function}" for path, _, function in found}), [], "are gone")


class Rules(unittest.TestCase):
    def loose(self, *lines):
        return [line for line, _ in loose_sleeps("\n".join(lines))]

    def test_a_sleep_on_its_own_is_noticed(self):
        self.assertEqual(self.loose("start()", "time.sleep(0.01)", "check()"), [2])
        self.assertEqual(self.loose("from time import monotonic, sleep"), [1])

    def test_a_loop_without_a_bound_is_noticed(self):
        self.assertEqual(self.loose("while not ready():", "  time.sleep(0.01)"), [2])
        self.assertEqual(self.loose("for _ in range(9):", "  time.sleep(0.01)"), [2])

    def test_a_wait_by_a_clock_or_for_a_process_may_pause(self):
        self.assertEqual(self.loose("while not ready() and time.monotonic() < end:", "  time.sleep(0.01)"), [])
        self.assertEqual(self.loose("while not ready():", "  if time.monotonic() > end:", "    raise E",
                                    "  time.sleep(pause)"), [])
        self.assertEqual(self.loose("while process.poll() is None:", "  look()", "  time.sleep(0.5)"), [])

    def test_a_long_pause_is_noticed(self):
        self.assertEqual(self.loose("while process.poll() is None:", "  time.sleep(5)"), [2])

    def test_a_function_is_not_bounded_by_the_loop_around_it(self):
        self.assertEqual(self.loose("while process.poll() is None:", "  def f():", "    time.sleep(0.1)", "  f()"), [3])
        self.assertEqual(self.loose("while ready():", "  f = lambda: time.monotonic()", "  time.sleep(0.1)"), [3])


if __name__ == "__main__":
    unittest.main(verbosity=2)
