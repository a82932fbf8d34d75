"""Servers of S3 for end-to-end tests, moto and SeaweedFS, on free ports, and a proxy before them whose
network fails."""
import contextlib
import http.client
import http.server
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time

from ports import free_port, free_ports
from time_bounds import bound_s

BUCKET = "checkpoints"
ACCESS_KEY, SECRET_KEY = "AKIADTRAINTESTWRITER", "canary/secret+of/the/writer"
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>"
OTHER_REGION = (b"<Error><Code>AuthorizationHeaderMalformed</Code><Message>The region is wrong.</Message>"
                b"<Region>eu-west-1</Region></Error>")


def environment(endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY):
    """The variables that a program needs to write to `endpoint`."""
    return {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key,
            "AWS_ENDPOINT_URL_S3": endpoint, "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-1"}


def seaweed_command(folder, port):
    """SeaweedFS with one identity, whose signatures it checks."""
    actions = ["Admin", "Read", "List", "Tagging", "Write"]
    identity = {"name": "writer", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
                "actions": actions}
    with open(f"{folder}/identities.json", "w", encoding="utf-8") as file:
        json.dump({"identities": [identity]}, file)
    words = [os.path.join(os.path.dirname(sys.executable), "weed"), "server", "-ip=127.0.0.1",
             "-ip.bind=127.0.0.1", f"-dir={folder}", "-master.volumeSizeLimitMB=64", "-volume.max=100",
             f"-filer.localSocket={folder}/filer.sock", "-s3", f"-s3.port={port}",
             # Else at fixed ports, so that no second server could start beside it.
             "-s3.port.iceberg=0", "-s3.port.lance=0",
             f"-s3.localSocket={folder}/s3.sock", f"-s3.config={folder}/identities.json"]
    names = ("master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port",
             "filer.port.grpc", "s3.port.grpc")
    return words + [f"-{name}={free}" for name, free in zip(names, free_ports(len(names)))]


class Server:
    """A server with the empty bucket BUCKET, until close(). `kind`: "moto" or "seaweed"."""

    def __init__(self, kind):
        # Not below a test's own folder, because names of sockets are at most 107 characters long.
        self.folder = tempfile.TemporaryDirectory(prefix="dtrain-s3-", ignore_cleanup_errors=True)
        self.port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        if kind == "seaweed":
            command = seaweed_command(self.folder.name, self.port)
        with open(f"{self.folder.name}/log", "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self._make_bucket(f"{self.folder.name}/log")
        except BaseException:
            self.close()
            raise

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def client(self):
        import botocore.session  # Slow to import, and only some tests need it.
        from botocore.config import Config
        return botocore.session.Session().create_client(
            "s3", region_name="us-east-1", endpoint_url=self.endpoint, aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=10,
                          s3={"addressing_style": "path"}))

    def _make_bucket(self, log):
        from botocore.exceptions import BotoCoreError, ClientError
        client, end = self.client(), time.monotonic() + bound_s(120)
        while True:
            try:
                client.create_bucket(Bucket=BUCKET)
                return
            except (BotoCoreError, ClientError) as error:
                if getattr(error, "response", {}).get("Error", {}).get("Code") == "BucketAlreadyOwnedByYou":
                    return
                if self.process.poll() is not None or time.monotonic() > end:
                    with open(log, encoding="utf-8", errors="replace") as file:
                        raise RuntimeError(f"no server of S3: {error}\n{file.read()}") from error
                time.sleep(0.05)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


class Proxy:
    """Passes requests on to `server`, one a connection, until close(). `fault_of`: "503", "region", "down"
    or None for each request; "down" breaks the connection."""

    def __init__(self, server, fault_of=lambda: None):
        self.fault_of, self.faults = fault_of, 0
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 60
            protocol_version = "HTTP/1.1"  # A client may want to hear that it may send the body.

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                fault = proxy.fault_of()
                proxy.faults += fault is not None
                self.close_connection = True
                if fault == "down":
                    return
                if fault is not None:
                    code, text = (503, SLOW_DOWN) if fault == "503" else (400, OTHER_REGION)
                    self.reply(code, {"Content-Length": len(text), "x-amz-bucket-region": "eu-west-1"}, text)
                    return
                onward = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                with contextlib.closing(onward):
                    onward.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        if name.lower() != "expect":
                            onward.putheader(name, value)
                    onward.endheaders(body)
                    reply = onward.getresponse()
                    text = reply.read()
                headers = {name: value for name, value in reply.getheaders()
                           if name.lower() not in ("connection", "transfer-encoding", "content-length")}
                # The length of a HEAD's object, which does not come along.
                length = reply.getheader("Content-Length") if self.command == "HEAD" else len(text)
                self.reply(reply.status, {**headers, "Content-Length": length or 0}, text)

            def reply(self, code, headers, text):
                self.send_response_only(code)
                for name, value in {**headers, "Connection": "close"}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(text)

            def handle(self):
                with contextlib.suppress(OSError):  # The client has gone away.
                    super().handle()

            def log_message(self, *_):
                pass

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer

        self.listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.listener.daemon_threads = True
        self.thread = threading.Thread(target=self.listener.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.listener.server_address[1]}"

    def close(self):
        self.listener.shutdown()
        self.thread.join()
        self.listener.server_close()


def often_503(seed, share=0.3):
    """A fault_of that gives 503 to a share of the requests."""
    draw, lock = random.Random(seed), threading.Lock()

    def fault():
        with lock:
            return "503" if draw.random() < share else None
    return fault
