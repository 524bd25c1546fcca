"""Two hosts on one machine: networks, names and temporary folders of their own, joined by a cable
that a test may cut. With root's rights, and tools of Linux."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOOLS = ("ip", "ss", "nsenter", "unshare")
TEMPORARY = "/var/tmp"


def tell(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


def why_not_two() -> str:
    """Why this machine cannot be two; empty if it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"there is no {', '.join(missing)}"
    try:
        tell("unshare", "-n", "-u", "ip", "link", "add", "c0", "type", "veth")
    except subprocess.CalledProcessError as error:
        return f"no networks can be made: {error.stderr.decode().strip()}"
    return ""


class Host:
    """Lives until it is closed, and with it what was started on it."""

    def __init__(self, number: int) -> None:
        self.name, self.device = f"host{number}", f"cable{number}"
        self.address = f"10.214.0.{number + 1}"
        made = f"hostname {self.name} && mount -t tmpfs none {TEMPORARY} && ip link set lo up"
        apart = ["unshare", "-n", "-u", "-m", "-p", "-f", "--kill-child", "--mount-proc"]
        self._holder = subprocess.Popen(
            [*apart, "sh", "-c", f"{made} && echo made && exec sleep infinity"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "made\n"
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children")
        self.pid = int(children.read_text())
        """Of its first process."""

    def command(self, *words: object) -> list[str]:
        """A command that runs on it."""
        own = f"TMPDIR={TEMPORARY}"
        enter = ["nsenter", "-t", str(self.pid), "-n", "-u", "-m", "-p", "env", own]
        return [*enter, *map(str, words)]

    def python(self, *words: object, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(sys.executable, "-u", *words),
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def unplug(self) -> None:
        tell(*self.command("ip", "link", "set", self.device, "down"))

    def close(self) -> None:
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    hosts: list[Host] = []
    try:
        hosts = [Host(0)]
        hosts.append(Host(1))
        first, second = hosts
        ends = [(host.device, host.pid) for host in hosts]
        (a, pid), (b, other) = ends
        tell(
            "ip", "link", "add", a, "netns", pid, "type", "veth", "peer", "name", b, "netns", other
        )
        for host in hosts:
            tell(*host.command("ip", "addr", "add", f"{host.address}/24", "dev", host.device))
            tell(*host.command("ip", "link", "set", host.device, "up"))
        yield first, second
    finally:
        for host in hosts:
            host.close()
