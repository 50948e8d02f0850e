"""Removes what is private from texts: names of user and host, home folders, secrets.

Names are replaced wherever they are whole words. A secret is recognised by the name of its option,
variable or key, or by its form. Nobody can recognise all secrets: show the result to the user.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

REMOVED = "<removed>"
# Names of options, variables and keys whose values are secrets.
_SECRET_NAME = (
    r"(?:[\w.-]*(?:token|secret|passw|passphrase|credential|api[_-]?key|access[_-]?key)[\w.-]*"
    r"|(?:[\w.-]*[_.-])?(?:auth|authorization|cookie|key|pass|pin|pwd|sig|signature)(?![\w-]))"
)
_NAMED_SECRET = re.compile(
    rf"(?i)({_SECRET_NAME}[\"']?\s*[=:]\s*[\"']?|--{_SECRET_NAME}\s+)([^\s\"',;]+)"
)
_WHOLE_NAME = re.compile(rf"(?i)-*{_SECRET_NAME}")
_FORMS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|gh[a-z]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|sk-[\w-]{16,}|AKIA[A-Z0-9]{12,}|xox[a-z]-[\w-]{8,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic|digest)\s+[\w.~+/=:-]{4,}")
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_IN_URL = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@\"']+@")
_HOME_OF_OTHERS = re.compile(r"(/(?:home|Users)/)[^/\s:\"',;]+")
# Names that say nothing about anybody, and are words of other texts.
_COMMON = {
    *("", "root", "user", "admin", "localhost", "host", "server", "node", "worker", "machine"),
    *("linux", "debian", "ubuntu", "python", "torch", "pytorch", "cuda", "nvidia", "gpu", "cpu"),
    *("lib", "proc", "sys", "home", "tmp"),
}


class Filter:
    """Removes the names of this user and this host, and secrets."""

    def __init__(self, users: Iterable[str], hosts: Iterable[str], homes: Iterable[str]) -> None:
        self._homes = sorted({home.rstrip("/") for home in homes} - {""}, key=len, reverse=True)
        self._names = [
            (re.compile(rf"(?i)(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"), mark)
            for names, mark in ((hosts, "<host>"), (users, "<user>"))
            for name in sorted({*names} - _COMMON, key=len, reverse=True)
        ]

    @classmethod
    def of_this_machine(cls) -> Filter:
        users, homes = {os.environ.get("SUDO_USER", "")}, {str(Path.home())}
        with contextlib.suppress(OSError, KeyError):
            users.add(getpass.getuser())
        with contextlib.suppress(ImportError, KeyError):
            import pwd

            entry = pwd.getpwuid(os.getuid())
            users.add(entry.pw_name)
            homes.add(entry.pw_dir)
        homes |= {os.path.realpath(home) for home in homes}
        host = socket.gethostname()
        return cls(users, {host, host.partition(".")[0]}, homes - {"/"})

    def text(self, text: str) -> str:
        for home in self._homes:
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
        text = _HOME_OF_OTHERS.sub(r"\1<user>", text)
        text = _IN_URL.sub(rf"\1{REMOVED}@", text)
        text = _SCHEME.sub(rf"\1 {REMOVED}", text)
        text = _FORMS.sub(REMOVED, text)
        text = _NAMED_SECRET.sub(rf"\1{REMOVED}", text)
        text = _ADDRESS.sub("<address>", text)
        for name, mark in self._names:
            text = name.sub(mark, text)
        return text

    def value(self, value: Any) -> Any:
        """Returns the value, as JSON has it, with each text in it filtered."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self.text(str(key)): REMOVED
                if isinstance(each, str) and _WHOLE_NAME.fullmatch(str(key))
                else self.value(each)
                for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            hides = [False, *(_is_option_of_secret(each) for each in value)]
            return [
                REMOVED if hide else self.value(each)
                for hide, each in zip(hides, value, strict=False)
            ]
        return value


def _is_option_of_secret(word: Any) -> bool:
    """Whether the word of a command line says that the next word is a secret."""
    is_option = isinstance(word, str) and word.startswith("-")
    return is_option and _WHOLE_NAME.fullmatch(word) is not None
