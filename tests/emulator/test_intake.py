"""Reading what a request asks for."""

import base64

import pytest

from gateway.emulator import intake
from gateway.emulator.intake import Limits, RequestError
from gateway.emulator.scenario import wav

LIMITS = Limits(("tiny", "other"), 1000, lambda: 77)


def form(**fields: bytes) -> bytes:
    """A multipart body with boundary "b"."""
    parts = [
        b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), value)
        for name, value in fields.items()
    ]
    return b"".join(parts) + b"--b--\r\n"


def transcribe(**fields: bytes) -> intake.Ask:
    ask, _ = intake.transcription("multipart/form-data; boundary=b", form(**fields), LIMITS)
    return ask


def test_a_form_is_read_whatever_its_parts_are() -> None:
    parts = b"--b\r\n\r\nnameless\r\n" + form(model=b"tiny", file=b"a\r\n--c\r\n\0", empty=b"")
    fields = intake.read_form('multipart/form-data; boundary="b"', parts)
    assert fields == {"model": b"tiny", "file": b"a\r\n--c\r\n\0", "empty": b""}


def test_a_transcription() -> None:
    ask = transcribe(file=wav(8.0), model=b"other", prompt=b"two words", stream=b"true", stream_include_usage=b"1")
    assert (ask.model, ask.work, ask.reasons) == ("other", ((8 * 13 + 2, 20),), ("stop",))
    assert (ask.stream, ask.include_usage) == (True, True)


@pytest.mark.parametrize(("cap", "output", "reason"), [(b"5", 5, "length"), (b"500", 20, "stop")])
def test_speech_ends_by_itself_or_at_the_cap(cap: bytes, output: int, reason: str) -> None:
    ask = transcribe(file=wav(8.0), max_completion_tokens=cap)
    assert (ask.work[0][1], ask.reasons) == (output, (reason,))
    assert transcribe(file=wav(8.0), emulator_output_tokens=b"7").work[0][1] == 7
    with pytest.raises(RequestError, match="max_tokens must be at least 1, got -1"):
        transcribe(file=wav(8.0), max_completion_tokens=b"many")


def test_an_absent_bound_is_drawn() -> None:
    ask = intake.chat({"messages": [{"content": "a b"}]}, LIMITS)
    assert (ask.model, ask.work, ask.reasons) == ("tiny", ((2, 77),), ("stop",))
    long = intake.chat({"messages": [{"content": "a " * 990}]}, LIMITS)
    assert (long.work, long.reasons) == (((990, 10),), ("length",))  # the context ends first
    assert intake.chat({"messages": [{"content": "a"}], "min_tokens": 99}, LIMITS).work == ((1, 99),)


def test_instructions_and_items_count() -> None:
    items = [{"role": "user", "content": [{"type": "input_text", "text": "c d e"}]}, "f"]
    ask = intake.response({"instructions": "a b", "input": items, "max_output_tokens": 1}, LIMITS)
    assert ask.prompt_tokens == 6


def test_a_score_repeats_its_one_text() -> None:
    assert intake.score({"text_1": "a", "text_2": ["b c", "d"]}, LIMITS).work == ((3, 0), (2, 0))
    assert intake.score({"text_1": ["a", "b c"], "text_2": ["d", "e"]}, LIMITS).work == ((2, 0), (3, 0))


def test_audio_inside_a_chat() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": base64.b64encode(wav(2.0)).decode()}}
    assert intake.chat({"messages": [{"content": [audio]}], "max_tokens": 1}, LIMITS).prompt_tokens == 26
    broken = {"type": "input_audio", "input_audio": {"data": "A"}}
    with pytest.raises(RequestError, match="Invalid base64"):
        intake.chat({"messages": [{"content": [broken]}], "max_tokens": 1}, LIMITS)
