"""What a person sees on a terminal: the progress line, and Ctrl-C as the terminal sends it."""
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
    """As much of a terminal as the program uses: wrapping, carriage return, erase to the end."""

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
            os.execv(command[0], command)
        self.screen = Screen(columns)

    def read(self, seconds):
        """False at the end."""
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # Linux says EIO when the last writer has gone.
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

    def assert_whole_lines(self, terminal):
        """No line is two lines, and no progress line was left where it should have been erased."""
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

    def test_a_run_leaves_one_progress_line_above_what_rank_zero_says_last(self):
        for columns in (40, 100):
            terminal = self.open(f"plain-{columns}", ["train_steps=30", "eval_interval=10"], columns)
            self.assertEqual(terminal.finish(), 0, terminal.text)
            lines = self.assert_whole_lines(terminal)
            last = self.index(lines, "step 30/30 ")
            self.assertLess(last, self.index(lines, "run directory: "))
            self.assertLess(self.index(lines, "try next:"), self.index(lines, "dtrain: exit code 0"))
            self.assertEqual(sum(1 for line in lines if PROGRESS.match(line)), 1)
            # Drawn, and drawn again after other lines at most once a tick: never after each line.
            self.assertLessEqual(terminal.text.count("step 30/30 "), 1)

    def test_control_c_saves_and_stops_with_130(self):
        for columns in (40, 100):
            run_dir = f"{self.folder}/once-{columns}"
            terminal = self.open(f"once-{columns}", LONG, columns)
            terminal.await_text(STARTED)
            terminal.press(CONTROL_C)
            self.assertEqual(terminal.finish(), 130, terminal.text)
            lines = self.assert_whole_lines(terminal)
            self.index(lines, "dtrain: SIGINT received: passed to 2 r")
            self.index(lines, "dtrain: exit code 130")
            self.assertIn("is saved in", terminal.text)
            self.assertNotIn("second SIGINT", terminal.text)  # The ranks are not in its group.
            self.assertTrue(self.model_files(run_dir))

    def test_a_second_control_c_stops_at_once(self):
        terminal = self.open("twice", LONG)
        terminal.await_text(STARTED)
        pids = ranks_of(terminal.pid)
        self.assertEqual(sorted(pids), [0, 1])
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)  # It cannot save now: only force ends it.
        terminal.press(CONTROL_C)
        terminal.await_text("SIGINT received")
        start = time.monotonic()
        terminal.press(CONTROL_C)
        self.assertEqual(terminal.finish(), 130, terminal.text)
        self.assertLess(time.monotonic() - start, 10, "1 s on a quiet machine; ten times that here")
        lines = self.assert_whole_lines(terminal)
        self.index(lines, "dtrain: second SIGINT: killing 2 ranks now")
        self.assertGreater(self.index(lines, "dtrain: exit code 130"),
                           max(i for i, line in enumerate(lines) if PROGRESS.match(line)))
        self.assertFalse([p for p in pids.values() if os.path.exists(f"/proc/{p}")])

    def test_a_program_alone_saves_on_control_c_too(self):
        run_dir = f"{self.folder}/alone"
        command = [f"{BIN}/dtrain-gpt", self.config, "--run-dir", run_dir]
        for value in LONG:
            command += ["--set", value]
        terminal = OnTerminal(command, 80)
        terminal.await_text(STARTED)
        terminal.press(CONTROL_C)
        self.assertEqual(terminal.finish(), 130, terminal.text)
        self.assert_whole_lines(terminal)
        self.assertTrue(self.model_files(run_dir))


if __name__ == "__main__":
    end_to_end.main()
