"""A stand-in for the Kubernetes API: an HTTPS server with an authority of its own, which checks what it is asked."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PATH = "/apis/apps/v1/namespaces/bellringer/deployments/executors/scale"
TOKEN = "token-of-the-service-account"


class KubernetesApi(ThreadingHTTPServer):
    """One deployment and its scale. `status` makes the next answers refusals, `refused_patches` the next so many
    changes; `hold` lets all of them wait."""

    daemon_threads = True

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replicas = 2
        self.token = TOKEN
        self.status = 200
        self.refused_patches = 0
        self.hold = threading.Event()
        self.hold.set()
        self.requests: list[tuple[str, str, str | None, bytes]] = []
        self.ca_file = directory / "ca.crt"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*make_certificates(directory))
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up, or does not trust us, is none of our business."""


class _Handler(BaseHTTPRequestHandler):
    server: KubernetesApi
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    def do_PATCH(self) -> None:
        self._answer()

    def _answer(self) -> None:
        api = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        api.requests.append((self.command, self.path, self.headers.get("Content-Type"), body))
        api.hold.wait(30)
        status = api.status
        if self.headers.get("Authorization") != f"Bearer {api.token}":
            return self._send(401, {"kind": "Status", "message": "Unauthorized", "code": 401})
        if self.path != PATH:
            return self._send(404, {"kind": "Status", "message": 'deployments.apps "executors" not found', "code": 404})
        if status != 200:
            return self._send(status, {"kind": "Status", "message": "the object has been modified", "code": status})
        if self.command == "PATCH":
            if api.refused_patches:
                api.refused_patches -= 1
                return self._send(409, {"kind": "Status", "message": "the object has been modified", "code": 409})
            if self.headers.get("Content-Type") != "application/merge-patch+json":
                return self._send(
                    415, {"kind": "Status", "message": "the body of the request was in an unknown format"}
                )
            api.replicas = json.loads(body)["spec"]["replicas"]
        spec = {"replicas": api.replicas} if api.replicas else {}  # zero is left out, as by the real one
        return self._send(200, {"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": spec, "status": {}})

    def _send(self, status: int, answer: dict[str, object]) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has
        """Nobody reads it."""


@contextmanager
def kubernetes_api(directory: Path) -> Iterator[KubernetesApi]:
    """The server, while it runs."""
    api = KubernetesApi(directory)
    thread = threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield api
    finally:
        api.hold.set()
        api.shutdown()
        api.server_close()
        thread.join()


def make_certificates(directory: Path) -> tuple[Path, Path]:
    """A certificate for localhost and its key, signed by an authority whose certificate is `ca.crt`."""
    key, certificate, request = directory / "tls.key", directory / "tls.crt", directory / "tls.csr"
    extensions = directory / "extensions"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=critical,CA:FALSE\n")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    authority = ["-keyout", str(directory / "ca.key"), "-out", str(directory / "ca.crt"), "-days", "2"]
    usage = ["-addext", "keyUsage=critical,keyCertSign"]
    _openssl("req", "-x509", *new_key, *authority, *usage, "-subj", "/CN=an authority of the tests")
    _openssl("req", *new_key, "-keyout", str(key), "-out", str(request), "-subj", "/CN=localhost")
    signing = ["-CA", str(directory / "ca.crt"), "-CAkey", str(directory / "ca.key"), "-CAcreateserial", "-days", "2"]
    _openssl("x509", "-req", "-in", str(request), *signing, "-extfile", str(extensions), "-out", str(certificate))
    return certificate, key


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
