"""Running a program in our place: its exit code is ours, the signals we get are its."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from uvmalloc.errors import CommandError

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)


class CommandNotFoundError(CommandError):
    exit_code = 127


class CommandNotExecutableError(CommandError):
    exit_code = 126


@dataclass(frozen=True)
class Finished:
    """A program that has ended."""

    pid: int
    exit_code: int  # 128 + the signal's number where a signal ended it, as shells have it


def launch(command: Sequence[str], environment: Mapping[str, str]) -> Finished:
    """Runs `command` to its end. Call it from the main thread.

    A signal that the terminal sends goes to the whole foreground group, so the program has it
    already; all others are passed on.
    """
    waited_for = {*_FORWARDED, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    try:
        pid = _start(command, environment, mask)
        while True:
            received = signal.sigwaitinfo(waited_for)
            if received.si_signo == signal.SIGCHLD:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended == pid:
                    code = os.waitstatus_to_exitcode(status)
                    return Finished(pid, code if code >= 0 else 128 - code)
            elif not (received.si_signo in _KEYBOARD and received.si_code > 0):
                os.kill(pid, received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start(command: Sequence[str], environment: Mapping[str, str], mask: set[int]) -> int:
    # Python ignores SIGPIPE and handles SIGINT; the program starts with the defaults.
    try:
        return os.posix_spawnp(
            command[0],
            list(command),
            dict(environment),
            setsigmask=mask,
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    except FileNotFoundError:
        raise CommandNotFoundError(f"command not found: {command[0]}") from None
    except OSError as error:
        raise CommandNotExecutableError(f"cannot run {command[0]}: {error.strerror}") from None
