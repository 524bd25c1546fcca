"""`RunServer`: the page of a step log that is being written, on this machine alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.tools.report.run_page import run_page
from evenstep.tools.report.run_record import read_run

_HOST = "127.0.0.1"


class RunServer:
    """Answers ``GET /`` with the page as of then. A context manager."""

    def __init__(self, path: str | os.PathLike[str], port: int) -> None:
        """
        Args:
            port: 0 for a free one, see `url`.

        Raises:
            ConfigurationError: the port is in use or not allowed.
        """

        class Handler(_Handler):
            def page(self) -> str:
                return run_page([read_run(path)], renews=True)

        try:
            self._server = ThreadingHTTPServer((_HOST, port), Handler)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"cannot listen on {_HOST}:{port} ({error}); choose another port, or 0 for a free "
                "one"
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://{_HOST}:{self._server.server_address[1]}/"

    def __enter__(self) -> RunServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    page: Callable[[], str]
    timeout = 10
    server_version, sys_version = "evenstep", ""

    def do_GET(self) -> None:
        # A page of another site may have its own name lead here.
        if self.headers.get("Host", "").partition(":")[0] not in (_HOST, "localhost"):
            return self._answer(403, "text/plain", "ask 127.0.0.1")
        if self.path.partition("?")[0] != "/":
            return self._answer(404, "text/plain", "there is nothing but /")
        try:
            return self._answer(200, "text/html", self.page())
        except EvenstepError as error:
            return self._answer(503, "text/plain", str(error))

    def _answer(self, code: int, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing: the page asks every two seconds."""
