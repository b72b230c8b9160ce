"""The context windows of models: what is known of them, what errors teach, and how estimates become right."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.contract.errors import SettingsError
from gateway.models import ContextWindow
from gateway.models.catalog import window_in
from gateway.settings import load_settings


@pytest.mark.parametrize(
    ("error", "window"),
    [
        (
            "This model's maximum context length is 8192 tokens. However, your messages had 9000 tokens.",
            8192,
        ),
        (
            "This endpoint's maximum context length is 32,768 tokens. However, you requested about 40000",
            32768,
        ),
        ("prompt is too long: 210000 tokens > 200000 maximum", 200000),
        ("input length and `max_tokens` exceed context limit: 190000 + 21333 > 200000, decrease", 200000),
        ("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).", 1048576),
        ("The input token count is 33000 but the model only supports up to 32768.", 32768),
        ("This model's maximum prompt length is 131072 but the request contains 537812 tokens.", 131072),
        ("too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5290", 4081),
        ("Prompt contains 39999 tokens, too large for model with 32768 maximum context length", 32768),
        ("`inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens", 8193),
        ("prompt token count of 80000 exceeds the limit of 64000", 64000),
        ("Request too large for model on tokens per minute (TPM): Limit 6000, Requested 8000", 6000),
        ("the request exceeds the available context size of 4096 tokens, try increasing it", 4096),
        ("Input is too long for requested model.", None),
        ("Please reduce the length of the messages or completion.", None),
        ("context length is 3", None),
        ("context length is 99999999999", None),
    ],
)
def test_errors_name_the_window_in_many_ways(error: str, window: int | None) -> None:
    assert window_in(error) == window


def test_004_t07_the_limit_leaves_room_for_the_answer() -> None:
    window = ContextWindow(total=200_000, output=64_000)
    assert window.limit(None) == 168_000
    assert window.limit(4_096) == 195_904
    assert window.limit(4_096, 0.9) == 180_000
    assert ContextWindow(total=200_000, input=120_000, output=8_000).limit(None) == 120_000
    assert ContextWindow(total=4_000, output=4_000).limit(None) == 2_000
    assert ContextWindow().limit(None) == 128_000


def test_reported_tokens_calibrate_estimates() -> None:
    window = ContextWindow(total=10_000)
    for _ in range(8):
        window.calibrate(2_000, 1_000)
    assert 4_900 < window.limit(None) < 5_100
    window.calibrate(10, 5_000)
    window.calibrate(1_000, 100)
    assert 4_900 < window.limit(None) < 5_100


def test_an_error_teaches_the_window_or_that_the_estimate_was_low() -> None:
    unknown = ContextWindow()
    unknown.learn("maximum context length is 8192 tokens", 9_000, 100)
    assert unknown.limit(100) == 8_092
    low = ContextWindow(total=8_192)
    low.learn("maximum context length is 8192 tokens", 4_000, 100)
    assert low.limit(100) <= 4_000
    silent = ContextWindow()
    silent.learn("Input is too long.", 9_000, 100)
    assert silent.limit(100) < 9_000
    known = ContextWindow(total=8_192)
    known.learn("maximum context length is 100000 tokens", 9_000, 100)
    assert known.limit(100) == 8_092


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("history_window = 200", "counts tokens and no longer messages"),
        ("compaction = 0.2", "compaction"),
        ("compaction = true", "compaction"),
        ('[agents.a]\ncompaction = "no"', "agents.a.compaction"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_key(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "t.toml").write_text(line)
    with pytest.raises(SettingsError) as refused:
        load_settings(tmp_path / "t.toml", environ={}, cwd=tmp_path)
    print(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(("written", "value"), [("false", False), ("0.5", 0.5), ("0.95", 0.95)])
def test_compaction_is_a_share_or_false_also_in_the_environment(
    tmp_path: Path, written: str, value: float | bool
) -> None:
    (tmp_path / "t.toml").write_text(f"[agents.a]\ncompaction = {written}")
    settings = load_settings(tmp_path / "t.toml", environ={"TRUNKLINE_COMPACTION": written}, cwd=tmp_path)
    assert settings.compaction == settings.agents["a"].compaction == value
