"""How long a voice recording is, without hearing it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.channel import Recording, recording_of
from tests.recordings import MP3, SILENCE, WAV, ogg_opus


def test_the_length_of_a_voice_message_is_read_and_how_much_each_moment_took() -> None:
    packets = [SILENCE, SILENCE + bytes(300), SILENCE + bytes(252)]
    assert recording_of(ogg_opus(2.5)) == Recording(2.5, (3,) * 125)
    assert recording_of(ogg_opus(packets=packets)) == Recording(0.06, (3, 303, 255))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MP3,
        WAV,
        b"OggS",
        ogg_opus()[:-1],
        ogg_opus() + b"x",
        ogg_opus() + ogg_opus().replace(b"\7\0\0\0", b"\x08\0\0\0"),
        ogg_opus().replace(b"OpusHead", b"\x01vorbis\0"),
        ogg_opus()[:47],
        ogg_opus(0.02).replace(b"\xf8\xff\xfe", b""),
    ],
)
def test_what_is_something_else_or_broken_off_has_no_known_length(data: bytes) -> None:
    assert recording_of(data) is None


@given(st.integers(0, 400), st.binary(max_size=8))
def test_a_file_of_any_bytes_is_read_or_refused(at: int, spoiled: bytes) -> None:
    whole = ogg_opus(0.5)
    found = recording_of(whole[:at] + spoiled + whole[at + len(spoiled) :])
    assert found is None or found.seconds > 0


@given(st.binary(max_size=200))
def test_a_mark_with_any_bytes_after_it_is_read_or_refused(data: bytes) -> None:
    assert recording_of(b"OggS" + data) is None
