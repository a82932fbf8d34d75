"""Disks that fill, fail, hang and are slow below real file systems, while checkpoints are written beside
training (checkpoint.async): training never stops, a warning names the file and the error, and later
saves succeed.

A full disk is a small tmpfs and a small ext4 on a loop device; strace makes fsync fail or take long.
A device that fails below an ext4 with room is a loop device whose file has no room to grow, as a volume
that promises more than it has; one that hangs is a loop device whose file lies on a frozen file system.
"""
import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time

import end_to_end
from end_to_end import BIN, EndToEnd
from faults_test import ranks_of
from time_bounds import bound_s

SETS = ["train_steps=1000000", "checkpoint.async=true", "checkpoint.interval=5", "checkpoint.keep=2",
        "metrics.tensorboard=false"]
LEFT_BYTES = 150_000  # Less than a checkpoint has.
SLOW_S = 0.4  # How long a slow fsync takes.
FIFREEZE, FITHAW = 0xC0045877, 0xC0045878  # linux/fs.h


class Disks(EndToEnd):
    def tearDown(self):
        self.doCleanups()  # Before the look at what is left behind, and before the folder is removed.
        super().tearDown()

    def launch(self, name, sets=()):
        """A training that goes on until it is stopped; its output is in a file."""
        run_dir = f"{self.folder}/{name}"
        with open(f"{run_dir}.log", "w", encoding="utf-8") as log:
            process = subprocess.Popen(
                self.launch_command(2, run_dir, [*SETS, *sets]), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True, env=self.environment(None))
        self.addCleanup(self.kill, process)
        self.await_save(run_dir, process)
        return run_dir, process

    @staticmethod
    def kill(process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def said(self, run_dir):
        with open(f"{run_dir}.log", encoding="utf-8", errors="replace") as log:
            return log.read()

    def await_record(self, run_dir, process, wanted):
        """The first checkpoint record that `wanted` accepts."""
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while time.monotonic() < end:
            for record in self.records(run_dir):
                if record["kind"] == "ckpt" and wanted(record):
                    return record
            self.assertIsNone(process.poll(), f"training has stopped:\n{self.said(run_dir)}")
            time.sleep(0.02)
        self.fail(f"no such record in {end_to_end.TIME_BOUND_S} s:\n{self.said(run_dir)}")

    def await_event(self, run_dir, process, name, after=0):
        """The first event of the name behind the step `after`."""
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while time.monotonic() < end:
            for record in self.records(run_dir):
                if record.get("name") == name and record["step"] > after:
                    return record
            self.assertIsNone(process.poll(), f"training has stopped:\n{self.said(run_dir)}")
            time.sleep(0.02)
        return self.fail(f"no event {name} in {end_to_end.TIME_BOUND_S} s:\n{self.said(run_dir)}")

    def await_save(self, run_dir, process, after=0):
        return self.await_record(run_dir, process, lambda r: r.get("durable") and r["step"] > after)

    def last_step(self, run_dir):
        return max(self.losses(run_dir), default=0)

    def stop(self, run_dir, process):
        """Ends the training as a user does. Its checkpoints are whole, and no step is missing."""
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(end_to_end.TIME_BOUND_S), 143, self.said(run_dir))
        steps = [r["step"] for r in self.records(run_dir) if r["kind"] == "step"]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def check_warning(self, run_dir, error, *texts):
        """The record of a failed save, and the warning with the same words."""
        for text in texts:
            self.assertIn(text, error["error"])
        self.assertFalse(error["durable"])
        self.assertTrue(error["background"])
        warning = f"checkpoint of step {error['step']} was not saved"
        end = time.monotonic() + bound_s(20)  # The launcher passes it on a little later.
        while warning not in self.said(run_dir) and time.monotonic() < end:
            time.sleep(0.05)
        self.assert_one_line(self.said(run_dir), warning, "the last good one is of step", *texts)

    def verify(self, folder):
        result = self.run_program([f"{BIN}/dtrain", "checkpoint", "verify", folder])
        self.assertEqual(result.code, 0, result.output)

    def check_full(self, name, mount, below=None, error_text="No space left on device"):
        """Fills the disk below a training, `below` its file system if that is another one, until a save
        fails, and gives it room again."""
        run_dir, process = self.launch(name, [f"checkpoint.dir={mount}/checkpoints"])
        below = below or mount
        with open(f"{below}/filler", "wb", buffering=0) as filler:
            def fill():
                # A save that ends meanwhile removes an older checkpoint, so there is room again.
                stat = os.statvfs(below)
                room = stat.f_bavail * stat.f_frsize - LEFT_BYTES
                with contextlib.suppress(OSError):
                    filler.write(b"x" * max(0, room))

            def failed(record):
                return "error" in record

            end = time.monotonic() + end_to_end.TIME_BOUND_S
            while not any(failed(r) for r in self.records(run_dir) if r["kind"] == "ckpt"):
                self.assertLess(time.monotonic(), end, "no save failed")
                fill()
                time.sleep(0.02)
            error = self.await_record(run_dir, process, failed)
            where = f"{mount}/checkpoints" if below != mount else f"{mount}/checkpoints/step-{error['step']:012}.e1"
            self.check_warning(run_dir, error, where, error_text)
            self.verify(f"{mount}/checkpoints")
            self.await_step(run_dir, self.last_step(run_dir) + 5, process)
        os.remove(f"{below}/filler")
        self.await_save(run_dir, process, after=error["step"])
        self.stop(run_dir, process)
        self.verify(f"{mount}/checkpoints")

    def mounted(self, mount, *command):
        os.makedirs(mount)
        done = subprocess.run(["mount", *command, mount], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            self.skipTest(f"LOUD SKIP: cannot mount here: {done.stderr.strip()}")
        # The kernel lets go of what lies on a loop device a moment after that is unmounted.
        self.addCleanup(self.wait_until, lambda: subprocess.run(["umount", mount], check=False).returncode == 0,
                        f"umount {mount}")

    def test_a_full_tmpfs_does_not_stop_training_and_the_next_save_with_room_succeeds(self):
        mount = f"{self.folder}/small-tmpfs"
        self.mounted(mount, "-t", "tmpfs", "-o", "size=2400k", "tmpfs")
        self.check_full("full-tmpfs", mount)

    def test_a_full_ext4_does_not_stop_training_and_the_next_save_with_room_succeeds(self):
        mount = f"{self.folder}/small-ext4"
        self.mounted_image(mount, f"{self.folder}/ext4.image", 8 << 20)
        self.check_full("full-ext4", mount)

    def mounted_image(self, mount, image, size, *options):
        """An ext4 in a file, on a loop device."""
        if not shutil.which("mkfs.ext4"):
            self.skipTest("LOUD SKIP: no mkfs.ext4 here")
        with open(image, "wb") as file:
            file.truncate(size)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-N", "1024", "-O", "^has_journal", image], check=True)
        self.mounted(mount, "-o", ",".join(["loop", *options]), image)

    def test_a_volume_that_has_less_than_it_promises_does_not_stop_training(self):
        below, mount = f"{self.folder}/thin-pool", f"{self.folder}/thin"
        self.mounted(below, "-t", "tmpfs", "-o", "size=12m", "tmpfs")
        # Removed files go back to the pool.
        self.mounted_image(mount, f"{below}/image", 64 << 20, "errors=continue", "discard")
        room = os.statvfs(mount)
        self.assertGreater(room.f_bavail * room.f_frsize, 40 << 20)
        # Its text depends on the kernel: "No space left on device" or "Input/output error".
        self.check_full("thin", mount, below, error_text=": ")

    @contextlib.contextmanager
    def frozen(self, mount):
        """Nothing is written to the file system while this context lasts: who writes waits."""
        folder = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.ioctl(folder, FIFREEZE, 0)
            except OSError as error:
                self.skipTest(f"LOUD SKIP: cannot freeze a file system here: {error}")
            try:
                yield
            finally:
                fcntl.ioctl(folder, FITHAW, 0)
        finally:
            os.close(folder)

    def test_a_disk_that_hangs_holds_up_saves_and_the_journal_and_not_training(self):
        below, mount = f"{self.folder}/hanging-disk", f"{self.folder}/hanging"
        self.mounted_image(below, f"{self.folder}/hanging.image", 96 << 20)
        self.mounted_image(mount, f"{below}/image", 64 << 20)
        run_dir, process = self.launch(
            "hanging-run", [f"checkpoint.dir={mount}/checkpoints", "checkpoint.journal=async",
                            "checkpoint.journal_share=1"])
        with self.frozen(below):
            # The journal gives up first; saves that come due are skipped.
            off = self.await_event(run_dir, process, "journal_off")
            skipped = self.await_record(run_dir, process,
                                        lambda r: r.get("skipped") and r["step"] > off["step"])
            self.await_step(run_dir, skipped["step"] + 20, process)
        self.assertIn("the disk has not written a step for 5 seconds", off["why"])
        saved = self.await_save(run_dir, process, after=off["step"])
        again = self.await_event(run_dir, process, "journal", after=saved["step"])
        self.assertGreater(again["steps"], 0)
        self.stop(run_dir, process)
        self.assert_one_line(self.said(run_dir), "the step journal is off behind step",
                             "It begins anew with the next checkpoint")
        self.verify(f"{mount}/checkpoints")

    @contextlib.contextmanager
    def traced(self, pid, inject):
        """strace changes the fsync of a running rank while this context lasts."""
        if not shutil.which("strace"):
            self.skipTest("LOUD SKIP: no strace here")
        log = f"{self.folder}/strace-{pid}"
        tracer = subprocess.Popen(["strace", "-f", "-p", str(pid), "-e", "trace=fsync", "-e",
                                   f"inject=fsync:{inject}", "-o", log],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        first = tracer.stdout.readline()
        if "attached" not in first:
            tracer.kill()
            rest = tracer.communicate()[0]
            self.skipTest(f"LOUD SKIP: strace may not attach here: {first.strip()} {rest.strip()}")
        try:
            yield log
        finally:
            tracer.terminate()
            tracer.communicate()

    def test_an_fsync_that_fails_does_not_stop_training_and_the_next_save_succeeds(self):
        run_dir, process = self.launch("failing-disk")
        with self.traced(ranks_of(process.pid)[1], "error=EIO"):
            error = self.await_record(run_dir, process, lambda r: "error" in r)
            self.check_warning(run_dir, error, f"{run_dir}/checkpoints/step-{error['step']:012}.e1/",
                               "rank 1", "Input/output error")
            self.await_step(run_dir, self.last_step(run_dir) + 5, process)
        self.await_save(run_dir, process, after=error["step"])
        self.stop(run_dir, process)
        self.verify(run_dir)

    def test_a_slow_disk_holds_up_saves_and_not_training(self):
        run_dir, process = self.launch("slow-disk")
        with self.traced(ranks_of(process.pid)[0], f"delay_enter={int(SLOW_S * 1e6)}"):
            # The save under way may have made its last fsync; the one after it has all of them slow.
            first = self.await_record(run_dir, process,
                                      lambda r: r.get("durable") and r["m"]["ckpt/seconds"] > 2 * SLOW_S)
            skipped = self.await_record(run_dir, process,
                                        lambda r: r.get("skipped") and r["step"] > first["step"])
            slow = self.await_record(run_dir, process,
                                     lambda r: r.get("durable") and r["step"] > first["step"]
                                     and r["m"]["ckpt/seconds"] > 2 * SLOW_S)
        self.await_save(run_dir, process, after=slow["step"])
        self.stop(run_dir, process)
        self.assertGreaterEqual(skipped["m"]["ckpt/skipped"], 1)
        self.assertLess(slow["m"]["time/checkpoint_s"], slow["m"]["ckpt/seconds"] / 2)
        steps = [r for r in self.records(run_dir) if r["kind"] == "step"]
        beside = [r for r in steps
                  if slow["ts"] - slow["m"]["ckpt/seconds"] < r["ts"] < slow["ts"]]
        self.assertGreater(len(beside), 2, "no steps were made beside the slow save")
        self.verify(run_dir)


if __name__ == "__main__":
    end_to_end.main()
