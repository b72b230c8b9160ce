"""A network of the tests' own: hosts in network namespaces, between which packets get lost."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

_SUBNET = "10.213.0"
_NOWHERE = "02:00:00:00:01:00"
"""The hardware address of no host."""
_CLONE_NEWNET = 0x40000000


class ForbiddenError(Exception):
    """The kernel does not allow this process to make network namespaces."""


class Network:
    """Hosts at one switch, each in a network namespace; the machine's own network stays as it is.

    Packets get lost silently: no host and no connection learns of it. ``hosts`` are names of interfaces, and
    ``program`` is the path of `ip`.
    """

    subnet = f"{_SUBNET}.0/24"

    def __init__(self, hosts: Sequence[str], program: str) -> None:
        self._program = program
        self._numbers = {host: number for number, host in enumerate(hosts, start=1)}
        self._prefix = f"trunkline-{os.getpid()}"
        self._made: list[str] = []

    def address(self, host: str) -> str:
        """The address of a host."""
        return f"{_SUBNET}.{self._numbers[host]}"

    def command(self, host: str) -> Sequence[str]:
        """What comes before a command that runs on a host."""
        return (self._program, "netns", "exec", self._namespace(host))

    def open(self) -> None:
        """Make it. Raises ForbiddenError."""
        try:
            self._add("switch")
            self._ip("switch", "link", "add", "name", "ports", "type", "bridge")
            for host in self._numbers:
                self._add(host)
                port = ("type", "veth", "peer", "name", host, "netns", self._namespace("switch"))
                self._ip(host, "link", "add", "name", "wire", *port)
                self._run("netns", "exec", self._namespace(host), "true")
        except subprocess.CalledProcessError as error:
            raise ForbiddenError(f"the kernel allows no hosts of our own: {error.stderr.strip()}") from None
        self._ip("switch", "link", "set", "dev", "ports", "up")
        for host in self._numbers:
            self._ip(host, "link", "set", "dev", "wire", "address", self._hardware(host))
            self._ip(host, "address", "add", f"{self.address(host)}/24", "dev", "wire")
            self._ip(host, "link", "set", "dev", "wire", "up")
            self._ip("switch", "link", "set", "dev", host, "master", "ports", "up")
        self.heal()

    def lose(self, source: str, target: str) -> None:
        """Let the packets of one host to another get lost, and those in the other direction pass."""
        self._direct(source, target, _NOWHERE)

    def part(self, one: str, *others: str) -> None:
        """Let the packets between a host and others get lost, in both directions."""
        for other in others:
            self.lose(one, other)
            self.lose(other, one)

    def unplug(self, host: str) -> None:
        """Let all packets of and to a host get lost."""
        self.part(host, *(other for other in self._numbers if other != host))

    def heal(self) -> None:
        """Let all packets pass."""
        for source in self._numbers:
            for target in self._numbers:
                if source != target:
                    self._direct(source, target, self._hardware(target))

    @contextmanager
    def entered(self, host: str) -> Generator[None]:
        """Let the sockets that this thread opens, and those of the threads it starts, be of a host."""
        before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        try:
            _enter(Path("/run/netns", self._namespace(host)))
            try:
                yield
            finally:
                _enter(Path(f"/proc/self/fd/{before}"))
        finally:
            os.close(before)

    def close(self) -> None:
        """End what still runs on the hosts, and remove them."""
        for namespace in self._made:
            for pid in self._run("netns", "pids", namespace).split():
                os.kill(int(pid), signal.SIGKILL)
            self._run("netns", "delete", namespace)

    def _add(self, host: str) -> None:
        self._run("netns", "add", self._namespace(host))
        self._made.append(self._namespace(host))
        self._ip(host, "link", "set", "dev", "lo", "up")

    def _direct(self, source: str, target: str, hardware: str) -> None:
        neighbor = ("lladdr", hardware, "dev", "wire", "nud", "permanent")
        self._ip(source, "neighbor", "replace", self.address(target), *neighbor)

    def _hardware(self, host: str) -> str:
        return f"02:00:00:00:00:{self._numbers[host]:02x}"

    def _namespace(self, host: str) -> str:
        return f"{self._prefix}-{host}"

    def _ip(self, host: str, *arguments: str) -> None:
        self._run("-netns", self._namespace(host), *arguments)

    def _run(self, *arguments: str) -> str:
        return subprocess.run([self._program, *arguments], check=True, capture_output=True, text=True).stdout


def _enter(namespace: Path) -> None:
    opened = os.open(namespace, os.O_RDONLY)
    try:
        # `os.setns` is of Python 3.12.
        if ctypes.CDLL(None, use_errno=True).setns(opened, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns failed")
    finally:
        os.close(opened)
