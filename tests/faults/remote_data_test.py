"""data.train at addresses, with real trainings and servers that are not ours: a mixture of files in S3 (moto),
on a web server and one over TLS, whose replies fail often, gives the losses of the same files on this host,
to the bit, and so does a resume; its checkpoints have the tokenizer of the corpus. A file that changes while a run
reads it ends the run with one line."""
import datetime
import glob
import ipaddress
import os
import shutil
import struct

import end_to_end
import range_server
import s3_servers
from end_to_end import EndToEnd

SETS = ["checkpoint.interval=4", "deterministic=true", "metrics.tensorboard=false", "train_steps=8"]


def write_certificate(path):
    """A certificate of 127.0.0.1 that signs itself, with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.timezone.utc)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
                   .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
                   .not_valid_after(now + datetime.timedelta(days=1)).add_extension(names, critical=False)
                   .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
                   .sign(key, hashes.SHA256()))
    with open(path, "wb") as file:
        file.write(certificate.public_bytes(serialization.Encoding.PEM))
        file.write(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                     serialization.NoEncryption()))


class RemoteData(EndToEnd):
    def tearDown(self):
        self.doCleanups()  # Before the look at what is left behind.
        super().tearDown()

    def server(self, *arguments):
        server = range_server.RangeServer(f"{self.folder}/data", *arguments)
        self.addCleanup(server.close)
        return server

    def cut(self, name, tokens):
        """The first tokens of a file of dtrain data prepare, as one of its own."""
        with open(f"{self.folder}/data/{name}.bin", "rb") as file:
            words = list(struct.unpack("<256i", file.read(1024)))
            body = file.read(2 * tokens)
        words[2] = tokens
        with open(f"{self.folder}/data/{name}-0.bin", "wb") as file:
            file.write(struct.pack("<256i", *words) + body)

    def config_of(self, name, parts):
        """A configuration whose data.train is a mixture: lists of files with equal weights."""
        data = {"sequence_length": 32, "validation": [f"{self.folder}/data/val.bin"],
                "train": [{"files": files, "weight": 1} for files in parts]}
        return self.write_config(f"{name}.json", data=data)

    def trained(self, name, config, env, sets=(), ranks=2):
        run_dir = f"{self.folder}/{name}"
        result = self.run_program(self.launch_command(ranks, run_dir, [*SETS, *sets], config), env)
        self.assertEqual(result.code, 0, result.output)
        self.assertNotIn("canary", result.output)
        return run_dir

    def assert_has_tokenizer(self, run_dir, kept):
        """Checks that the model of the last checkpoint has the tokenizer that the corpus keeps."""
        self.assertGreater(len(kept), 0)
        [model] = glob.glob(f"{run_dir}/checkpoints/step-*8.*/model")
        for path in kept:
            with open(path, "rb") as theirs, open(f"{model}/{os.path.basename(path)}", "rb") as ours:
                self.assertEqual(ours.read(), theirs.read(), path)

    def test_s3_and_web_servers_that_fail_often_give_the_losses_of_local_files_and_resume(self):
        data, certificate = f"{self.folder}/data", f"{self.folder}/certificate.pem"
        write_certificate(certificate)
        moto = s3_servers.Server("moto")
        self.addCleanup(moto.close)
        names = ["train-0.bin", "val-0.bin"]
        self.cut("train", 400000)
        self.cut("val", 50000)
        kept = [os.path.relpath(path, data) for path in glob.glob(f"{data}/corpus.tokenizer/*")]
        for name in [*names, "corpus.json", *kept]:
            with open(f"{data}/{name}", "rb") as file:
                moto.client().put_object(Bucket=s3_servers.BUCKET, Key=f"corpus/{name}", Body=file.read())
        store = s3_servers.Proxy(moto, s3_servers.often_503(seed=4))
        self.addCleanup(store.close)
        web, secure = self.server(None, s3_servers.often_503(seed=6)), self.server(certificate)
        local = self.config_of("local", [[f"{data}/{name}" for name in names], [f"{data}/{names[0]}"],
                                         [f"{data}/{names[1]}"]])
        remote = self.config_of("remote", [[f"s3://{s3_servers.BUCKET}/corpus/*-0.bin"],
                                           [f"{web.url}/{names[0]}"], [f"{secure.url}/{names[1]}"]])
        straight = self.trained("straight", local, None)
        env = {**s3_servers.environment(store.endpoint), "AWS_CA_BUNDLE": certificate}
        limit = 1000000  # Less than the files have: blocks are small, and leave again.
        sets = [f"data.cache_dir={self.folder}/cache", f"data.cache_limit={limit}"]
        run_dir = self.trained("remote", remote, env, sets)
        self.assertEqual(len(self.losses(straight)), 8)
        self.assertEqual(self.losses(run_dir), self.losses(straight))
        self.assertEqual(self.model_files(run_dir), self.model_files(straight))
        self.assert_has_tokenizer(run_dir, [f"{data}/{name}" for name in kept])
        self.assertGreater(store.faults, 3, "too few replies were 503")
        self.assertGreater(secure.requests, 1)
        blocks = glob.glob(f"{self.folder}/cache/object-*/*")
        self.assertGreater(len(blocks), 1)
        self.assertLessEqual(sum(os.path.getsize(path) for path in blocks), limit)
        # On behind the checkpoint of step 4, with an empty cache.
        [last] = glob.glob(f"{run_dir}/checkpoints/step-*8.*")
        shutil.rmtree(last)
        shutil.rmtree(f"{self.folder}/cache")
        self.trained("remote", remote, env, sets)
        steps = [r["step"] for r in self.records(run_dir) if r["kind"] == "step"]
        self.assertEqual(steps, [1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8])
        self.assertEqual(self.losses(run_dir), self.losses(straight))
        self.assertEqual(self.model_files(run_dir), self.model_files(straight))

    def test_a_file_that_changes_while_a_run_reads_it_ends_the_run_with_one_line(self):
        folder = f"{self.folder}/data/changing"
        os.mkdir(folder)
        shutil.copy(f"{self.folder}/data/train.bin", f"{folder}/train.bin")
        web = self.server()
        address = f"{web.url}/changing/train.bin"
        run_dir = f"{self.folder}/changing"
        process = self.start(self.launch_command(
            1, run_dir, [*SETS, "train_steps=1000000", "checkpoint.interval=0",
                         f"data.cache_dir={self.folder}/small", "data.cache_limit=300000"],
            self.config_of("changing", [[address]])))
        self.await_step(run_dir, 2, process)
        shutil.copy(f"{folder}/train.bin", f"{folder}/new.bin")
        os.replace(f"{folder}/new.bin", f"{folder}/train.bin")
        result = self.finish(process)
        self.assertEqual(result.code, 64, result.output)
        self.assert_one_line(result.output, address, "has changed while the run reads it",
                             "put the old file back")


if __name__ == "__main__":
    end_to_end.main()
