"""Patterns for commands: a program and its arguments, compared word by word and never as one text.

The key of a call is its argument vector in shell quoting, with the program as an absolute path. ``cd FOLDER
&&`` comes before it where it does not run in the tool's first folder; an "always" holds in its folder only.
In a pattern ``*``, ``?`` and ``[…]`` match inside one word, and a last word ``*`` matches all further
arguments, also none. A program without a folder is one of the system's folders for ``allow``, and one of any
folder for ``deny`` and ``ask``.

A pattern with wildcards cannot allow a command that starts other programs: an interpreter, a wrapper such as
``env`` or ``xargs``, or an argument such as ``--exec``. The user is asked then. An "always" stores the
program and its leading arguments for the commands in ``_PREFIXES``, and the whole command for all others.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct

Action = Literal["allow", "deny", "ask"]

SYSTEM_FOLDERS = frozenset(("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"))
"""The folders of programs that an ``allow`` pattern may name without one."""

_ANY = "…"
"""A word of the user's choice among leading arguments, such as the name of a script."""

_PREFIXES: Mapping[str, Sequence[tuple[str, ...]]] = {
    "cargo": (("build",), ("check",), ("clippy",), ("doc",), ("fmt",), ("test",), ("tree",)),
    "df": ((),),
    "du": ((),),
    "git": (
        *(("add",), ("blame",), ("branch",), ("commit",), ("describe",), ("diff",), ("fetch",)),
        *(("log",), ("ls-files",), ("pull",), ("push",), ("rev-parse",), ("shortlog",), ("show",)),
        *(("status",), ("switch",), ("tag",)),
    ),
    "go": (("build",), ("doc",), ("list",), ("test",), ("version",), ("vet",)),
    "ls": ((),),
    "npm": (("run", _ANY), ("audit",), ("ci",), ("ls",), ("outdated",), ("test",), ("view",)),
    "pnpm": (("run", _ANY), ("audit",), ("list",), ("outdated",), ("test",)),
    "pwd": ((),),
    "stat": ((),),
    "uname": ((),),
    "wc": ((),),
    "whoami": ((),),
    "yarn": (("run", _ANY), ("audit",), ("list",), ("outdated",), ("test",)),
}
"""Programs and leading arguments after which every argument that is not in ``_STARTING`` may follow."""

_SCRIPT_OPTIONS = (
    *("--browser", "--dir", "--editor", "--git", "--globalconfig", "--init-module", "--node-options"),
    *("--npm-path", "--onload-script", "--prefix", "--script-shell", "--shell", "--userconfig", "--viewer"),
    *("--config", "--cwd", "--use-yarnrc", "--use-node-version", "--global-dir", "-C", "-c"),
)
_ARCHIVE_OPTIONS = (
    *("--checkpoint-action", "--info-script", "--new-volume-script", "--rmt-command", "--rsh-command"),
    *("--to-command", "--use-compress-program", "-F", "-I"),
)
_FD_OPTIONS = ("--exec", "--exec-batch", "-x", "-X")
_STARTING: Mapping[str, Sequence[str]] = {
    "ack": ("--pager",),
    "ag": ("--pager",),
    "bat": ("--pager",),
    "batcat": ("--pager",),
    "cargo": (
        *("--artifact-dir", "--config", "--lockfile-path", "--manifest-path", "--open", "--out-dir"),
        *("--target-dir", "-C", "-Z"),
    ),
    "diff3": ("--diff-program",),
    "fd": _FD_OPTIONS,
    "fdfind": _FD_OPTIONS,
    "find": ("-delete", "-exec", "-execdir", "-fls", "-fprint", "-fprint0", "-fprintf", "-ok", "-okdir"),
    "git": (
        *("--exec", "--ext-diff", "--extcmd", "--filters", "--no-index", "--open-files-in-pager"),
        *("--output", "--receive-pack", "--textconv", "--upload-pack"),
    ),
    "go": (
        *("-asmflags", "-C", "-compiler", "-exec", "-gccgoflags", "-gcflags", "-ldflags", "-modfile", "-o"),
        *("-overlay", "-toolexec", "-vettool", "-pkgdir", "-blockprofile", "-coverprofile", "-cpuprofile"),
        *("-http", "-memprofile", "-mutexprofile", "-outputdir", "-test", "-trace"),
    ),
    "install": ("--strip-program",),
    "npm": _SCRIPT_OPTIONS,
    "pnpm": _SCRIPT_OPTIONS,
    "rg": ("--hostname-bin", "--pre"),
    "rsync": ("--rsh", "--rsync-path", "-e", "-M", "--remote-option"),
    "scp": ("-S", "-o", "-F"),
    "sdiff": ("--diff-program",),
    "sort": ("--compress-program", "--output", "-o", "-T"),
    "split": ("--filter",),
    "tar": _ARCHIVE_OPTIONS,
    "bsdtar": _ARCHIVE_OPTIONS,
    "wget": ("--config", "--execute", "--use-askpass", "-e"),
    "yarn": _SCRIPT_OPTIONS,
    "zip": ("-T", "-TT", "--test", "--unzip-command"),
}
"""Options that start another program, load code or settings, or write to a file, by program."""

_EXACT_GIT = frozenset(
    (
        *("archive", "bisect", "clone", "config", "daemon", "difftool", "filter-branch", "for-each-repo"),
        *("grep", "hook", "instaweb", "maintenance", "merge-index", "mergetool", "rebase", "send-email"),
        *("submodule", "web--browse", "init", "am"),
    )
)
"""Subcommands of git that start programs which their arguments or a repository name."""

_STARTERS = frozenset(
    # Shells and interpreters.
    (
        *("ash", "awk", "bash", "bun", "busybox", "csh", "dash", "deno", "elvish", "erl", "expect", "fish"),
        *("gawk", "gdb", "ghci", "groovy", "guile", "ipython", "irb", "java", "jshell", "julia", "ksh"),
        *("lldb", "lua", "luajit", "m4", "mawk", "nawk", "node", "nodejs", "ocaml", "octave", "osascript"),
        *("perl", "php", "pwsh", "powershell", "pypy", "python", "R", "rbash", "Rscript", "ruby", "scala"),
        *("sed", "sh", "sqlite3", "swift", "tclsh", "toybox", "ts-node", "tsx", "wish", "yash", "zsh"),
        *("psql", "mysql", "dc"),
        # Wrappers: they run the program that their arguments name.
        *("at", "batch", "capsh", "chroot", "chrt", "cgexec", "choom", "crontab", "dbus-run-session", "doas"),
        *("entr", "env", "fakeroot", "firejail", "flock", "ftrace", "hyperfine", "ionice", "ltrace", "mosh"),
        *("nice", "nohup", "nsenter", "numactl", "parallel", "perf", "pkexec", "prlimit", "proot", "rsh"),
        *("run-parts", "runuser", "runcon", "script", "setarch", "setpriv", "setsid", "sg", "socat", "ssh"),
        *("start-stop-daemon", "stdbuf", "strace", "su", "sudo", "systemd-run", "taskset", "time", "timeout"),
        *("tmux", "screen", "unbuffer", "unshare", "uv", "uvx", "valgrind", "watch", "watchexec", "xargs"),
        *("xvfb-run", "catchsegv", "linux32", "linux64", "x86_64", "i386", "unlink-run", "bwrap", "sshpass"),
        # Package runners and build tools: their arguments or files name the program.
        *("bunx", "bundle", "cmake", "corepack", "gem", "gradle", "just", "make", "gmake", "meson", "mvn"),
        *("ninja", "npx", "nix", "nix-shell", "pip", "pipx", "pnpx", "poetry", "pipenv", "rake", "rustup"),
        *("tox", "nox", "yarnpkg", "pytest", "conda", "mamba", "hatch", "pdm", "rye", "asdf", "mise"),
        # Containers and clusters.
        *("ctr", "docker", "kubectl", "lxc", "machinectl", "nerdctl", "podman", "virsh", "vagrant"),
        # Editors and pagers with a way to a shell.
        *("ed", "emacs", "ex", "joe", "less", "man", "more", "most", "nano", "nvim", "pico", "vi", "view"),
        *(
            "vim",
            "vimdiff",
            "rvim",
            "gvim",
            "ftp",
            "sftp",
            "telnet",
            "nc",
            "ncat",
            "netcat",
            "nmap",
            "tcpdump",
        ),
    )
)
_RUNNERS = frozenset(("bunx", "npx", "pnpx", "pipx", "uvx"))
"""Programs whose first argument is the package that they run."""
_VERSIONED = re.compile(r"(?P<name>.+?)[-.]?[0-9][0-9.]*[a-z]?")
"""A name with a version, such as python3.11 or gcc-12."""
_LOADER = re.compile(r"ld(-linux[\w-]*|-musl[\w-]*)?\.so(\.[0-9]+)*|ld-[0-9.]+\.so")
_GLOB = re.compile(r"[*?\[]")


class Command(Struct, frozen=True):
    """A command: the folder it runs in (empty for the tool's first one) and its argument vector."""

    folder: str
    argv: tuple[str, ...]

    @property
    def key(self) -> str:
        """The command in shell quoting."""
        where = ("cd", shlex.quote(self.folder), "&&") if self.folder else ()
        return " ".join((*where, shlex.join(self.argv)))


def parse(key: str) -> Command | None:
    """Parse a key; None unless its program is an absolute, normalised path."""
    try:
        words = shlex.split(key)
    except ValueError:
        return None
    folder = ""
    # No program is called "cd" here, because programs are absolute paths.
    if len(words) > 3 and words[0] == "cd" and words[2] == "&&":
        folder, words = words[1], words[3:]
    if not words or not words[0].startswith("/") or "\0" in key:
        return None
    if any(step in (".", "..", "") for step in words[0][1:].split("/")):
        return None
    return Command(folder, tuple(words))


def judge(pattern: str, action: Action, command: Command) -> Action | None:
    """Return what a pattern decides: its action, ``ask`` instead of a too wide ``allow``, or None."""
    words = shlex.split(pattern)
    if not _matches_program(words[0], action, command):
        return None
    first, *arguments = words
    is_literal = "*" not in words and (first == command.argv[0] or not _GLOB.search(first))
    if is_literal and tuple(arguments) == command.argv[1:]:
        return action
    if not _matches_arguments(arguments, command.argv[1:]) and pattern != "*":
        return None
    return "ask" if action == "allow" and _GLOB.search(pattern) and starts_programs(command) else action


def check(pattern: str) -> None:
    """Raise ValueError if a pattern can match no command."""
    try:
        words = shlex.split(pattern)
    except ValueError as error:
        raise ValueError(f"is not a command in shell quoting: {error}") from None
    if not words:
        raise ValueError("is empty; write a program, such as git status *")
    if "/" in words[0] and not words[0].startswith(("/", "*")):
        raise ValueError("begins with a relative path; write the program's name or its absolute path")


def offer(key: str) -> str | None:
    """Return what an "always" covers: program, leading arguments and ``*``, or else the whole command."""
    command = parse(key)
    if command is None:
        return None
    leading = _leading(command)
    if leading is None or starts_programs(command):
        return command.key
    return f"{Command(command.folder, command.argv[:leading]).key} *"


def granted(grant: str, key: str) -> bool:
    """Return whether a stored "always" covers a command."""
    command = parse(key)
    if command is None:
        return False
    if grant == command.key:
        return True
    # Shell quoting puts a literal * in quotes, so that a bare one at the end marks a prefix.
    stored = parse(grant[:-2]) if grant.endswith(" *") else None
    if stored is None or stored.folder != command.folder or starts_programs(command):
        return False
    leading = _leading(command)
    return leading == len(stored.argv) and stored.argv == command.argv[:leading]


def granted_pattern(pattern: str, program: str, arguments: Sequence[str]) -> bool:
    """Return whether a pattern that was granted to a plugin covers a command.

    ``program`` is the absolute path that was found for the pattern's first word. A command that starts other
    programs is covered by an exact pattern; a package runner also by one that names the package.
    """
    words = shlex.split(pattern)[1:]
    command = Command("", (program, *arguments))
    if tuple(words) == command.argv[1:]:
        return True
    if not _matches_arguments(words, command.argv[1:]):
        return False
    names_package = bool(words) and not (_GLOB.search(words[0]) or words[0].startswith("-"))
    if names_package and not _RUNNERS.isdisjoint(_names(program)):
        return True
    return not starts_programs(command)


def starts_programs(command: Command) -> bool:
    """Return whether a command is known to start programs that its arguments name."""
    program, *arguments = command.argv
    names = _names(program)
    if any(_is_starter(name) for name in names):
        return True
    if "git" in names and _is_open_git(arguments):
        return True
    if arguments and not names.isdisjoint(("tar", "bsdtar")):
        # The first argument may be a cluster of options without a dash.
        arguments[0] = f"-{arguments[0]}" if arguments[0][:1] not in ("", "-") else arguments[0]
    return any(_is_starting(word, name) for name in names for word in arguments)


def _is_open_git(arguments: Sequence[str]) -> bool:
    """Return whether git gets settings before its subcommand, a remote helper, or an open subcommand."""
    return bool(arguments) and (
        arguments[0].startswith("-") or arguments[0] in _EXACT_GIT or any("::" in word for word in arguments)
    )


def _names(program: str) -> set[str]:
    """Return the name of a program, and that of the file to which links lead."""
    # A few readlink calls on the local disk, less than the start of the program takes.
    return {PurePosixPath(program).name, Path(program).resolve().name}


def _is_starter(name: str) -> bool:
    versioned = _VERSIONED.fullmatch(name)
    plain = versioned["name"] if versioned else name
    return not {name, name.lower(), plain, plain.lower()}.isdisjoint(_STARTERS) or bool(
        _LOADER.fullmatch(name)
    )


def _is_starting(word: str, program: str) -> bool:
    """Return whether an argument is one of the options that start programs, also abbreviated or combined."""
    options = _STARTING.get(program, ())
    if not options or not word.startswith("-"):
        return False
    name = re.split(r"[=.]", word.lstrip("-"), maxsplit=1)[0]
    if program in ("go", "find"):
        return f"-{name}" in options
    # Programs accept the beginning of a long option, as far as it is unique, and some of them one dash.
    if len(name) > 1 and any(option.lstrip("-").startswith(name) for option in options):
        return True
    letters = {option[1:] for option in options if len(option) == 2}
    return not word.startswith("--") and any(letter in letters for letter in word[1:])


def _leading(command: Command) -> int | None:
    """Return the number of words that an "always" stores; None if that is the whole command."""
    program, *arguments = command.argv
    for words in _PREFIXES.get(PurePosixPath(program).name, ()):
        given = arguments[: len(words)]
        if len(given) == len(words) and all(
            word == wanted or (wanted == _ANY and word[:1] not in ("", "-"))
            for word, wanted in zip(given, words, strict=True)
        ):
            return 1 + len(words)
    return None


def _matches_program(wanted: str, action: Action, command: Command) -> bool:
    program = command.argv[0]
    if wanted == "*":
        return True
    if "/" in wanted:
        return program == wanted or fnmatchcase(program, wanted)
    if action == "allow":
        path = PurePosixPath(program)
        return str(path.parent) in SYSTEM_FOLDERS and fnmatchcase(path.name, wanted)
    return any(fnmatchcase(name, wanted) for name in _names(program))


def _matches_arguments(wanted: Sequence[str], given: Sequence[str]) -> bool:
    if wanted and wanted[-1] == "*":
        wanted = wanted[:-1]
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(map(fnmatchcase, given, wanted))
