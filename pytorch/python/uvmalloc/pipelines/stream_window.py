"""The window of a streamed checkpoint: which pieces are on the device or are being read ahead."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uvmalloc.forks import ForkedLock
from uvmalloc.loading import Checkpoint
from uvmalloc.pipelines.caller_state import (
    GRACE_SECONDS,
    WAIT_SECONDS,
    CallerState,
    refuse_capture,
)
from uvmalloc.sizes import format_size

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Piece:
    """Tensors that are loaded and dropped together."""

    what: str  # named in messages
    names: tuple[str, ...]  # names in the files
    size_bytes: int

    def with_more(self, other: Piece) -> Piece:
        return Piece(self.what, self.names + other.names, self.size_bytes + other.size_bytes)


class Window:
    """The bytes that a checkpoint's tensors may take, and which pieces have taken them.

    `lock` is held while bytes are taken or given back, and while a needed piece is read.
    """

    def __init__(self, checkpoint: Checkpoint, limit_bytes: int) -> None:
        self.checkpoint = checkpoint
        self.limit_bytes = limit_bytes
        self.half_bytes = limit_bytes // 2
        self.lock = ForkedLock()
        self._used_bytes = 0
        self._feeds: weakref.WeakSet[Feed] = weakref.WeakSet()
        self._dropped: list[_Ahead] = []  # pieces that are still being read
        self._reader = _Reader()

    def close(self) -> None:
        self._reader.close()

    def add(self, feed: Feed) -> None:
        self._feeds.add(feed)

    def check(self, piece: Piece) -> None:
        """Raises ValueError for a piece that leaves no room for the next one."""
        if piece.size_bytes > self.half_bytes:
            raise ValueError(
                f"{self.checkpoint.path}: {piece.what} has {format_size(piece.size_bytes)}; "
                f"accepted in a window of {format_size(self.limit_bytes)}: half of it"
            )

    def take(self, piece: Piece) -> None:
        """Takes the piece's bytes. Drops pieces that were read ahead to make room. Raises
        ValueError if there is no room.
        """
        if self._has_room(piece):
            self._used_bytes += piece.size_bytes
            return
        for feed in list(self._feeds):
            feed.drop_ahead()
        while not self._has_room(piece):
            if not self._dropped:
                raise ValueError(
                    f"{self.checkpoint.path}: {piece.what} has {format_size(piece.size_bytes)}, "
                    f"and other tensors in use take {format_size(self._used_bytes)} of the window "
                    f"of {format_size(self.limit_bytes)}; use a larger window, or keep fewer "
                    "tensors at a time"
                )
            futures = [ahead.future for ahead in self._dropped]
            wait(futures, WAIT_SECONDS, return_when=FIRST_COMPLETED)
        self._used_bytes += piece.size_bytes

    def _has_room(self, piece: Piece) -> bool:
        for ahead in [ahead for ahead in self._dropped if ahead.has_ended()]:
            self._dropped.remove(ahead)
            self.give_back(ahead.piece)
        return self._used_bytes + piece.size_bytes <= self.limit_bytes

    def give_back(self, piece: Piece) -> None:
        self._used_bytes -= piece.size_bytes

    def read_ahead(self, number: int, piece: Piece, caller: CallerState) -> _Ahead | None:
        """Begins to read the piece, with the state of `caller`. Returns None if there is no room,
        or if that state is valid only on the caller's thread.
        """
        if not self._has_room(piece):
            return None
        if caller.is_of_its_thread():
            return None
        if not self._reader.is_of_this_process():
            self._reader = _Reader()  # the parent's thread does not exist in a forked child
        load = self.checkpoint.load
        future = self._reader.submit(lambda: caller.run(load, piece.names, _has_ended.is_set))
        if future is None:
            return None
        self._used_bytes += piece.size_bytes
        return _Ahead(number, piece, caller, future)

    def drop(self, ahead: _Ahead) -> None:
        """Drops a piece that is not needed. Its bytes become free when its reading has ended."""
        if ahead.future.cancel() or ahead.has_ended():
            self.give_back(ahead.piece)
        else:
            self._dropped.append(ahead)


_Request = tuple["Future[dict[str, torch.Tensor]]", Callable[[], "dict[str, torch.Tensor]"]]


class _Reader:
    """A thread that reads for a window. It ends with the window or with the program."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # no request is added after the end
        self._has_begun = False
        self._end = weakref.finalize(self, self._requests.put, None)

    def is_of_this_process(self) -> bool:
        return os.getpid() == self._process

    def submit(
        self, function: Callable[[], dict[str, torch.Tensor]]
    ) -> Future[dict[str, torch.Tensor]] | None:
        """Returns None after close(), and while the program ends."""
        future: Future[dict[str, torch.Tensor]] = Future()
        with self._lock:
            if not self._end.alive or not self._begin():
                return None
            self._requests.put((future, function))
        return future

    def _begin(self) -> bool:
        """Starts the thread if necessary. Returns whether the thread runs."""
        if not self._has_begun:
            thread = threading.Thread(
                target=_read, args=(self._requests,), name="uvmalloc stream", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down
                return False
            _threads.add(thread)
            self._has_begun = True
        return True

    def close(self) -> None:
        if self.is_of_this_process():
            with self._lock:
                self._end()


_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_has_ended = threading.Event()  # set when the program ends


def _read(requests: queue.SimpleQueue[_Request | None]) -> None:
    while (request := requests.get()) is not None:
        future, function = request
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)
        del future, function, request


@atexit.register
def _end_all() -> None:
    """Ends the threads before the interpreter stops them anywhere, even inside a kernel."""
    _has_ended.set()
    for thread in list(_threads):
        thread.join(GRACE_SECONDS)


@dataclass(eq=False)
class _Ahead:
    """A piece that is being read, or was read, before it is needed."""

    number: int
    piece: Piece
    caller: CallerState
    future: Future[dict[str, torch.Tensor]]

    def has_ended(self) -> bool:
        """Also true in a forked child, because the reading thread does not exist there."""
        return self.future.done() or self.caller.process != os.getpid()


class Feed:
    """Provides pieces in any order. Reads the next piece ahead if the window has room."""

    def __init__(self, window: Window, pieces: list[Piece]) -> None:
        self._window = window
        self._pieces = pieces
        self._next = len(pieces)
        self._caller: CallerState | None = None  # state at the caller's last request
        self._ahead: _Ahead | None = None
        self._taken: dict[int, Piece] = {}  # taken pieces by number
        window.add(self)

    def take(self, number: int) -> dict[str, torch.Tensor]:
        """Returns the piece's tensors, as if the caller loaded them now.

        Give the piece back before taking it again.
        """
        refuse_capture("stream_safetensors", "a graph would keep the addresses of dropped tensors")
        with self._window.lock:
            caller = self._caller = CallerState.of_load()
            ahead, self._ahead = self._ahead, None
            if ahead is not None and (ahead.number, ahead.caller) != (number, caller):
                self._window.drop(ahead)
                ahead = None
            if ahead is None:
                piece = self._pieces[number]
                self._window.take(piece)
            else:
                piece = ahead.piece
            try:
                if ahead is None:
                    tensors = self._window.checkpoint.load(piece.names)
                else:
                    while not ahead.future.done():
                        wait([ahead.future], WAIT_SECONDS)
                    tensors = ahead.future.result()
                self._next = number + 1
                self._look_ahead()
            except BaseException:
                if ahead is None:
                    self._window.give_back(piece)
                else:
                    self._window.drop(ahead)
                raise
            self._taken[number] = piece
            return tensors

    def give_back(self, number: int) -> None:
        """Call it after the caller has dropped the piece's tensors."""
        with self._window.lock:
            self._window.give_back(self._taken.pop(number))
            self._look_ahead()

    def replace(self, number: int, piece: Piece) -> None:
        """From its next reading on, piece `number` is `piece`."""
        with self._window.lock:
            self._pieces[number] = piece
            self.drop_ahead()

    def drop_ahead(self) -> None:
        with self._window.lock:
            if self._ahead is not None:
                self._window.drop(self._ahead)
                self._ahead = None

    def close(self) -> None:
        with self._window.lock:
            self._next = len(self._pieces)
            self.drop_ahead()

    def _look_ahead(self) -> None:
        if self._ahead is None and self._next < len(self._pieces) and self._caller is not None:
            piece = self._pieces[self._next]
            self._ahead = self._window.read_ahead(self._next, piece, self._caller)
