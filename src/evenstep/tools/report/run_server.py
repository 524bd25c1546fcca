"""`RunServer`: the page of a step log that is being written, served to this machine alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.tools.report.run_page import run_page
from evenstep.tools.report.run_record import read_run

_HOST = "127.0.0.1"


class RunServer(ThreadingHTTPServer):
    """Answers ``GET /`` with the current page. A context manager, which starts and stops it."""

    daemon_threads = True

    def __init__(self, path: str | os.PathLike[str], port: int) -> None:
        """
        Args:
            port: 0 for a free one, see `url`.

        Raises:
            ConfigurationError: the port is in use or not allowed.
        """
        self.page: Callable[[], str] = lambda: run_page([read_run(path)], renews=True)
        try:
            super().__init__((_HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"cannot listen on {_HOST}:{port} ({error}); choose another port, or 0 for a free "
                "one"
            ) from error
        self.url = f"http://{_HOST}:{self.server_address[1]}/"

    def __enter__(self) -> RunServer:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: RunServer
    timeout = 10
    server_version, sys_version = "evenstep", ""

    def do_GET(self) -> None:
        # A page of another site may point its own name at this address.
        if self.headers.get("Host", "").partition(":")[0] not in (_HOST, "localhost"):
            return self._answer(403, "text/plain", "ask 127.0.0.1")
        if self.path.partition("?")[0] != "/":
            return self._answer(404, "text/plain", "there is nothing but /")
        try:
            return self._answer(200, "text/html", self.server.page())
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
        """Logs nothing: the page is requested every two seconds."""
