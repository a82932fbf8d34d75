"""checkpoint.remote in an object store, with real trainings and servers of S3 that are not ours: a run
whose node has lost its disk goes on at the newest step that is durable there, with the bits of one
that was never interrupted; a store that fails often, or not at all reachable, holds up no step, is
an alarm and is caught up with; a wrong key, bucket or region is one line at the start.

By default the store is away until a copy has failed, with DTRAIN_TEST_LONG for five minutes, on both servers.
"""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time

import end_to_end
import s3_servers
from end_to_end import BIN, EndToEnd
from faults_test import ranks_of
from processes import marked_processes
from time_bounds import bound_s

SETS = ["checkpoint.interval=10", "checkpoint.keep=2", "checkpoint.async=true", "deterministic=true",
        "metrics.tensorboard=false"]
STEPS = 200
LONG = "DTRAIN_TEST_LONG" in os.environ
OUTAGE_S = 300 if LONG else 0  # The store is away for at least so long.
SOON_S = 60  # A start that cannot succeed has ended by then, with all that a start takes on a busy machine.


class Remote(EndToEnd):
    def tearDown(self):
        self.doCleanups()  # Before the look at what is left behind.
        super().tearDown()

    servers = {}  # By kind: tests share them, each with prefixes of its own.

    @classmethod
    def tearDownClass(cls):
        for server in cls.servers.values():
            server.close()
        super().tearDownClass()

    def server(self, kind):
        if kind not in self.servers:
            self.servers[kind] = s3_servers.Server(kind)
        return self.servers[kind]

    def proxy(self, server, *fault_of):
        proxy = s3_servers.Proxy(server, *fault_of)
        self.addCleanup(proxy.close)
        return proxy

    def launch(self, run_dir, sets, endpoint):
        with open(f"{run_dir}.log", "a", encoding="utf-8") as log:
            process = subprocess.Popen(
                self.launch_command(2, run_dir, sets), stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, start_new_session=True,
                env=self.environment(s3_servers.environment(endpoint)))
        self.addCleanup(self.kill, process)
        return process

    def kill(self, process):
        """SIGKILL to every process of the job."""
        while left := marked_processes(self.mark):
            for pid, _ in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.poll()
        process.wait(bound_s(60))

    def said(self, run_dir):
        with open(f"{run_dir}.log", encoding="utf-8", errors="replace") as log:
            return log.read()

    def await_event(self, run_dir, process, name, after=0):
        """The first event of the name whose step is behind `after`."""
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while time.monotonic() < end:
            for record in self.records(run_dir):
                if record.get("name") == name and record["step"] > after:
                    return record
            self.assertIsNone(process.poll(), f"training has ended:\n{self.said(run_dir)}")
            time.sleep(0.02)
        return self.fail(f"no event {name} in {end_to_end.TIME_BOUND_S} s:\n{self.said(run_dir)}")

    def last_step(self, run_dir):
        return max(self.losses(run_dir), default=0)

    def steps_in(self, url, endpoint):
        """The steps of the checkpoints at `url`, each read whole."""
        result = self.run_program([f"{BIN}/dtrain", "checkpoint", "verify", url, "--json"],
                                  s3_servers.environment(endpoint))
        self.assertEqual(result.code, 0, result.output)
        rows = json.loads(result.output)
        self.assertTrue(all(row["ok"] for row in rows), rows)
        return sorted(row["step"] for row in rows)

    def check_lost_node(self, kind, lost):
        server = self.server(kind)
        url = f"s3://{s3_servers.BUCKET}/runs/lost-node"
        sets = [*SETS, f"train_steps={STEPS}", f"checkpoint.remote={url}", "comm.hang_timeout_s=0"]
        run_dir = f"{self.folder}/{kind}-lost-node"
        process = self.launch(run_dir, sets, server.endpoint)
        self.wait_until(lambda: process.poll() is not None or 1 in ranks_of(process.pid), "rank 1")
        self.assertIsNone(process.poll(), self.said(run_dir))
        rank = ranks_of(process.pid)[1]
        self.await_durable(run_dir, process)
        os.kill(rank, signal.SIGSTOP)  # So that the training is not over before a checkpoint is copied.
        client = server.client()
        self.wait_until(lambda: self.is_copied(client, "runs/lost-node/"), "a copy")
        self.kill(process)
        shutil.rmtree(f"{run_dir}{lost}")
        there = self.steps_in(url, server.endpoint)[-1]
        self.assertIn(there, range(10, STEPS))
        before = len(self.records(run_dir))
        self.assertEqual(self.launch(run_dir, sets, server.endpoint).wait(end_to_end.TIME_BOUND_S), 0,
                         self.said(run_dir))
        after = self.records(run_dir)[before:]
        self.assertEqual([r["restored"] for r in after if "restored" in r], [there])
        steps = [r for r in after if r["kind"] == "step"]
        self.assertEqual([r["step"] for r in steps], list(range(there + 1, STEPS + 1)))
        straight = self.straight()
        self.assertEqual({r["step"]: r["m"]["train/loss"] for r in steps},
                         {step: loss for step, loss in self.losses(straight).items() if step > there})
        self.assertEqual(self.model_files(run_dir), self.model_files(straight))
        self.assertEqual(self.steps_in(url, server.endpoint)[-1], STEPS)

    def await_durable(self, run_dir, process):
        """Waits until a checkpoint is durable here."""
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while not any(r["kind"] == "ckpt" and r.get("durable") for r in self.records(run_dir)):
            self.assertIsNone(process.poll(), f"training has ended:\n{self.said(run_dir)}")
            self.assertLess(time.monotonic(), end, self.said(run_dir))
            time.sleep(0.005)

    @staticmethod
    def is_copied(client, prefix):
        """Whether the store has a whole checkpoint, whose manifest comes last."""
        listed = client.list_objects_v2(Bucket=s3_servers.BUCKET, Prefix=prefix)
        return any(entry["Key"].endswith("/MANIFEST.json") for entry in listed.get("Contents", ()))

    def straight(self):
        """The same training without interruption or second place."""
        run_dir = f"{self.folder}/straight"
        return run_dir if os.path.exists(run_dir) else self.train(
            2, "straight", [*SETS, f"train_steps={STEPS}"])

    def test_a_node_that_lost_its_disk_goes_on_from_moto_with_the_same_bits(self):
        self.check_lost_node("moto", lost="/checkpoints")

    def test_a_node_that_lost_its_run_directory_goes_on_from_seaweedfs_with_the_same_bits(self):
        self.check_lost_node("seaweed", lost="")  # The new one has another run id.

    def test_replies_503_and_an_outage_hold_up_no_step_and_are_caught_up_with(self):
        for kind in ("seaweed", "moto") if LONG else ("seaweed",):
            with self.subTest(kind):
                self.check_outage(kind)

    def check_outage(self, kind):
        server = self.server(kind)
        proxy = self.proxy(server, s3_servers.often_503(seed=7))
        url = f"s3://{s3_servers.BUCKET}/runs/outage"
        run_dir = f"{self.folder}/{kind}-outage"
        process = self.launch(run_dir, [*SETS, "train_steps=1000000", f"checkpoint.remote={url}"],
                              proxy.endpoint)
        first = self.await_event(run_dir, process, "remote_copy")
        self.await_event(run_dir, process, "remote_copy", after=first["step"])
        self.assertGreater(proxy.faults, 5, "too few replies were 503")
        self.assertEqual([r for r in self.records(run_dir) if r.get("name") == "remote_failed"], [])
        proxy.fault_of, down = lambda: "down", time.monotonic()
        failed = self.await_event(run_dir, process, "remote_failed")
        self.assertEqual(failed["m"]["ckpt/remote_failed"], 1)
        self.assertIn(url, failed["error"])
        while time.monotonic() < down + OUTAGE_S and process.poll() is None:
            time.sleep(0.5)
        self.await_step(run_dir, self.last_step(run_dir) + 5, process)
        proxy.fault_of = lambda: None
        # The newest is copied next, and nothing of before.
        self.await_event(run_dir, process, "remote_copy", after=failed["step"])
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(end_to_end.TIME_BOUND_S), 143, self.said(run_dir))
        self.assert_one_line(self.said(run_dir), "is durable here alone",
                             "The next one will be copied again")
        steps = [r for r in self.records(run_dir) if r["kind"] == "step"]
        self.assertEqual([r["step"] for r in steps], list(range(1, len(steps) + 1)))
        durations = sorted(b["ts"] - a["ts"] for a, b in zip(steps, steps[1:]))
        self.assertLess(durations[-1], bound_s(20), "a step waited for the store")
        newest = max(int(re.search(r"step-(\d+)", path)[1])
                     for path in glob.glob(f"{run_dir}/checkpoints/step-*/MANIFEST.json"))
        self.assertEqual(self.steps_in(url, server.endpoint)[-1], newest)

    def test_the_last_copy_may_take_longer_than_ranks_wait_for_each_other(self):
        server = self.server("seaweed")

        def answer_late():
            time.sleep(0.3)

        slow = self.proxy(server, answer_late)
        url = f"s3://{s3_servers.BUCKET}/runs/slow"
        run_dir = f"{self.folder}/slow"
        result = self.run_program(
            self.launch_command(2, run_dir, [*SETS, "train_steps=5", f"checkpoint.remote={url}"],
                                extra=["--exit-barrier", "1"]), s3_servers.environment(slow.endpoint))
        self.assertEqual(result.code, 0, result.output)
        copied = [r for r in self.records(run_dir) if r.get("name") == "remote_copy"]
        self.assertGreater(copied[-1]["m"]["ckpt/remote_seconds"], 1.5, "the copy was too fast to show it")
        self.assertEqual(self.steps_in(url, server.endpoint), [5])

    def refused(self, url, env, *texts):
        """A start that ends soon, with one line that has the texts and no secret."""
        result = self.run_program(
            self.launch_command(2, f"{self.folder}/refused", [*SETS, f"checkpoint.remote={url}"]), env)
        self.assertNotEqual(result.code, 0, result.output)
        self.assert_one_line(result.output, "checkpoint.remote", *texts)
        self.assertNotIn("canary", result.output)
        self.assertLess(result.seconds, bound_s(SOON_S), result.output)
        self.assertEqual(glob.glob(f"{self.folder}/refused/checkpoints/step-*"), [])

    def test_a_wrong_key_bucket_or_region_is_one_line_at_the_start(self):
        server = self.server("seaweed")
        url = f"s3://{s3_servers.BUCKET}/runs/wrong"
        self.refused(url, s3_servers.environment(server.endpoint, secret_key="canary/wrong"), url,
                     "check AWS_SECRET_ACCESS_KEY")
        self.refused(url, s3_servers.environment(server.endpoint, access_key="AKIAOFNOBODY00000000"), url,
                     "check AWS_ACCESS_KEY_ID")
        nobody = "s3://checkpoints-of-nobody/run"
        self.refused(nobody, s3_servers.environment(server.endpoint), nobody, "there is no such bucket")
        elsewhere = self.proxy(server, lambda: "region")
        self.refused(url, s3_servers.environment(elsewhere.endpoint), url, "region eu-west-1",
                     "set AWS_REGION=eu-west-1")


if __name__ == "__main__":
    end_to_end.main()
