"""Bad input to the real programs: one line that names the input, its value and what to do; exit code 64;
nothing is left behind."""
import glob
import json
import os
import shutil
import socket
import struct
import subprocess
import time
import unittest

import end_to_end
from end_to_end import BIN, EndToEnd
from ports import free_port, free_ports

LONG_BEFORE_S = 50  # comm.timeout_s is 60; a busy machine takes a while to start some ranks.


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class BadInput(EndToEnd):
    def refused(self, *texts, sets=(), config=None, ranks=1, name="bad", fresh=True):
        """Checks that the run ends with 64 and that one line holds the texts. Most bad input is refused
        by all ranks alike: terminal_test checks that such a line is shown once."""
        result = self.run_program(
            self.launch_command(ranks, f"{self.folder}/{name}", sets, config))
        self.assertEqual(result.code, 64, result.output)
        self.assert_one_line(result.output, *texts)
        self.assertEqual(glob.glob(f"{self.folder}/{name}/checkpoints/step-*") if fresh else [], [],
                         "a refused run leaves nothing to resume from")
        return result.output

    def refused_by_check(self, *texts, sets=(), config=None, ranks=2):
        """Like `refused`, but with the program that only reads a configuration as each rank does, which
        starts quickly."""
        words = [f"{BIN}/dtrain", "config", "check", config or self.config, "--world-size", str(ranks)]
        for value in sets:
            words += ["--set", value]
        result = self.run_program(words)
        self.assertEqual(result.code, 64, result.output)
        self.assert_one_line(result.output, *texts)

    def test_a_misspelt_key_names_the_nearest(self):
        self.refused("gradient_cliping", "gradient_clipping", ranks=2,
                     config=self.write_config("misspelt.json", gradient_cliping=1.0))

    def test_impossible_batch_algebra_names_all_four_numbers(self):
        self.refused_by_check("train_batch_size", "10", "3", "2", sets=[
            "train_batch_size=10", "train_micro_batch_size_per_gpu=3", "gradient_accumulation_steps=2"])

    def test_a_syntax_error_gives_line_and_column(self):
        path = f"{self.folder}/broken.json"
        with open(path, "w", encoding="utf-8") as file:
            file.write('{\n  "train_steps": 10,\n  "seed" 3\n}\n')
        self.refused_by_check("broken.json:3:", config=path)

    def test_token_files_are_named_with_what_is_wrong(self):
        self.refused("nowhere.bin", sets=["data.train=[\"nowhere.bin\"]"])
        empty = f"{self.folder}/empty.bin"
        open(empty, "wb").close()
        self.refused("empty.bin", sets=[f"data.train=[\"{empty}\"]"])
        torn = f"{self.folder}/torn.bin"
        with open(f"{self.folder}/data/train.bin", "rb") as file, open(torn, "wb") as out:
            out.write(file.read(5001))
        self.refused("torn.bin", "5001", sets=[f"data.train=[\"{torn}\"]"])
        self.refused("sequence_length", sets=["data.sequence_length=100000000"])

    def test_a_token_beyond_the_vocabulary_names_file_and_offset(self):
        bad = f"{self.folder}/bad-id.bin"
        tokens = [1, 2, 3, 299] * 4000
        with open(bad, "wb") as file:
            file.write(struct.pack("<256i", 20240520, 1, len(tokens), *([0] * 253)))
            file.write(struct.pack(f"<{len(tokens)}H", *tokens))
        self.refused("bad-id.bin", "299", sets=[f"data.train=[\"{bad}\"]"])

    def test_a_token_file_that_is_cut_while_it_trains_ends_the_run_with_both_lengths(self):
        for ranks, split, original in ((2, "train", "train"), (1, "validation", "val")):
            path = f"{self.folder}/cut-{split}.bin"
            shutil.copyfile(f"{self.folder}/data/{original}.bin", path)
            size = os.path.getsize(path)
            run_dir = f"{self.folder}/cut-{split}"
            process = self.start(self.launch_command(
                ranks, run_dir, ["train_steps=1000000", "eval_interval=2",
                                 f"data.{split}=[\"{path}\"]"]))
            self.await_step(run_dir, 2, process)
            os.truncate(path, 1024)
            result = self.finish(process)
            self.assertEqual(result.code, 64, result.output)
            self.assert_one_line(result.output, f"token file {path}: it had {size} bytes",
                                 "has 1024 while it is read", "renaming")

    def test_a_change_of_a_run_is_accepted_by_name_and_recorded(self):
        run_dir = self.train(1, "changed", ["train_steps=2"])
        sets = ["train_steps=4", "optimizer.params.lr=0.0625", "train_batch_size=12"]
        output = self.refused("train_batch_size was", "accept it by --accept-change train_batch_size "
                              "--accept-change optimizer.params.lr", "--fresh", sets=sets,
                              name="changed", fresh=False)
        self.assertNotIn("Traceback", output)
        command = self.launch_command(1, run_dir, sets)
        accepts = ["--accept-change", "optimizer.params", "--accept-change=train_batch_size"]
        result = self.run_program([*command, *accepts])
        self.assertEqual(result.code, 0, result.output)
        self.assert_one_line(result.output, "accepted a change of the run: optimizer.params.lr was ",
                             ", now 0.0625")
        self.assertEqual(sorted(self.losses(run_dir)), [1, 2, 3, 4])
        with open(f"{run_dir}/run.json", encoding="utf-8") as file:
            changes = json.load(file)["accepted_changes"]
        self.assertEqual([(c["key"], c["now"]) for c in changes],
                         [("train_batch_size", 12), ("optimizer.params.lr", 0.0625)])
        newest = sorted(glob.glob(f"{run_dir}/checkpoints/step-*"))[-1]
        with open(f"{newest}/MANIFEST.json", encoding="utf-8") as file:
            self.assertIn('"accepted_changes"', file.read())
        # From here on the run has the new values.
        self.assertEqual(self.run_program([*command, "--set", "train_steps=5"]).code, 0)

    def test_a_resume_over_changed_input_is_refused(self):
        shape = f"{self.folder}/shape.json"
        llama = {"model_type": "llama", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64,
                 "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 32,
                 "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
        data = f"{self.folder}/changed.bin"
        with open(f"{self.folder}/data/train.bin", "rb") as file:
            content = bytearray(file.read())

        def write(changes):
            with open(shape, "w", encoding="utf-8") as file:
                json.dump({**llama, **changes}, file)
        write({})
        with open(data, "wb") as file:
            file.write(content)
        config = self.write_config("edited.json", model={"config": shape},
                                   data={"sequence_length": 32, "train": [data],
                                       "validation": [f"{self.folder}/data/val.bin"]})
        run_dir = self.train(1, "edited", ["train_steps=1"], config=config)
        for changes, says in (({"rms_norm_eps": 1e-5}, "rms_norm_eps was "),
                              ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
                               "rope_theta was 10000.0, now 500.0")):
            write(changes)
            self.refused(says, "--fresh", sets=["train_steps=2"], config=config,
                         name="edited", fresh=False)
        write({"attention_dropout": 0.5})
        self.refused("attention_dropout was 0.0, now 0.5", "go on with it by --set model.attention_dropout=0.5 "
                     "--accept-change model.attention_dropout", sets=["train_steps=2"], config=config,
                     name="edited", fresh=False)
        write({})
        other = bytearray(content)
        for i in range(1024, len(other), 2):
            other[i] ^= 1  # Other tokens of the same number.
        with open(data, "wb") as file:
            file.write(other)
        self.refused("data.train hold other tokens", sets=["train_steps=2"], config=config,
                     name="edited", fresh=False)
        # The same data under another name may be accepted; other data may not.
        moved = f"{self.folder}/moved.bin"
        with open(moved, "wb") as file:
            file.write(content)
        sets = ["train_steps=2", f'data.train=["{moved}"]']
        self.refused("accept it by --accept-change data.train", sets=sets, config=config,
                     name="edited", fresh=False)
        command = [*self.launch_command(1, run_dir, sets, config), "--accept-change", "data.train"]
        with open(moved, "wb") as file:
            file.write(other)
        result = self.run_program(command)
        self.assertEqual(result.code, 64, result.output)
        self.assert_one_line(result.output, "hold other tokens")
        with open(moved, "wb") as file:
            file.write(content)
        result = self.run_program(command)
        self.assertEqual(result.code, 0, result.output)
        command = self.launch_command(1, run_dir, [*sets[1:], "train_steps=3", "model.attention_dropout=0.5"], config)
        result = self.run_program([*command, "--accept-change", "model.attention_dropout"])
        self.assertEqual(result.code, 0, result.output)
        self.assert_one_line(result.output, "accepted a change of the run: model.attention_dropout was ",
                             ", now 0.5")
        self.assertNotIn("null", result.output)
        self.assertEqual(sorted(self.losses(run_dir)), [1, 2, 3])

    def test_what_a_run_or_its_checkpoints_do_not_fit_is_refused(self):
        run_dir = self.train(1, "taken", ["train_steps=1"])
        self.refused("seed", "--fresh", sets=["seed=4"], name="taken", fresh=False)
        for key, sets, says in (
                ("model", ["model.num_hidden_layers=3"], "its checkpoints are of one model"),
                ("optimizer.type", ["seed=2"], "its checkpoints hold the states of one optimizer"),
                ("train_steps", ["train_steps=2"], "may change whenever a run is resumed"),
                ("optimizer.params.l", ["seed=2"], 'nearest known key: "optimizer.params.lr"'),
                ("scheduler", ["seed=2"], "seed was")):
            result = self.run_program([*self.launch_command(1, run_dir, sets), "--accept-change", key])
            self.assertEqual(result.code, 64, result.output)
            self.assert_one_line(result.output, says)

    def test_weights_alone_start_a_run_of_another_kind(self):
        first = self.train(1, "first-kind", ["train_steps=2"])
        model = sorted(glob.glob(f"{first}/checkpoints/step-*/model"))[-1]
        config = self.write_config("second-kind.json", model={"pretrained": model},
                                   optimizer={"type": "SGD", "params": {"lr": 0.0}})
        second = self.train(1, "second-kind", ["train_steps=1"], config=config)
        self.assertEqual(self.model_files(first)["model.safetensors"],
                         self.model_files(second)["model.safetensors"])

    def test_ranks_without_a_launcher_that_differ_all_end_at_once(self):
        port = free_port()
        ranks = [self.start(
            [f"{BIN}/dtrain-gpt", self.config, "--run-dir", f"{self.folder}/differ", "--set",
             f"seed={rank}"],
            {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2",
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}) for rank in range(2)]
        results = [self.finish(rank) for rank in ranks]  # Takes far less than the 60 s for creating a group.
        for result in results:
            self.assertEqual(result.code, 64, result.output)
            self.assert_one_line(result.output,
                                 "differs between ranks: seed is 0 on rank 0 and 1 on rank 1")
        self.assertIn("rank 1 cannot start: ", results[0].output)

    def without_launcher(self, name, words):
        """Ranks that meet at a known address, each with its own arguments; their results."""
        port = free_port()
        ranks = [self.start(
            [f"{BIN}/dtrain-gpt", *own, "--run-dir", f"{self.folder}/{name}"],
            {"RANK": str(rank), "WORLD_SIZE": str(len(words)), "LOCAL_RANK": str(rank),
             "LOCAL_WORLD_SIZE": str(len(words)), "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": str(port)}) for rank, own in enumerate(words)]
        return [self.finish(rank) for rank in ranks]

    def test_a_rank_that_cannot_read_its_configuration_ends_all_at_once(self):
        broken = f"{self.folder}/rank-broken.json"
        with open(broken, "w", encoding="utf-8") as file:
            file.write('{"train_steps": 10,\n "seed" 3}\n')
        good = self.write_config("three.json", train_batch_size=12, train_micro_batch_size_per_gpu=2)
        for bad, count in ((0, 2), (2, 3)):  # First the rank that serves the store, then another one.
            start = time.monotonic()
            results = self.without_launcher(
                f"broken-{bad}", [[broken if rank == bad else good]
                                  for rank in range(count)])
            self.assertLess(time.monotonic() - start, LONG_BEFORE_S)
            for rank, result in enumerate(results):
                self.assertEqual(result.code, 64, result.output)
                self.assert_one_line(result.output, "rank-broken.json:2:")
                self.assertEqual(f"rank {bad} cannot start: " in result.output, rank != bad,
                                 result.output)

    def test_a_configuration_that_no_rank_can_read_ends_each_with_it(self):
        results = self.without_launcher("none", [["/nowhere/run.json"]] * 2)
        for result in results:
            self.assertEqual(result.code, 64, result.output)
            self.assert_one_line(result.output, "/nowhere/run.json")
            self.assertNotIn("cannot start", result.output)

    def test_the_launcher_ends_the_others_when_one_rank_cannot_start(self):
        broken = f"{self.folder}/launched-broken.json"
        with open(broken, "w", encoding="utf-8") as file:
            file.write('{"seed" 3}\n')
        good = self.write_config("three.json", train_batch_size=12, train_micro_batch_size_per_gpu=2)
        for bad, count in ((0, 2), (2, 3)):
            choose = f'test $RANK = {bad} && C={broken} || C={good}; exec "$0" $C'
            result = self.run_program(
                [f"{BIN}/dtrain", "launch", "--nproc-per-node", str(count), "--run-dir",
                 f"{self.folder}/launched-{bad}", "--", "/bin/sh", "-c", choose,
                 f"{BIN}/dtrain-gpt"])
            self.assertEqual(result.code, 64, result.output)
            self.assert_one_line(result.output, "launched-broken.json:1:")
            self.assertLess(result.seconds, LONG_BEFORE_S, result.output)

    def test_a_rank_that_cannot_write_its_records_ends_all_before_they_begin(self):
        for launched in (False, True):
            name = f"records-{launched}"
            os.makedirs(f"{self.folder}/{name}/metrics/rank-1.jsonl")  # A folder in the place of a file.
            if launched:
                results = [self.run_program(self.launch_command(2, f"{self.folder}/{name}"))]
            else:
                results = self.without_launcher(name, [[self.config]] * 2)
                self.assertIn("rank 1 cannot start: ", results[0].output)
            for result in results:
                self.assertNotEqual(result.code, 0, result.output)
                self.assert_one_line(result.output, "rank-1.jsonl")
                self.assertLess(result.seconds, LONG_BEFORE_S)

    def test_an_interface_that_does_not_exist_is_refused_with_those_that_do(self):
        self.refused("comm.interface", "set it to one of", "nosuch0", "lo", sets=["comm.interface=nosuch0"])

    def rank_of(self, rank, world, port, name, sets=(), env=None):
        """One rank without a launcher."""
        words = [f"{BIN}/dtrain-gpt", self.config, "--run-dir", f"{self.folder}/{name}"]
        for value in sets:
            words += ["--set", value]
        return self.start(words, {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0",
                                  "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                                  "MASTER_PORT": str(port), "DTRAIN_TOKEN_FILE": self.token(),
                                  **(env or {})})

    def await_connections(self, port, count, process):
        """Waits until as many are established to a port of this host; `process` makes the last."""
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while time.monotonic() < end and process.poll() is None:
            with open("/proc/net/tcp", encoding="ascii") as file:
                rows = [line.split() for line in file.readlines()[1:]]
            if sum(row[1].endswith(f":{port:04X}") and row[3] == "01" for row in rows) >= count:
                return
            time.sleep(0.02)
        process.kill()
        self.fail(f"not {count} connections to port {port}:\n{process.communicate()[0]}")

    def test_ranks_that_wait_for_others_say_for_whom_where_and_why(self):
        port, nowhere = free_ports(2)
        # Variables that a shell still has from an earlier launch make a program started alone a rank. All
        # cases wait at the same time: for a rank that does not come, for a store that nobody serves, and
        # for an address without a host.
        ranks = [self.rank_of(0, 2, port, "waiting", ["comm.timeout_s=8"]),
                 self.rank_of(1, 2, nowhere, "waiting-too", ["comm.timeout_s=6"]),
                 self.rank_of(1, 2, 29511, "unresolved", ["comm.timeout_s=3"],
                              {"MASTER_ADDR": "no-such-host.invalid"})]
        first, second, third = [self.finish(rank) for rank in ranks]
        self.assertEqual(first.code, 75, first.output)
        self.assert_one_line(first.output, f"1 of 2 ranks have come to 127.0.0.1:{port}",
                             "WORLD_SIZE is 2: unset it", "still to come: rank 1", "waiting for 4s")
        self.assertEqual(second.code, 75, second.output)
        self.assert_one_line(second.output, "rank 1 of 2 waits for rank 0 at 127.0.0.1:",
                             "WORLD_SIZE is 2: unset it", "waiting for 4s")
        self.assert_one_line(second.output, f"127.0.0.1:{nowhere}", "see on the first node")
        self.assertEqual(third.code, 75, third.output)
        self.assert_one_line(third.output, "no-such-host.invalid", "getent hosts")

    @unittest.skipUnless(has_ipv6(), "LOUD SKIP: this host has no ::1")
    def test_two_nodes_meet_at_an_ipv6_address(self):
        port = free_port("::1")
        nodes = [self.start([
            f"{BIN}/dtrain", "launch", "--nnodes", "2", "--node-rank", str(node), "--rdzv-endpoint",
            f"[::1]:{port}", "--token-file", self.token(), "--nproc-per-node", "1", "--run-dir",
            f"{self.folder}/six", "--", f"{BIN}/dtrain-gpt", self.config, "--set", "train_steps=1"])
            for node in range(2)]
        for result in [self.finish(node) for node in nodes]:
            self.assertEqual(result.code, 0, result.output)

    def test_a_fresh_start_that_is_refused_moves_nothing(self):
        self.train(1, "kept", ["train_steps=1"])
        broken = f"{self.folder}/kept-broken.json"
        with open(broken, "w", encoding="utf-8") as file:
            file.write('{"train_steps": 10,\n "seed" 3}\n')
        starts = {"another": [[self.config, "--fresh", "--set", f"seed={rank}"] for rank in range(2)],
                  "broken": [[self.config, "--fresh"], [broken, "--fresh"]]}
        for name, words in starts.items():
            for result in self.without_launcher("kept", words):
                self.assertEqual(result.code, 64, f"{name}: {result.output}")
        self.assertTrue(os.path.exists(f"{self.folder}/kept/checkpoints/latest"))
        self.assertFalse(os.path.exists(f"{self.folder}/kept.old-1"))
        for result in self.without_launcher("kept", [[self.config, "--fresh", "--set", "train_steps=1"]] * 2):
            self.assertEqual(result.code, 0, result.output)
        self.assertTrue(os.path.exists(f"{self.folder}/kept.old-1/checkpoints/latest"))
        self.assertTrue(os.path.exists(f"{self.folder}/kept/metrics/rank-1.jsonl"))

    def limited(self, ulimit, name, *sets):
        words = [f"{BIN}/dtrain-gpt", self.config, "--run-dir", f"{self.folder}/{name}"]
        for value in sets:
            words += ["--set", value]
        return self.run_program(["bash", "-c", f'ulimit -S {ulimit}; exec "$0" "$@"', *words])

    def test_a_stack_that_is_too_small_is_refused_with_its_limit(self):
        result = self.limited("-s 512", "stack")
        self.assertEqual(result.code, 64, result.output)
        self.assert_one_line(result.output, "the limit of the stack is 524288 bytes", "ulimit -s")

    def test_a_limit_of_open_files_ends_a_launch_with_its_value(self):
        result = self.run_program(["bash", "-c", 'ulimit -S -n 16; exec "$0" "$@"',
                                   *self.launch_command(2, f"{self.folder}/files")])
        self.assertEqual(result.code, 75, result.output)
        self.assert_one_line(result.output, "Too many open files", "which is 16 (ulimit -n)")

    def test_a_save_that_meets_the_limit_of_a_files_size_is_given_up_and_training_goes_on(self):
        sets = ["train_steps=3", "checkpoint.interval=1", "checkpoint.async=false"]
        free = self.limited("-f unlimited", "free", *sets)
        self.assertEqual(free.code, 0, free.output)
        sizes = [os.path.getsize(path) for path in
                 glob.glob(f"{self.folder}/free/checkpoints/step-*/*/*.safetensors")]
        limited = self.limited(f"-f {max(sizes) // 1024 - 1}", "small", *sets)  # In KiB.
        self.assertEqual(limited.code, 75, limited.output)
        for step in (1, 2):
            self.assert_one_line(limited.output, f"checkpoint of step {step} was not saved",
                                 "File too large", "(ulimit -f)", "still to come")
        self.assert_one_line(limited.output, "the last step, 3, is not saved", "(ulimit -f)")
        self.assertEqual([r["step"] for r in self.records(f"{self.folder}/small") if r["kind"] == "step"],
                         [1, 2, 3])

    def test_a_store_that_dies_while_ranks_meet_ends_them_at_once(self):
        port = free_port()
        server = self.rank_of(0, 3, port, "dead-store", ["train_batch_size=12"])
        self.await_port(port, server)
        waiting = self.rank_of(1, 3, port, "dead-store", ["train_batch_size=12"])
        self.await_connections(port, 2, waiting)  # Rank 0's own connection and rank 1's.
        self.await_rest(waiting)  # Rank 1 now waits for rank 2, and no longer tries to connect.
        server.kill()
        server.communicate()
        start = time.monotonic()
        result = self.finish(waiting)
        self.assertEqual(result.code, 75, result.output)
        self.assertLess(time.monotonic() - start, LONG_BEFORE_S)
        self.assert_one_line(result.output, "store", "see on the first node")

    def test_a_small_dev_shm_is_no_limit(self):
        # Shared memory is anonymous and not in /dev/shm, which containers often limit to 64 MiB.
        made = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs",
                               "/dev/shm"], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self.skipTest(f"LOUD SKIP: no mount namespaces here: {made.stderr.strip()}")
        command = self.launch_command(2, f"{self.folder}/small-shm", ["train_steps=2"])
        result = self.run_program(["unshare", "-m", "sh", "-c",
                                   'mount -t tmpfs -o size=4k tmpfs /dev/shm && exec "$@"', "sh",
                                   *command])
        self.assertEqual(result.code, 0, result.output)

    def test_rdma_that_is_required_and_not_there_is_refused_with_what_is_missing(self):
        port = free_port()
        ranks = [self.rank_of(rank, 2, port, "no-rdma", ["comm.transport=rdma"],
                              {"DTRAIN_NODE_ID": f"host{rank}"}) for rank in range(2)]
        for result in [self.finish(rank) for rank in ranks]:
            self.assertEqual(result.code, 64, result.output)
            self.assert_one_line(result.output, "connecting over RDMA", "rank")

    def test_tls_and_rdma_exclude_each_other(self):
        self.refused("comm.tcp.tls", sets=["comm.transport=rdma", "comm.tcp.tls=true"])

    def test_a_run_directory_that_is_a_file_is_refused(self):
        path = f"{self.folder}/occupied"
        open(path, "wb").close()
        self.refused("occupied", name="occupied")

    def test_launcher_arguments(self):
        for words, text in (
                (["--nproc-per-node", "0", "--", "true"], "nproc"),
                (["--", "/no/such/program"], "/no/such/program"),
                (["--", self.config], "execut"),
                (["--nnodes", "2", "--rdzv-endpoint", "n0:0", "--", "true"], '--rdzv-endpoint is "n0:0"'),
                (["--nproc-per-node", "a\nb", "--", "true"], '--nproc-per-node is "a?b"'),
                (["--nproc-pernode", "2", "--", "true"], "nproc")):
            result = self.run_program([f"{BIN}/dtrain", "launch", "--run-dir",
                                       f"{self.folder}/unused", *words])
            self.assertEqual(result.code, 64, f"{words}: {result.output}")
            self.assertIn(text, result.output)

    def test_samples_longer_than_the_models_positions_are_refused(self):
        output = self.refused(sets=["model.max_position_embeddings=8"])
        self.assert_one_line(output, "data.sequence_length 32 is longer than the model's 8 positions")

    def test_keys_that_contradict_each_other_are_both_named(self):
        cases = (
            (["fp16.enabled=true", "bf16.enabled=true"], ["bf16.enabled and fp16.enabled"]),
            (["zero_optimization.offload_optimizer.device=cpu"],
             ["offload_optimizer.device", "zero_optimization.stage 1, 2 or 3"]),
            (["zero_optimization.stage=2", "zero_optimization.offload_param.device=cpu"],
             ["offload_param.device", "zero_optimization.stage 3"]),
            (["zero_optimization.stage=1", "zero_optimization.offload_optimizer.device=nvme"],
             ["zero_optimization.offload_optimizer.nvme_path"]),
            (["zero_optimization.zero_hpz_partition_size=2"], ["zero_optimization.stage 3"]),
            (["activation_checkpointing.cpu_checkpointing=true",
              "activation_checkpointing.nvme_path=/x"], ["both say where to keep activations"]),
            (["prescale_gradients=true", "gradient_predivide_factor=2"], ["exclude each other"]),
            (["bf16.bf16_optimizer_states=true"], ["needs bf16.enabled"]))
        # The first in a training, the others in the program with the same reader.
        self.refused(*cases[0][1], sets=cases[0][0])
        for sets, texts in cases:
            with self.subTest(sets[0]):
                self.refused_by_check(*texts, sets=sets)

    def test_a_world_size_that_the_batch_cannot_be_cut_for_is_refused_with_the_nearest(self):
        self.refused_by_check("train_batch_size 8 is not a multiple of", "nearest: 6 or 12",
                              "world size 3", ranks=3, sets=[
                                  "train_batch_size=8", "train_micro_batch_size_per_gpu=2"])

    def test_gradients_that_are_not_finite_from_the_first_step_on_end_the_run(self):
        # A fixed scale that overflows fp16 with any data, so no step is ever taken.
        output = self.refused("20 steps in a row", "fp16.loss_scale", name="never-finite", ranks=2, sets=[
            "fp16.enabled=true", "fp16.loss_scale=1e30", "train_steps=60"])
        self.assertRegex(output, r"the gradient of \S+ is not finite|first \S+\)")
        steps = [r["m"] for r in self.records(f"{self.folder}/never-finite") if r["kind"] == "step"]
        self.assertTrue(steps)
        self.assertTrue(all(m.get("train/skipped") == 1 for m in steps), "nothing was updated")

    def test_weights_that_make_a_loss_of_nan_end_the_run_by_the_first_parameter(self):
        for name, ranks, sets, skipped in (
                ("fp32", 1, [], 19),
                ("bf16", 2, ["bf16.enabled=true", "zero_optimization.stage=3"], 19),
                ("fp16", 1, ["fp16.enabled=true", "fp16.initial_scale_power=2"], 3)):
            output = self.refused("the first weights, which no step changed", name=f"nan-{name}",
                                  ranks=ranks, sets=["model.initializer_range=1e30",
                                                     "train_steps=60", *sets])
            last = [line for line in output.splitlines() if "which no step changed" in line]
            # At first only a gradient may overflow, and not yet the loss.
            self.assertRegex(last[0], r"first \S+ in step 1(, where the loss was -?(nan|inf))?\)")
            steps = [r["m"] for r in self.records(f"{self.folder}/nan-{name}")
                     if r["kind"] == "step"]
            self.assertEqual([m.get("train/skipped") for m in steps], [1] * skipped)


if __name__ == "__main__":
    end_to_end.main()
