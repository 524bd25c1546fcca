"""`StatusEndpoint`: a running job's status over HTTP, as JSON, for dashboards and for `curl`.

A thread of the process that started the service answers; trainers and actors know nothing of it.
Requests are read-only, and only their first lines are read. What is shown has names that others
chose, such as those of sources, so nothing in it may be taken for a page.
"""

from __future__ import annotations

import hmac
import json
import os
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from evenstep.errors import ConfigurationError, EvenstepError

TOKEN_VARIABLE = "EVENSTEP_STATUS_TOKEN"

_MOST_AT_ONCE = 16  # requests; before another one, the oldest is given up
_LIMIT = 10.0  # seconds for a request and its answer
_MARKUP = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


class _Service(Protocol):
    def status(self) -> Mapping[str, Any]: ...


class StatusEndpoint:
    """Answers ``GET /status`` with a service's `status()`, and ``GET /healthz``, which needs no
    token, with 200 as long as the job has not failed, and 503 afterwards. A context manager."""

    def __init__(
        self, service: _Service, *, port: int = 0, host: str = "127.0.0.1", token: str | None = None
    ) -> None:
        """
        Args:
            service: a running service; it is not closed with the endpoint.
            port: 0 for a free one, see `url`.
            host: address to listen on; "0.0.0.0" lets other machines ask, and needs a token.
            token: that requests must carry, as ``Authorization: Bearer <token>``; None is that of
                the environment variable EVENSTEP_STATUS_TOKEN.

        Raises:
            ConfigurationError: the port is in use, out of range or not allowed; or the token is
                missing, empty, or nothing that a request can carry.
        """
        token = os.environ.get(TOKEN_VARIABLE) if token is None else token
        if token is not None and not (token.isprintable() and token.strip()):
            raise ConfigurationError(
                "the token is empty, or has characters that no request can carry, such as the end "
                f"of a line; give another one, or unset {TOKEN_VARIABLE}"
            )
        if token is None and host not in ("localhost", "::1") and not host.startswith("127."):
            raise ConfigurationError(
                f"host={host!r} lets other machines ask, and there is no token: set the "
                f"environment variable {TOKEN_VARIABLE}, or listen on 127.0.0.1"
            )

        class Handler(_Handler):
            running = service
            expected = None if token is None else f"Bearer {token}".encode()

        try:
            self._server = _Server((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"cannot listen on {host}:{port} ({error}); choose another port, or 0 for a free "
                "one"
            ) from error
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 2 * _MOST_AT_ONCE

    def __init__(self, *arguments: Any) -> None:
        self._open: list[socket.socket] = []  # the oldest first
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.append(request)
        for oldest in self._open[:-_MOST_AT_ONCE]:
            give_up(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with suppress(ValueError):
            self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # clients may leave at any time
            super().handle_error(request, client_address)


def give_up(request: socket.socket) -> None:
    """Ends what waits for more of a request."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    running: _Service
    expected: bytes | None
    """The header that requests must have."""
    server_version, sys_version = "evenstep", ""

    def handle(self) -> None:
        late = threading.Timer(_LIMIT, give_up, (self.connection,))
        late.daemon = True
        late.start()
        try:
            super().handle()
        finally:
            late.cancel()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        known = self.expected is None or hmac.compare_digest(given, self.expected)
        if not known and path != "/healthz":
            return self._answer(401, {"error": "send Authorization: Bearer TOKEN"})
        if path not in ("/status", "/healthz"):
            return self._answer(404, {"error": f"there is no {self.path}; ask /status or /healthz"})
        try:
            status = self.running.status()
        except EvenstepError as error:
            return self._answer(503, {"error": str(error)} if known else {})
        if path == "/status":
            return self._answer(200, status)
        failed = status.get("failed") or status["planner"].get("failed")
        return self._answer(503 if failed else 200, {"failed": failed} if known else {})

    def _answer(self, code: int, value: Mapping[str, Any]) -> None:
        body = json.dumps(value, allow_nan=False).translate(_MARKUP).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Content-Type-Options", "nosniff")
        if code == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Logs nothing: dashboards ask every second."""
