"""`StatusEndpoint`: a running job's status over HTTP, as JSON, for dashboards and for `curl`.

A thread of the process that started the service answers; trainers and actors know nothing of it.
Requests are read-only.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from evenstep.errors import ConfigurationError, EvenstepError


class _Service(Protocol):
    def status(self) -> Mapping[str, Any]: ...


class StatusEndpoint:
    """Answers ``GET /status`` with a service's `status()`, and ``GET /healthz`` with 200 as long as
    the job has not failed, and 503 afterwards. A context manager."""

    def __init__(self, service: _Service, *, port: int = 0, host: str = "127.0.0.1") -> None:
        """
        Args:
            service: a running service; it is not closed with the endpoint.
            port: 0 for a free one, see `url`.
            host: address to listen on; "0.0.0.0" lets other machines ask, without any password.

        Raises:
            ConfigurationError: the port is in use, out of range or not allowed.
        """

        class Handler(_Handler):
            running = service

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port} ({error}); choose another port, or 0 for a free "
                "one"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address, such as ``http://127.0.0.1:8123``."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        """Stops answering. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> StatusEndpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler(BaseHTTPRequestHandler):
    running: _Service

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        if path not in ("/status", "/healthz"):
            return self._answer(404, {"error": f"there is no {self.path}; ask /status or /healthz"})
        try:
            status = self.running.status()
        except EvenstepError as error:
            return self._answer(503, {"error": str(error)})
        if path == "/status":
            return self._answer(200, status)
        failed = status.get("failed") or status["planner"].get("failed")
        return self._answer(503 if failed else 200, {"failed": failed})

    def _answer(self, code: int, value: Mapping[str, Any]) -> None:
        body = json.dumps(value, allow_nan=False).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing: dashboards ask every second."""
