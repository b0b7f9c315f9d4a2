"""Recordings: admitted by their length, sent on as they came."""

from __future__ import annotations

import base64
import json
import random
import struct

import pytest

from gateway.model import Outcome
from tests.proxy.helpers import StartBackend, always, chunked, open_house, reply, request


def wav(seconds: int) -> bytes:
    """PCM of 16 kHz, 16 bits, mono; the samples are noise, so that anything may stand among them."""
    size = 32_000 * seconds
    head = (
        b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16_000, 32_000, 2, 16)
    )
    return head + b"data" + struct.pack("<I", size) + random.Random(seconds).randbytes(size)


def upload(recording: bytes, boundary: str, *, fields_first: bool) -> bytes:
    mark = f"--{boundary}\r\nContent-Disposition: form-data; name="
    fields = f'{mark}"model"\r\n\r\nqwen3-asr\r\n{mark}"language"\r\n\r\nzh\r\n'.encode()
    file = f'{mark}"file"; filename="会议 \'1\'.wav"\r\nContent-Type: audio/wav\r\n\r\n'.encode() + recording + b"\r\n"
    parts = fields + file if fields_first else file + fields
    return parts + f"--{boundary}--\r\n".encode()


@pytest.mark.parametrize("boundary", ["----WebKitFormBoundaryAx7'()+_,-./:=?", "0"])
@pytest.mark.parametrize("fields_first", [True, False])
@pytest.mark.parametrize("pieces", [False, True])
async def test_P18_a_recording_passes_byte_for_byte_and_is_admitted_by_its_length(
    backend: StartBackend, boundary: str, fields_first: bool, pieces: bool
) -> None:
    engine = await backend(always(reply(b'{"text":"ok","usage":{"type":"duration","seconds":25}}')))
    body = upload(wav(25), boundary, fields_first=fields_first)  # 800 KB
    headers = [("Content-Type", f'multipart/form-data; boundary="{boundary}"')]
    async with open_house(engine) as house:
        client = await house.client()
        if pieces:
            asked = request(
                target="/v1/audio/transcriptions", headers=[*headers, ("Transfer-Encoding", "chunked")], length=False
            )
            await client.send(asked)
            for at in range(0, len(body), 7919):
                await client.send(chunked(body[at : at + 7919]))
            answer = await client.ask(b"0\r\n\r\n")
        else:
            answer = await client.ask(request(target="/v1/audio/transcriptions", body=body, headers=headers))
        assert answer.status == 200
        sent = engine.requests[0]
        assert sent.body == body
        assert sent.all("Content-Type") == [headers[0][1]]
        assert sent.all("Content-Length") == [str(len(body))]
        shape = house.controller.offered[0].shape
        assert (shape.model, shape.route.label) == ("qwen3-asr", "transcriptions")
        assert shape.media_tokens == pytest.approx(13 * 25, rel=0.01)
        assert house.controller.offered[0].body_bytes == len(body)
        assert (await house.records.count(1))[0].outcome is Outcome.COMPLETED


@pytest.mark.parametrize("kind", ["input_audio", "audio_url"])
async def test_P18_a_recording_in_a_chat_is_weighed_by_its_length(backend: StartBackend, kind: str) -> None:
    engine = await backend(always(reply()))
    encoded = base64.b64encode(wav(10)).decode()
    part = {"data": encoded, "format": "wav"} if kind == "input_audio" else {"url": f"data:audio/wav;base64,{encoded}"}
    content = [{"type": "text", "text": "What is said?"}, {"type": kind, kind: part}]
    body = json.dumps({"model": "qwen3-asr", "messages": [{"role": "user", "content": content}]}).encode()
    async with open_house(engine) as house:
        assert (await house.ask(request(body=body))).status == 200
        assert engine.requests[0].body == body
        shape = house.controller.offered[0].shape
        assert shape.media_tokens == pytest.approx(130, rel=0.01)
        assert shape.prompt_bytes == len("What is said?"), "base64 is no text"


async def test_P18_a_recording_at_a_url_has_a_prior(backend: StartBackend) -> None:
    engine = await backend(always(reply()))
    content = [{"type": "audio_url", "audio_url": {"url": "https://media.example/long.mp3"}}]
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}).encode()
    async with open_house(engine) as house:
        assert (await house.ask(request(body=body))).status == 200
        assert house.controller.offered[0].shape.media_tokens == 390


async def test_P19_a_form_that_cannot_be_read_goes_on_for_the_engine_to_judge(backend: StartBackend) -> None:
    engine = await backend(always(reply(b'{"error":{}}', "400 Bad Request")))
    async with open_house(engine) as house:
        for content_type in (
            "multipart/form-data",
            "multipart/form-data; boundary=\xff",
            "multipart/form-data; boundary=",
        ):
            asked = request(
                target="/v1/audio/transcriptions", body=b"x" * 300_000, headers=[("Content-Type", content_type)]
            )
            assert (await house.ask(asked)).status == 400
        assert [sent.body for sent in engine.requests] == [b"x" * 300_000] * 3
        assert house.controller.balanced
