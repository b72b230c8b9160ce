"""The preparation of a new workspace: files to copy, and a command that runs in the sandbox.

In: ``[plugins.coding_agents.workspaces.setup."HOST/OWNER/NAME"]``. Out: the exit status of the command and
the end of its output, for the chat. The command runs code of the repository, so it is confined as the agent.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from gateway import SettingsError
from gateway.api import FOLDER, open_below
from plugins.coding_agents.settings import SetupSettings
from plugins.coding_agents.workspaces.checkouts import Checkout, Confine
from plugins.coding_agents.workspaces.records import SetupResult
from plugins.programs.environment import environment_for, find_program
from plugins.programs.process import Launch, OutputLimitError, capture_output

SETUP_SECONDS = 600.0
OUTPUT_LETTERS = 20_000
LARGEST_FILE = 16 * 1024 * 1024


def copy_files(files: Mapping[str, Path], tree: Path) -> None:
    """Copy files of this machine into a worktree, over what is there, but never through a link.

    Raises SettingsError if a file is missing or too large, or cannot be there.
    """
    base = os.open(tree, FOLDER)
    try:
        for name, origin in files.items():
            parts = PurePosixPath(name).parts
            if not parts or parts[0] in ("/", ".git") or ".." in parts:
                raise SettingsError(f"setup.files: {name!r} is not a path within a workspace")
            try:
                _copy(base, parts, origin.expanduser())
            except OSError as error:
                raise SettingsError(f"setup.files: {origin} cannot be copied to {name!r}: {error}") from None
    finally:
        os.close(base)


def _copy(base: int, parts: Sequence[str], origin: Path) -> None:
    content = origin.read_bytes()
    if len(content) > LARGEST_FILE:
        raise OSError(f"it has more than {LARGEST_FILE:,} bytes")
    for depth in range(1, len(parts)):
        parent = open_below(base, parts[: depth - 1], FOLDER)
        try:
            os.mkdir(parts[depth - 1], dir_fd=parent)
        except FileExistsError:
            pass
        finally:
            os.close(parent)
    folder = open_below(base, parts[:-1], FOLDER)
    fresh = f".trunkline-{secrets.token_hex(8)}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(fresh, flags, 0o600, dir_fd=folder), "wb") as file:
            file.write(content)
        os.replace(fresh, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)


async def run_command(
    settings: SetupSettings, checkout: Checkout, environ: Mapping[str, str], confine: Confine
) -> SetupResult | None:
    """Run the command of the settings, if there is one, for at most 10 minutes.

    A command that cannot be started or takes too long has a result as well. Raises SandboxUnavailableError.
    """
    if not settings.command:
        return None
    env = environment_for(environ, (), {})
    program = find_program(settings.command[0], env)
    if program is None:
        return SetupResult(127, f"the program {settings.command[0]!r} was not found")
    # With the streams joined, errors are shown where they happened.
    argv = ["/bin/sh", "-c", 'exec "$@" 2>&1', "sh", program, *settings.command[1:]]
    confined = await confine(argv, env, writable=checkout.writable, readable=checkout.readable, network=True)
    try:
        output = await capture_output(Launch(confined, env, str(checkout.tree)), SETUP_SECONDS)
    except TimeoutError:
        return SetupResult(124, f"it was ended after {SETUP_SECONDS:g} s")
    except (OSError, OutputLimitError) as error:
        return SetupResult(126, str(error))
    return SetupResult(output.code, output.text[-OUTPUT_LETTERS:])
