"""Programs that fetch packages: git and pip, with limits of time and of the size of files."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gateway.contract.errors import PluginError
from gateway.extensions.admission.tree import MOST_BYTES

_SECONDS = 600


def run_program(
    argv: Sequence[str], folder: Path, environ: Mapping[str, str] | None, what: str, stdin: bytes = b""
) -> bytes:
    """Run a program to its end, without a shell. Return its output. Raises PluginError if it fails.

    Without ``environ`` it has the environment of the gateway. It may write files of 200 MB, and
    take 10 minutes.
    """
    try:
        with subprocess.Popen(  # noqa: S603 - fixed programs, without a shell
            argv,
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            try:
                if hasattr(resource, "prlimit"):
                    # No server may fill the disk.
                    with suppress(OSError, ValueError):
                        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (2 * MOST_BYTES, 2 * MOST_BYTES))
                output, errors = process.communicate(stdin, _SECONDS)
            except BaseException:
                process.kill()
                raise
    except subprocess.TimeoutExpired:
        raise PluginError(f"{what} took more than {_SECONDS} s") from None
    except OSError as error:
        raise PluginError(f"{what} cannot be started: {error.strerror}") from None
    if process.returncode:
        lines = [line for line in errors.decode(errors="replace").splitlines() if line.strip()]
        said = next(
            (line for line in lines if line.startswith(("ERROR:", "fatal:"))), lines[-1] if lines else ""
        )
        raise PluginError(f"{what} failed: {said.strip()[:300] or 'no output'}")
    return output
