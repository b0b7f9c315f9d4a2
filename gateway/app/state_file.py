"""What was learned, in a small file: a gateway that is started again goes on where the one before it was.

It is written beside the hot path, whole or not at all, every so often and at the end. One that cannot be used is told
of and left out; it never keeps the gateway from starting. What is no state file is not written over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from gateway.admission.memory import Memory

KIND: Final = "inference-gateway state"
EVERY: Final = 30.0  # seconds
OLDEST: Final = 7 * 86_400.0  # seconds; engines are replaced meanwhile
LARGEST: Final = 16 * 1024 * 1024  # bytes

_log = logging.getLogger("gateway.state_file")


class Learner(Protocol):
    """Whose memory it is."""

    def remember(self) -> Memory:
        """Everything that was learned."""

    def recall(self, memory: Memory) -> tuple[str, ...]:
        """Go on from it; names of the backends of which it knew something."""


class Document(BaseModel):
    """The whole file, or what one gateway tells another. ``saved_at`` is in seconds since the epoch."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    kind: Literal["inference-gateway state"] = KIND
    version: Literal[1] = 1
    saved_at: float
    memory: Memory


class _ForeignError(ValueError):
    """It is no state file."""


class StateFile:
    """The state file of one gateway."""

    def __init__(
        self, path: str, learner: Learner, clock: Callable[[], float] = time.time, every: float = EVERY
    ) -> None:
        """Nothing is read or written yet. ``clock`` gives seconds since the epoch; it is written ``every`` seconds."""
        self._every = every
        self._path = Path(path)
        self._learner = learner
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._saved: Memory | None = None
        self._ours = True  # what is at the path may be written over
        self._failing = False

    def load(self) -> None:
        """Let the learner go on from what the file says, where it can be used; tell the log what became of it."""
        try:
            with self._path.open("rb") as file:
                document = read(file.read(LARGEST + 1), self._clock() - OLDEST)
            known = self._learner.recall(document.memory)
        except FileNotFoundError:
            _log.info("state file %s: none yet, everything is learned from the start", self._path)
        except _ForeignError as error:
            self._ours = False
            _log.warning("state file %s: left alone and not used: %s", self._path, error)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            _log.warning("state file %s: not used, everything is learned from the start: %s", self._path, reason)
        else:
            told = ", ".join(known) if known else "none of these backends: it was written before others"
            age = self._clock() - document.saved_at
            _log.info("state file %s: saved %.0f s ago, knows of %s", self._path, age, told)

    def start(self) -> None:
        """Write it every so often from now on, on the running loop."""
        if self._ours:
            self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Write it a last time. Idempotent; without ``start`` nothing is written."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._save()

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            await self._save()

    async def _save(self) -> None:
        memory = self._learner.remember()
        if memory == self._saved:
            return
        document = Document(saved_at=self._clock(), memory=memory)
        try:
            await asyncio.to_thread(_write, self._path, document)
        except OSError as error:
            if not self._failing:
                _log.warning("state file %s: cannot be written: %s", self._path, error.strerror)
            self._failing = True
        else:
            self._saved, self._failing = memory, False


def read(data: bytes, since: float) -> Document:
    """What it says, if it is a state file and was saved ``since`` then.

    Raises:
        ValueError: why it cannot be used.
    """
    if len(data) > LARGEST:
        raise _ForeignError(f"it is larger than {LARGEST} bytes, as no state file is")
    if KIND.encode() not in data[:200]:
        raise _ForeignError(f"it does not begin as one of {KIND!r} does; name another path, or remove it")
    try:
        document = Document.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from None
    if document.saved_at < since:
        raise ValueError(f"it is {(since - document.saved_at + OLDEST) / 86_400:.0f} days old, at most 7 are trusted")
    return document


def _write(path: Path, document: Document) -> None:
    """Whole or not at all; only its owner may read it, as it tells names of models."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(document.model_dump_json().encode())
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
