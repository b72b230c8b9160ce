"""The limit of attempts."""

from __future__ import annotations

from gateway.access.tokens import Attempts


class Clock:
    """Seconds, as they are set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_so_many_within_the_time_and_no_more() -> None:
    clock = Clock()
    attempts = Attempts(2, 60, clock)
    assert not attempts.used_up("ada")
    attempts.count("ada")
    clock.now = 30
    attempts.count("ada")
    assert (attempts.used_up("ada"), attempts.used_up("eve")) == (True, False)
    clock.now = 59.9
    assert attempts.used_up("ada")
    clock.now = 60
    assert not attempts.used_up("ada"), "the first is too long ago to count"
    attempts.count("ada")
    assert attempts.used_up("ada")


def test_wrong_attempts_during_the_block_extend_it() -> None:
    clock = Clock()
    attempts = Attempts(2, 60, clock)
    for second in range(100):
        clock.now = second
        attempts.count("ada")
    assert attempts.used_up("ada")
    clock.now = 158
    assert attempts.used_up("ada") is False


def test_what_is_forgotten_counts_no_more() -> None:
    attempts = Attempts(1, 60, Clock())
    attempts.count("ada")
    attempts.forget("ada")
    attempts.forget("nobody")
    assert not attempts.used_up("ada")


def test_those_whose_time_is_over_take_no_room() -> None:
    clock = Clock()
    attempts = Attempts(1, 60, clock)
    for n in range(5_000):
        attempts.count(f"early {n}")
    clock.now = 61
    for n in range(5_001):
        attempts.count(f"late {n}")
    assert len(attempts._made) < 10_001
    assert all(attempts.used_up(f"late {n}") for n in range(5_001))
