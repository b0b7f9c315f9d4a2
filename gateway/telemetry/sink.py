"""Lines to a file or a standard stream without ever making the caller wait.

``write`` only appends to a bounded list; a thread does the blocking work. Where that cannot keep up (a pipe nobody
reads, a full disk), lines are dropped and counted: logging never stops serving.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

CAPACITY: Final = 16 * 1024 * 1024
_BATCH: Final = 0.05  # seconds that lines are gathered before a write
_STREAMS: Final = {"stdout": 1, "stderr": 2}

# A pipe without a reader must fail at once instead of holding the start; regular files ignore O_NONBLOCK.
_FLAGS: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_MODE: Final = 0o640


class LineSink:
    """Takes whole lines from any thread.

    ``capacity`` bounds the bytes that wait (as many again may be in the writer's hand). ``on_trouble`` hears, in the
    writer's thread, one sentence when writing begins to fail and one when it works again.
    """

    def __init__(
        self, target: str, *, capacity: int = CAPACITY, on_trouble: Callable[[str], None] | None = None
    ) -> None:
        """Open ``target`` (``stdout``, ``stderr`` or a path) and start the writer.

        Raises:
            OSError: the file cannot be opened for appending.
        """
        self._target = target
        self._is_file = target not in _STREAMS
        self._fd = os.open(target, _FLAGS, _MODE) if self._is_file else _STREAMS[target]
        self._capacity = capacity
        self._on_trouble = on_trouble or (lambda _: None)
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._size = 0
        self._dropped = 0
        self._stopped = False
        self._failing = False
        self._reopen = False
        self._mid_line = False
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._writer = threading.Thread(target=self._run, name=f"log writer {target}", daemon=True)
        self._writer.start()

    @property
    def dropped(self) -> int:
        """Lines lost so far."""
        return self._dropped

    def write(self, line: bytes) -> None:
        """Queue one line, its line feed included; dropped where the queue is full or the sink stopped."""
        with self._lock:
            if self._stopped or self._size + len(line) > self._capacity:
                self._dropped += 1
                return
            first = not self._lines
            self._lines.append(line)
            self._size += len(line)
        if first:  # else it is awake, and has not yet taken what there is
            self._wake.set()

    def reopen(self) -> None:
        """Have the writer open the path anew, as logrotate wants it; where that fails the old file stays in use."""
        self._reopen = self._is_file
        self._wake.set()

    def stop(self, timeout: float = 2.0) -> None:
        """Write what is queued, for at most ``timeout`` seconds, and close; what is left counts as dropped. Idempotent.

        A writer that hangs in a write is left behind, with what it holds: it is a daemon thread and does not hold the
        process.
        """
        with self._lock:
            self._stopped = True
        self._stopping.set()
        self._wake.set()
        self._writer.join(timeout)
        self._drop(self._take())

    # ----------------------------------------------------------------------------------------------------------
    # In the writer's thread
    # ----------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait()
            self._stopping.wait(_BATCH)
            self._wake.clear()
            self._turn()
        self._turn()
        if self._is_file:
            os.close(self._fd)

    def _turn(self) -> None:
        if self._reopen:
            self._renew()
        self._write(self._take())

    def _take(self) -> bytes:
        with self._lock:
            lines, self._lines, self._size = self._lines, [], 0
        return b"".join(lines)

    def _drop(self, lost: bytes) -> None:
        with self._lock:
            self._dropped += lost.count(b"\n")

    def _renew(self) -> None:
        self._reopen = False
        try:
            fresh = os.open(self._target, _FLAGS, _MODE)
        except OSError as error:
            self._on_trouble(f"cannot reopen {self._target}, the old file stays in use: {error.strerror}")
            return
        os.close(self._fd)
        self._fd = fresh
        self._mid_line = False

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if self._mid_line:  # a failed write left half a line: end it, so that only that one is broken
            data = b"\n" + data
        view = memoryview(data)
        try:
            while view:
                written = self._write_some(view)  # a compiled slice would work this out twice
                view = view[written:]
            self._mid_line = False
            self._report(None)
        except OSError as error:
            through = len(data) - len(view)
            if through:
                self._mid_line = not data.endswith(b"\n", 0, through)
            self._drop(bytes(view).lstrip(b"\n"))  # a leading line feed is the end of a line that is there already
            self._report(error)

    def _write_some(self, view: memoryview) -> int:
        """Bytes written; waits for a stream that takes none, but not past the stop.

        Raises:
            OSError: it cannot be written; TimeoutError where the sink stopped first.
        """
        while True:
            try:
                return os.write(self._fd, view)
            except BlockingIOError:
                if self._stopping.is_set():
                    raise TimeoutError from None
                self._stopping.wait(_BATCH)

    def _report(self, error: OSError | None) -> None:
        failing = error is not None
        if failing != self._failing:
            self._failing = failing
            trouble = f"cannot write to {self._target}: {error}"
            self._on_trouble(trouble if failing else f"writing to {self._target} works again")
