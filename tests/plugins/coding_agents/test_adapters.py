"""The adapters: their names, and the readings of the shell; ``test_screens.py`` has the recorded screens."""

from __future__ import annotations

import pytest

from plugins.coding_agents.adapters import adapters, find_adapter
from plugins.coding_agents.adapters.contract import AgentRequest, Reading
from plugins.coding_agents.adapters.shell import ADAPTER as SHELL
from plugins.coding_agents.errors import UnknownAgentError


@pytest.mark.parametrize(("name", "found"), [("shell", "shell"), ("bash", "shell"), (" Shell ", "shell")])
def test_an_agent_is_found_by_name_and_alias(name: str, found: str) -> None:
    assert find_adapter(name).name == found


def test_an_unknown_agent_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UnknownAgentError) as caught:
        find_adapter("clod")
    assert caught.value.name == "UNKNOWN_AGENT"
    assert all(name in str(caught.value) for name in adapters())


def shell_reads(*lines: str, column: int | None = None) -> Reading:
    return SHELL.read(lines, (len(lines) - 1, len(lines[-1]) if column is None else column))


@pytest.mark.parametrize("line", ["pty>", "pty> ", "root@host:/srv#", "user@host:~/app$ ", "$"])
def test_the_shell_is_ready_at_an_empty_prompt(line: str) -> None:
    assert shell_reads("some output", line) == Reading("ready", input="", done=True)


@pytest.mark.parametrize(
    "line", ["> ", ">", "", "exit", "downloading 5", "Really? ", "password: ", "pty> ls", "it costs 5 $ each"]
)
def test_the_shell_is_not_ready_elsewhere(line: str) -> None:
    assert shell_reads("pty> make", line).state != "ready"


def test_the_shell_shows_what_is_typed_behind_the_prompt() -> None:
    assert shell_reads("old", "pty> ls -l").input == "ls -l"
    assert (
        shell_reads("old", "pty> for x in a b", "do echo $x", "done").input
        == "for x in a b\ndo echo $x\ndone"
    )
    assert shell_reads("pty> sleep 5", "").input is None


@pytest.mark.parametrize("line", ["Continue? [y/N]", "Overwrite it (yes/no)?", "Continue? [y/N] y"])
def test_a_yes_or_no_in_the_line_of_the_cursor_has_keys(line: str) -> None:
    question = shell_reads("pty> apt-get install x", line).question
    assert question is not None
    assert (question.yes, question.no) == (("y", "enter"), ("n", "enter"))


def test_the_digest_of_a_yes_or_no_does_not_depend_on_what_is_typed() -> None:
    digests = {shell_reads(line).question for line in ("Continue? [y/N]", "Continue? [y/N] y")}
    assert len(digests) == 1


@pytest.mark.parametrize("line", ["Which one do you want?", "Password for root:"])
def test_another_question_has_no_keys(line: str) -> None:
    question = shell_reads("pty> x", line).question
    assert question is not None
    assert (question.yes, question.no) == ((), ())


def test_a_question_above_the_cursor_is_output() -> None:
    assert shell_reads("pty> cat file", "Do you want to proceed? [y/N]", "pty>").question is None


def test_the_shell_starts_without_files_of_the_user() -> None:
    launch = SHELL.launch(AgentRequest(workdir="/w", home="/h"))
    assert {"--noprofile", "--norc"} <= set(launch.argv)
    assert launch.env["PS1"] == "pty> "
