"""Errors of a command before the user's program runs: one line and an exit code."""

from __future__ import annotations


class CommandError(Exception):
    """Ends the command with `message` on standard error and `exit_code`."""

    exit_code = 1


class OptionError(CommandError):
    """An option has a value that is not accepted."""

    exit_code = 2

    def __init__(self, option: str, value: str, accepted: str) -> None:
        super().__init__(f"{option} is '{value}'; accepted: {accepted}")


class MissingLibraryError(CommandError):
    """A native library that the command needs is missing."""

    exit_code = 3
