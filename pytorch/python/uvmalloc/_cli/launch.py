"""Runs a program in place of this process: forwards signals to it and returns its exit code."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from uvmalloc.errors import CommandError

# SIGKILL and SIGSTOP cannot be blocked, and SIGCHLD reports on the program.
_OWN = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}
_PASSED_ON = signal.valid_signals() - _OWN
_STOPPING = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
# A terminal sends these signals to its whole foreground group.
_TERMINAL = {signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGWINCH, *_STOPPING}
# The kernel sends these signals for actions of the process itself.
_PRIVATE = {signal.SIGPIPE, signal.SIGXCPU, signal.SIGXFSZ}


# Interval for checking the program's state without a signal. The kernel may give SIGCHLD to another
# thread of this process, and that thread ignores it.
_LOOK_SECONDS = 0.5
# Time for the program to end after SIGTERM, if this process cannot wait for it.
_END_SECONDS = 5.0
_INTERPRETERS = {".py": "python", ".sh": "sh"}
_SFD_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC


class CommandNotFoundError(CommandError):
    exit_code = 127


class CommandNotExecutableError(CommandError):
    exit_code = 126


@dataclass(frozen=True)
class Finished:
    """A program that has ended."""

    pid: int
    exit_code: int  # 128 + the signal's number if a signal ended the program, as in shells
    signal_name: str | None = None  # such as SIGTERM; None: no signal ended the program
    ended_at: float = 0.0  # seconds since the epoch


def launch(command: Sequence[str], environment: Mapping[str, str]) -> Finished:
    """Runs `command` to its end. Call it from the main thread.

    Forwards every signal that this process receives. A terminal signals its whole foreground group,
    so its signals are forwarded only if the program has left the group.
    """
    waited_for = {*_PASSED_ON, signal.SIGCHLD}
    # This process may have started with SIGCHLD ignored. The exit code would then be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    try:
        with _Signals(waited_for) as signals:
            program = _Program(_start(command, environment, mask))
            with _ended_on_failure(program):
                while program.finished is None:
                    received = signals.next_within(_LOOK_SECONDS)
                    if received is not None:
                        program.take(received)
                    else:
                        program.look()
            # A signal to the whole group that ended the program must not also end the report.
            while signals.next_within(0) is not None:
                pass
            return program.finished
    except OSError as error:
        raise CommandError(f"cannot wait for {command[0]}: {error.strerror}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class _Signals:
    """Waits for blocked signals, one by one.

    `signal.sigtimedwait` with a timeout is unusable. If this process is stopped for longer than the
    timeout, some versions of Python return a signal that was never sent.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = set(numbers)

    def __enter__(self) -> _Signals:
        mask = (ctypes.c_uint8 * 128)()  # the C library's sigset_t
        for number in self._numbers:
            mask[(number - 1) // 8] |= 1 << (number - 1) % 8
        library = ctypes.CDLL(None, use_errno=True)
        self._file = library.signalfd(-1, ctypes.byref(mask), _SFD_FLAGS)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def next_within(self, seconds: float) -> signal.struct_siginfo | None:
        self._poll.poll(seconds * 1000)
        return signal.sigtimedwait(self._numbers, 0)


@contextmanager
def _ended_on_failure(program: _Program) -> Iterator[None]:
    """Ends the program if this process cannot wait for it."""
    try:
        yield
    except BaseException:
        program.end()
        raise


class _Program:
    """The running program. `take` handles a signal to this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.finished: Finished | None = None
        self._stopped_by: int | None = None
        self._stops: set[int] = set()  # stop signals to this process since it last continued

    def take(self, received: signal.struct_siginfo) -> None:
        number = received.si_signo
        if number == signal.SIGCHLD:
            self.look()
        elif number == signal.SIGCONT:
            self._stops.clear()
            if self._stopped_by is not None:
                self._send(signal.SIGCONT)
        else:
            if number in _STOPPING:
                self._stops.add(number)
            if received.si_code <= 0 or not self._has_it(number):
                self._send(number)
        # A shell shows a job as stopped only if the process that the shell waits for stops.
        if self._stopped_by in self._stops:
            self._stops.clear()
            os.kill(os.getpid(), signal.SIGSTOP)

    def _has_it(self, number: int) -> bool:
        """Whether the program also got this signal from the kernel, or must not get it."""
        if number not in _TERMINAL:
            return number in _PRIVATE
        if number == signal.SIGHUP and os.getsid(0) == os.getpid():
            return False  # on a hangup, only the first process of the session gets the signal
        return os.getpgid(self.pid) == os.getpgrp()

    def _send(self, number: int) -> None:
        with contextlib.suppress(PermissionError):  # the program runs as another user
            os.kill(self.pid, number)

    def look(self) -> None:
        """Records whether the program has stopped, continued or ended."""
        states = os.WEXITED | os.WSTOPPED | os.WCONTINUED | os.WNOHANG
        while (state := os.waitid(os.P_PID, self.pid, states)) is not None:
            if state.si_code == os.CLD_STOPPED:
                self._stopped_by = state.si_status
            elif state.si_code == os.CLD_CONTINUED:
                self._stopped_by = None
            else:
                self._note_end(state)
                return

    def end(self) -> None:
        """Ends the program with SIGTERM, then with SIGKILL if it still runs."""
        with contextlib.suppress(OSError):
            for number in (signal.SIGTERM, signal.SIGCONT):
                self._send(number)
            given_up_at = time.monotonic() + _END_SECONDS
            while self.finished is None and time.monotonic() < given_up_at:
                self.look()
                time.sleep(0.01)
        if self.finished is None:
            with contextlib.suppress(OSError):
                self._send(signal.SIGKILL)
                os.waitid(os.P_PID, self.pid, os.WEXITED)

    def _note_end(self, state: os.waitid_result) -> None:
        if state.si_code == os.CLD_EXITED:
            self.finished = Finished(self.pid, state.si_status, None, time.time())
            return
        name = signal_name(state.si_status)
        self.finished = Finished(self.pid, 128 + state.si_status, name, time.time())


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names
        return f"signal {number}"


def _start(command: Sequence[str], environment: Mapping[str, str], mask: set[int]) -> int:
    # Python ignores SIGPIPE and SIGXFSZ. The program starts with the defaults.
    try:
        return os.posix_spawnp(
            command[0],
            list(command),
            dict(environment),
            setsigmask=mask,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except FileNotFoundError:
        hint = _hint(command[0])
        raise CommandNotFoundError(f"command not found: {command[0]}{hint}") from None
    except OSError as error:
        raise CommandNotExecutableError(
            f"cannot run {command[0]}: {error.strerror}{_hint(command[0])}"
        ) from None


def _hint(word: str) -> str:
    """Says what to write instead of `word`, if `word` is a file but not a program on the path."""
    file = Path(word)
    if not file.is_file():
        return ""
    interpreter = _INTERPRETERS.get(file.suffix)
    if interpreter is not None:
        return f"; it is a script, not a program. Run: {interpreter} {word}"
    if os.access(file, os.X_OK):
        return "" if "/" in word else f"; there is a file of that name. Write: ./{word}"
    return f"; the file is not executable. Run: chmod +x {word}"
