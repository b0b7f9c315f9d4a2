"""The demo's load, and what an engine can do at best."""

import random
from dataclasses import replace

import pytest

from gateway.emulator import intake
from gateway.emulator.profiles import C550_ASR, FLAT
from gateway.emulator.scenario import best_throughput, clip_tokens, overload, speech, wav
from tests.emulator.workloads import play


def test_a_clip_on_the_wire_is_what_the_model_was_told() -> None:
    for seed in range(20):
        ask = speech("tiny")(random.Random(seed))
        limits = intake.Limits(("tiny",), 4096, lambda: 1)
        read, _ = intake.transcription(ask.content_type, ask.body, limits)
        (prompt, output), (told_prompt, told_output) = read.work[0], clip_tokens(random.Random(seed))
        assert abs(prompt - told_prompt) <= 1  # a header counts whole bytes
        assert abs(output - told_output) <= 1
        assert not ask.stream


def test_a_wav_tells_its_length() -> None:
    assert intake.audio_seconds(wav(5.0)) == pytest.approx(5.0, abs=1e-3)
    assert intake.audio_seconds(b"\0" * 32_000) == pytest.approx(2.0)
    assert intake.audio_seconds(b"RIFF....WAVEfmt " + b"\0" * 40) == pytest.approx(56 / 16_000)


def test_the_best_of_a_flat_engine_is_all_its_sequences() -> None:
    best = best_throughput(replace(FLAT, max_num_seqs=20), lambda _: (1, 10))
    assert best == pytest.approx(20 / 0.1, rel=0.25)  # concurrency is tried in steps of a quarter


def test_the_best_of_the_c550_is_where_its_batch_costs_a_square() -> None:
    best = best_throughput(C550_ASR, clip_tokens)
    chance = random.Random(0)
    for concurrency in (10, 30, 50, 60, 100, 200):
        requests = [clip_tokens(chance) for _ in range(12 * concurrency)]
        assert play(C550_ASR, requests, concurrency).requests_per_second < 1.02 * best
    assert best > play(C550_ASR, requests, 200).requests_per_second * 1.5


def test_an_overload_is_so_many_times_the_best() -> None:
    scene = overload(7.0, timeout=3.0, times=4.0, seed=9)
    assert scene.plan.rate == pytest.approx(4.0 * scene.best)
    assert (scene.plan.duration, scene.plan.timeout, scene.plan.max_retries, scene.plan.seed) == (7.0, 3.0, 2, 9)
