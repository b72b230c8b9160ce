"""One contract suite for the three services: what each method does, and what each status becomes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from plugins.coding_agents.errors import CredentialDeniedError
from plugins.coding_agents.forges.contract import Forge, ForgeError, NewPullRequest
from tests.plugins.coding_agents.forges.fakes import (
    KINDS,
    SHA,
    TOKEN,
    FakeForge,
    Scripted,
    fake_forge,
    reaching,
)

DRAFT = NewPullRequest(head="trunkline/fix-auth", base="main", title="Fix the login", body="It was wrong.")


@pytest_asyncio.fixture(params=KINDS)
async def fake(request: pytest.FixtureRequest) -> AsyncGenerator[FakeForge]:
    async with fake_forge(request.param) as running:
        yield running


@pytest_asyncio.fixture
async def forge(fake: FakeForge) -> AsyncGenerator[Forge]:
    async with reaching(fake) as forges:
        yield forges.forge_for(fake.url)


async def test_003_19_a_title_and_a_body_become_a_pull_request_with_number_and_url(
    fake: FakeForge, forge: Forge
) -> None:
    pull = await forge.create_pr(DRAFT)
    assert pull.number == 5
    assert pull.url.startswith(f"{fake.url}/")
    assert pull.url.endswith("/5")
    assert (pull.state, pull.head, pull.base, pull.sha) == ("open", DRAFT.head, "main", SHA)
    made = fake.pulls[0]
    assert (made.title, made.body, made.draft) == ("Fix the login", "It was wrong.", False)


async def test_a_draft_is_a_draft(fake: FakeForge, forge: Forge) -> None:
    await forge.create_pr(NewPullRequest(head="a", base="main", title="Try", draft=True))
    assert fake.pulls[0].draft


async def test_a_second_request_for_the_same_branches_returns_the_open_one(
    fake: FakeForge, forge: Forge
) -> None:
    assert await forge.create_pr(DRAFT) == await forge.create_pr(DRAFT)
    assert len(fake.pulls) == 1


async def test_the_open_one_is_found_by_its_branch(fake: FakeForge, forge: Forge) -> None:
    assert await forge.find_pr(DRAFT.head) is None
    fake.open("other", "main", "Other", "")
    made = await forge.create_pr(DRAFT)
    assert await forge.find_pr(DRAFT.head) == made
    assert await forge.find_pr(DRAFT.head, "main") == made
    assert await forge.find_pr(DRAFT.head, "stable") is None
    fake.pulls[-1].state = "closed"
    assert await forge.find_pr(DRAFT.head) is None


async def test_it_is_found_among_many(fake: FakeForge, forge: Forge) -> None:
    for number in range(120):
        fake.open(f"branch-{number}", "main", "One of many", "")
    found = await forge.find_pr("branch-119")
    assert found is not None
    assert found.number == 124


@pytest.mark.parametrize("state", ["open", "merged", "closed"])
async def test_the_state_is_read(fake: FakeForge, forge: Forge, state: str) -> None:
    made = await forge.create_pr(DRAFT)
    fake.pulls[0].state = state
    assert (await forge.pr_state(made.number)).state == state


async def test_comments_reviews_and_lines_are_comments(fake: FakeForge, forge: Forge) -> None:
    made = await forge.create_pr(DRAFT)
    fake.add_comment("Please add a test")
    fake.add_comment("Nearly done", "review", "bob")
    fake.add_comment("Wrong variable", "line", path="src/auth.py", line=12)
    fake.add_comment("not submitted yet", "pending")
    found = {one.body: one for one in await forge.comments(made.number)}
    assert set(found) == {"Please add a test", "Nearly done", "Wrong variable"}
    assert len({one.id for one in found.values()}) == 3
    line = found["Wrong variable"]
    assert (line.author, line.path, line.line) == ("ada", "src/auth.py", 12)
    assert found["Nearly done"].author == "bob"
    assert all(one.url.startswith(fake.url) for one in found.values())


async def test_all_pages_of_comments_are_read(fake: FakeForge, forge: Forge) -> None:
    made = await forge.create_pr(DRAFT)
    for number in range(250):
        fake.add_comment(f"comment {number}")
    assert len(await forge.comments(made.number)) == 250


async def test_checks_are_pending_passed_or_failed(fake: FakeForge, forge: Forge) -> None:
    assert list(await forge.checks(SHA)) == []
    fake.checks += [("build", "passed"), ("test", "failed"), ("lint", "pending")]
    found = {one.name: one for one in await forge.checks(SHA)}
    assert {name: one.state for name, one in found.items()} == dict(fake.checks)
    assert found["test"].url.startswith(fake.url)
    assert found["test"].summary == "test failed"


async def test_all_pages_of_checks_are_read(fake: FakeForge, forge: Forge) -> None:
    fake.checks += [(f"job {number}", "passed") for number in range(249)] + [("last", "failed")]
    found = await forge.checks(SHA)
    assert len(found) == 250
    assert [one.name for one in found if one.state == "failed"] == ["last"]


async def test_an_unchanged_answer_is_not_sent_again(fake: FakeForge, forge: Forge) -> None:
    made = await forge.create_pr(DRAFT)
    assert await forge.pr_state(made.number) == await forge.pr_state(made.number)
    assert fake.unchanged == (0 if fake.kind == "gitea" else 1)
    fake.pulls[0].state = "merged"
    assert (await forge.pr_state(made.number)).state == "merged"


async def test_a_rejected_token_is_named_by_its_setting_and_never_shown(fake: FakeForge) -> None:
    async with reaching(fake, "wrong-0123456789") as forges:
        with pytest.raises(CredentialDeniedError, match=r"plugins\.coding_agents\.forges") as refused:
            await forges.forge_for(fake.url).create_pr(DRAFT)
    assert "wrong-" not in str(refused.value)
    assert refused.value.name == "CREDENTIAL_DENIED"
    assert not refused.value.retryable


async def test_a_token_in_an_error_of_the_service_is_removed(fake: FakeForge, forge: Forge) -> None:
    fake.then(Scripted(400, b'{"message": "no \\u001b[31m ' + TOKEN.encode() + b'\\nhere"}'))
    with pytest.raises(ForgeError) as refused:
        await forge.create_pr(DRAFT)
    assert TOKEN not in str(refused.value)
    assert str(refused.value).isprintable()


async def test_a_forbidden_request_says_which_right_is_missing(fake: FakeForge, forge: Forge) -> None:
    fake.then(Scripted(403, b'{"message": "Resource not accessible by personal access token"}'))
    with pytest.raises(CredentialDeniedError, match="not accessible by personal access token") as refused:
        await forge.create_pr(DRAFT)
    assert "read and write pull requests" in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "retry_after"),
    [
        (Scripted(429, headers={"Retry-After": "37"}), 37.0),
        (Scripted(403, headers={"Retry-After": "60"}), 60.0),
        (Scripted(403, headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1"}), 0.0),
        (Scripted(429), None),
    ],
)
async def test_a_rate_limit_names_when_to_continue(
    fake: FakeForge, forge: Forge, answer: Scripted, retry_after: float | None
) -> None:
    fake.then(answer)
    with pytest.raises(ForgeError, match="limits the rate") as refused:
        await forge.create_pr(DRAFT)
    assert refused.value.retryable
    assert refused.value.retry_after == retry_after


@pytest.mark.parametrize(
    ("answer", "said", "retryable"),
    [
        (Scripted(404, b'{"message": "Not Found"}'), "does not exist, or .* may not see it", False),
        (Scripted(301, headers={"Location": "https://example.org/"}), "probably moved", False),
        (Scripted(409, b'{"message": "the branch is gone"}'), "409 to POST .* the branch is gone", False),
        (
            Scripted(422, b'{"message": "Validation Failed", "errors": [{"message": "No commits"}]}'),
            "Validation Failed; No commits",
            False,
        ),
        (Scripted(400, b'{"message": {"base": ["is invalid"]}}'), "base: is invalid", False),
        (Scripted(400, b'{"error": "title is missing"}'), "title is missing", False),
        (Scripted(500, b"<html>oops</html>"), "answered 500", True),
        (Scripted(502), "answered 502", True),
        (Scripted(503), "answered 503", True),
        (Scripted(201, b"<html>welcome</html>"), "cannot be read", True),
        (Scripted(201, b'{"number": "five"}'), "cannot be read", True),
        (Scripted(201, b"{" * 100_000), "cannot be read", True),
        (Scripted(201, b" " * 8_100_000), "more than", False),
    ],
)
async def test_a_status_becomes_an_error_with_its_cause(
    fake: FakeForge, forge: Forge, answer: Scripted, said: str, retryable: bool
) -> None:
    fake.then(answer)
    with pytest.raises(ForgeError, match=said) as refused:
        await forge.create_pr(DRAFT)
    assert refused.value.retryable is retryable
    assert refused.value.name == "FORGE_REFUSED"
    assert fake.pulls == []


async def test_a_slow_service_is_given_up_and_what_it_did_is_found_later(fake: FakeForge) -> None:
    async with reaching(fake, seconds=0.5) as forges:
        forge = forges.forge_for(fake.url)
        fake.then(Scripted(201, hold=True, carry_out=True))
        with pytest.raises(ForgeError, match=r"did not answer within 0\.5 s") as refused:
            await forge.create_pr(DRAFT)
        assert refused.value.retryable
    async with reaching(fake) as forges:
        assert (await forges.forge_for(fake.url).create_pr(DRAFT)).number == 5
    assert len(fake.pulls) == 1


async def test_a_service_that_is_gone_is_named_with_its_setting() -> None:
    async with fake_forge("gitea") as fake:
        pass
    async with reaching(fake) as forges:
        with pytest.raises(ForgeError, match=r"cannot be reached: .*base_url") as refused:
            await forges.forge_for(fake.url).find_pr("a")
    assert refused.value.retryable


async def test_the_token_is_only_in_the_header_of_requests(
    fake: FakeForge, forge: Forge, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    await forge.create_pr(DRAFT)
    await forge.comments(5)
    assert all(TOKEN in headers["Authorization"] for headers in fake.headers)
    assert all(TOKEN not in path for _, path in fake.requests)
    captured = capfd.readouterr()
    assert TOKEN not in captured.out + captured.err
