"""The output of a run for people: the banner, the progress line, lines of checkpoints, an error, and
Ctrl-C as the terminal sends it; on terminals of several widths and in a plain log."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

import end_to_end
from end_to_end import BIN, TIME_BOUND_S, EndToEnd
from faults_test import LONG, ranks_of

CONTROL_C = b"\x03"
STARTED = r"step ([3-9]|\d[\d,]+)/"  # At least three steps.
PROGRESS = re.compile(r"step [\d,]+/[\d,]+ ")


class Screen:
    """The functions of a terminal that the program uses: wrapping, carriage return, erase to the end."""

    def __init__(self, columns):
        self.columns, self.lines, self.at = columns, [""], 0

    def feed(self, text):
        for piece in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|.|\n", text, re.S):
            if piece == "\n":
                self.lines.append("")
                self.at = 0
            elif piece == "\r":
                self.at = 0
            elif piece == "\x1b[K":
                self.lines[-1] = self.lines[-1][:self.at]
            elif piece.startswith("\x1b"):
                raise ValueError(f"the screen does not know {piece!r}")
            else:
                if self.at == self.columns:
                    self.lines.append("")
                    self.at = 0
                line = self.lines[-1]
                self.lines[-1] = line[:self.at] + piece + line[self.at + 1:]
                self.at += 1


class OnTerminal:
    """A program whose controlling terminal is ours."""

    def __init__(self, command, columns):
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            os.environ.pop("OMP_NUM_THREADS", None)
            os.environ["TERM"] = "xterm"
            os.execv(command[0], command)
        self.screen = Screen(columns)

    def read(self, seconds):
        """False at the end."""
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # Linux gives EIO when the last writer has gone.
                return False
            text = data.decode(errors="replace")
            self.text += text
            self.screen.feed(text)
            return bool(data)
        return True

    def await_text(self, pattern):
        end = time.monotonic() + TIME_BOUND_S
        while not re.search(pattern, self.text):
            if not self.read(0.05) or time.monotonic() > end:
                raise AssertionError(f"{pattern!r} was not shown:\n{self.text}")

    def press(self, key):
        os.write(self.fd, key)

    def finish(self):
        """The exit code."""
        end = time.monotonic() + TIME_BOUND_S
        while self.read(0.05):
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
                break
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Terminal(EndToEnd):
    def open(self, name, sets, columns=100, ranks=2):
        command = self.launch_command(ranks, f"{self.folder}/{name}", sets)
        return OnTerminal(command, columns)

    def alone_command(self, name, sets):
        command = [f"{BIN}/dtrain-gpt", self.config, "--run-dir", f"{self.folder}/{name}"]
        for value in sets:
            command += ["--set", value]
        return command

    def assert_fits(self, lines, columns):
        """Checks that each row of the banner ends at a space, or is one word wider than the terminal."""
        for line in lines:
            words = line.split()
            self.assertTrue(len(line) <= columns or len(words) <= 2, f"{line!r} at {columns} columns")

    def assert_whole_lines(self, terminal):
        """Checks that no two lines are joined, and that no progress line was left that should be erased."""
        lines = terminal.screen.lines
        for line in lines:
            found = PROGRESS.search(line)
            if found:
                self.assertEqual(found.start(), 0, "\n".join(lines))
                self.assertEqual(len(PROGRESS.findall(line)), 1, "\n".join(lines))
        shown = [line for line in lines if PROGRESS.match(line)]
        self.assertEqual(len(shown), len(set(shown)), "\n".join(lines))
        return lines

    def index(self, lines, text):
        found = [i for i, line in enumerate(lines) if line.startswith(text)]
        self.assertEqual(len(found), 1, f"{text!r} in:\n" + "\n".join(lines))
        return found[0]

    def check_banner(self, terminal, columns, launched):
        raw = terminal.text.replace("\r\n", "\n").split("\n")
        self.assertRegex(raw[0], r"^dtrain \S+  run [0-9a-f]{12} in")
        first_step = next(i for i, line in enumerate(raw) if PROGRESS.search(line))
        banner = raw[:first_step]
        self.assert_fits(banner, columns)
        labels = [line.split()[0] for line in banner if re.match("  [a-z]", line)]
        wanted = ["ranks", "model", "optimizer", "batch", "data", "steps", "checkpoints",
                  "records"] + ["logs"] * launched
        self.assertEqual(labels, wanted, "\n".join(banner))
        self.assertEqual(terminal.text.count("  run "), 1, terminal.text)
        self.assertNotIn("(file)", terminal.text, "the configuration's values are in config.json")

    def test_a_run_leaves_a_banner_and_one_progress_line_above_what_rank_zero_says_last(self):
        for columns, ranks in ((40, 2), (100, 1)):
            terminal = self.open(f"plain-{columns}", ["train_steps=30", "eval_interval=10"], columns,
                                 ranks)
            self.assertEqual(terminal.finish(), 0, terminal.text)
            lines = self.assert_whole_lines(terminal)
            self.check_banner(terminal, columns, launched=True)
            last = self.index(lines, "step 30/30 ")
            self.assertLess(last, self.index(lines, "run directory: "))
            self.assertLess(self.index(lines, "try next:"), self.index(lines, "dtrain: exit code 0"))
            self.assertEqual(sum(1 for line in lines if PROGRESS.match(line)), 1)
            # The line is drawn again after other lines at most once a tick, and not after each line.
            self.assertLessEqual(terminal.text.count("step 30/30 "), 1)

    def test_control_c_saves_and_stops_with_130(self):
        run_dir = f"{self.folder}/once"
        terminal = self.open("once", LONG, 40)
        terminal.await_text(STARTED)
        terminal.press(CONTROL_C)
        self.assertEqual(terminal.finish(), 130, terminal.text)
        lines = self.assert_whole_lines(terminal)
        self.index(lines, "dtrain: SIGINT received: 2 ranks got ")
        self.index(lines, "dtrain: exit code 130")
        self.assertIn("is saved in", terminal.text)
        self.assertNotIn("second SIGINT", terminal.text)  # The ranks are not in the terminal's process group.
        self.assertTrue(self.model_files(run_dir))

    def test_a_second_control_c_stops_at_once(self):
        terminal = self.open("twice", LONG)
        terminal.await_text(STARTED)
        pids = ranks_of(terminal.pid)
        self.assertEqual(sorted(pids), [0, 1])
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)  # A stopped rank cannot save, so only SIGKILL ends it.
        terminal.press(CONTROL_C)
        terminal.await_text("SIGINT received")
        start = time.monotonic()
        terminal.press(CONTROL_C)
        self.assertEqual(terminal.finish(), 130, terminal.text)
        self.assertLess(time.monotonic() - start, 100, "the grace is 300 s")
        lines = self.assert_whole_lines(terminal)
        self.index(lines, "dtrain: second SIGINT: killing 2 ranks now")
        self.assertGreater(self.index(lines, "dtrain: exit code 130"),
                           max(i for i, line in enumerate(lines) if PROGRESS.match(line)))
        self.assertFalse([p for p in pids.values() if os.path.exists(f"/proc/{p}")])

    def test_a_program_alone_saves_on_control_c_too(self):
        run_dir = f"{self.folder}/alone"
        terminal = OnTerminal(self.alone_command("alone", LONG), 80)
        terminal.await_text(STARTED)
        terminal.press(CONTROL_C)
        self.assertEqual(terminal.finish(), 130, terminal.text)
        self.assert_whole_lines(terminal)
        self.assertTrue(self.model_files(run_dir))
        self.assertEqual(terminal.text.count("is saved in"), 1, terminal.text)

    def test_checkpoints_and_a_resume_are_said_once_in_words(self):
        for name, launched in (("words-launched", True), ("words-alone", False)):
            for steps, saved in ((4, (2, 4)), (6, (6,))):
                sets = [f"train_steps={steps}", "checkpoint.interval=2", "checkpoint.async=false"]
                run_dir = f"{self.folder}/{name}"
                result = self.run_program(self.launch_command(2, run_dir, sets) if launched
                                          else self.alone_command(name, sets))
                self.assertEqual(result.code, 0, result.output)
                for step in saved:
                    folder = f"{run_dir}/checkpoints/step-{step:012}"
                    found = re.findall(rf"^saved step {step} in \d+(\.\d)? s \([\d.]+ [kMG]?B\) to "
                                       rf"{folder}", result.output, re.M)
                    self.assertEqual(len(found), 1, result.output)
                self.assertEqual(len(re.findall(r"^saved step", result.output, re.M)), len(saved))
                resumed = re.findall(r"^resumed from step 4 \(checkpoint \S+/step-0+4\S*, "
                                     r"saved \d+ (s|min) ago\)", result.output, re.M)
                self.assertEqual(len(resumed), steps == 6, result.output)
                self.assertEqual(result.output.count("resumed"), steps == 6, result.output)

    def test_a_plain_log_has_a_line_each_interval_with_the_chosen_columns(self):
        sets = ["train_steps=25", "metrics.interval=10", "eval_interval=10",
                'metrics.console=["loss","lr","grad_norm","tokens_per_s","eval/loss","time/data_s"]']
        for name, launched in (("plain-launched", True), ("plain-alone", False)):
            result = self.run_program(self.launch_command(2, f"{self.folder}/{name}", sets) if launched
                                      else self.alone_command(name, sets))
            self.assertEqual(result.code, 0, result.output)
            lines = [line for line in result.output.splitlines() if PROGRESS.match(line)]
            self.assertEqual([line.split()[1] for line in lines],
                             ["1/25", "10/25", "20/25", "25/25"], result.output)
            self.assertRegex(lines[-1], r"^step 25/25  loss \d+\.\d{4}  lr \S+  grad norm \S+  "
                             r"[\d,]+ tokens/s  eval/loss \d+\.\d{4}  time/data_s \S+$")
            self.assertNotIn("eval/loss", lines[0])

    def test_the_interval_holds_on_a_terminal(self):
        for name, launched, columns in (("interval", True, 80), ("interval-alone", False, 40)):
            sets = ["train_steps=40", "metrics.interval=20"]
            terminal = self.open(name, sets, columns, ranks=1) if launched else OnTerminal(
                self.alone_command(name, sets), columns)
            self.assertEqual(terminal.finish(), 0, terminal.text)
            self.assert_whole_lines(terminal)
            self.check_banner(terminal, columns, launched)
            drawn = set(re.findall(r"step (\d+)/40", terminal.text))
            self.assertTrue(drawn <= {"1", "20", "40"} and "40" in drawn, drawn)

    def test_an_error_is_said_once_with_the_path_of_the_log(self):
        bad = self.write_config("bad.json", gradient_cliping=1.0)
        result = self.run_program(self.launch_command(2, f"{self.folder}/bad", config=bad))
        self.assertEqual(result.code, 64, result.output)
        self.assertEqual(result.output.count("gradient_cliping"), 1, result.output)
        self.assert_one_line(result.output, "bad/logs/attempt-0/rank-")
        result = self.run_program([f"{BIN}/dtrain-gpt", bad, "--run-dir", f"{self.folder}/bad-alone"])
        self.assertEqual(result.code, 64, result.output)
        self.assertEqual(result.output.count("gradient_cliping"), 1, result.output)

    def test_an_error_of_rank_one_alone_is_said_once(self):
        bad = self.write_config("bad-one.json", gradient_cliping=1.0)
        script = (f'if [ $RANK = 1 ]; then c={bad}; else c={self.config}; fi; '
                  f'exec {BIN}/dtrain-gpt $c')
        result = self.run_program([f"{BIN}/dtrain", "launch", "--nproc-per-node", "2", "--run-dir",
                                   f"{self.folder}/bad-one", "--", "sh", "-c", script])
        self.assertEqual(result.code, 64, result.output)
        self.assertEqual(result.output.count("gradient_cliping"), 1, result.output)
        self.assert_one_line(result.output, "bad-one/logs/attempt-0/rank-1.err")


if __name__ == "__main__":
    end_to_end.main()
