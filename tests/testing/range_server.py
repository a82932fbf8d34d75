"""A web server of ranges of the files below a folder, on a free port, whose replies fail as tests want.

    range_server.py FOLDER     serves FOLDER until its standard input ends; prints its port first

The first folder of a path may say how the reply fails:
    /often/FILE      503 for two of three requests
    /down/FILE       503 always
    /whole/FILE      the whole file, whatever range is asked for
    /moved/FILE      302 to /FILE
    /denied/FILE     403"""
import contextlib
import http.server
import os
import re
import ssl
import sys
import threading


class RangeServer:
    """Serves `folder` until close(). With `certificate`, a file with certificate and key, over TLS.
    `fault_of`: as s3_servers.Proxy has it."""

    def __init__(self, folder, certificate=None, fault_of=lambda: None):
        self.requests, self.fault_of, self.is_secure = 0, fault_of, certificate is not None
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = 60
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                server.requests += 1
                path, count = self.path.split("?")[0], server.requests
                match = re.fullmatch(r"/(often|down|whole|moved|denied)(/.*)", path)
                fault, path = match.groups() if match else (None, path)
                if server.fault_of() is not None or fault == "down" or (fault == "often" and count % 3):
                    self.reply(503)
                elif fault == "denied":
                    self.reply(403)
                elif fault == "moved":
                    self.reply(302, {"Location": path})
                else:
                    self.send_file(f"{folder}{path}", whole=fault == "whole")

            def send_file(self, path, whole):
                try:
                    with open(path, "rb") as file:
                        info, content = os.fstat(file.fileno()), file.read()
                except OSError:
                    self.reply(404)
                    return
                headers = {"ETag": f'"{info.st_mtime_ns:x}-{info.st_ino:x}"'}
                asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
                if whole or asked is None:
                    self.reply(200, headers, content)
                    return
                first, last = (int(number) for number in asked.groups())
                if first >= len(content):
                    self.reply(416, {"Content-Range": f"bytes */{len(content)}"})
                    return
                part = content[first:last + 1]
                headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
                self.reply(206, headers, part)

            def reply(self, code, headers=None, body=b""):
                self.send_response_only(code)
                for name, value in {**(headers or {}), "Content-Length": len(body)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                self.wfile.write(body)

            def handle(self):
                with contextlib.suppress(OSError):  # The client has gone away.
                    super().handle()

            def log_message(self, *_):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # A client that does not trust the certificate.

        self.listener = Listener(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.listener.socket = context.wrap_socket(self.listener.socket, server_side=True,
                                                       do_handshake_on_connect=False)
        self.thread = threading.Thread(target=self.listener.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    @property
    def port(self):
        return self.listener.server_address[1]

    @property
    def url(self):
        return f"{'https' if self.is_secure else 'http'}://127.0.0.1:{self.port}"

    def close(self):
        self.listener.shutdown()
        self.thread.join()
        self.listener.server_close()


def main():
    server = RangeServer(sys.argv[1])
    print(server.port, flush=True)
    sys.stdin.read()
    server.close()


if __name__ == "__main__":
    main()
