"""Runs clang-tidy over one file, unless the file is known to have no findings.

tidy_file.py [--again] COMMANDS CLEAN FILE

COMMANDS is the build folder with compile_commands.json. CLEAN is a folder of empty files, each
named by the hash of everything that determines the findings of one file. If there are findings,
prints them at once and exits with 1.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
from pathlib import Path

COUNTS_OF_OTHERS = ("warning generated", "warnings generated", "warnings treated")


def compile_arguments(commands: Path, file: Path) -> tuple[list[str], Path]:
    """Returns the arguments and the folder with which the file is compiled."""
    entries = json.loads((commands / "compile_commands.json").read_text(encoding="utf-8"))
    for entry in entries:
        folder = Path(entry["directory"])
        if (folder / entry["file"]).resolve() == file.resolve():
            return shlex.split(entry["command"]), folder
    raise SystemExit(f"{file} is not compiled in {commands}")


def our_sources(arguments: list[str], folder: Path) -> list[Path]:
    """Returns the file and the headers that it includes, without system headers."""
    output = arguments.index("-o")
    listed = [*arguments[:output], *arguments[output + 2 :], "-MM"]
    rule = subprocess.run(listed, cwd=folder, capture_output=True, text=True, check=True).stdout
    names = shlex.split(rule.replace("\\\n", " ").partition(":")[2])
    return sorted({(folder / name).resolve() for name in names})


def key_of(file: Path, arguments: list[str], folder: Path) -> str:
    """Returns a key that is equal in checkouts with the same sources."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    digest.update(version)
    digest.update((root / ".clang-tidy").read_bytes())
    digest.update(" ".join(arguments).replace(str(root), "").encode())
    for source in our_sources(arguments, folder):
        digest.update(str(source).replace(str(root), "").encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()


def main() -> int:
    again = sys.argv[1] == "--again"
    commands, clean, file = (Path(text) for text in sys.argv[2 if again else 1 :])
    arguments, folder = compile_arguments(commands, file)
    known = clean / key_of(file, arguments, folder)
    if known.exists() and not again:
        known.touch()
        return 0
    command = ["clang-tidy", "-p", str(commands), "--quiet", str(file)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode == 0:
        known.touch()
        return 0
    for line in ended.stdout.splitlines():
        if not any(words in line for words in COUNTS_OF_OTHERS):
            print(line)
    return 1


if __name__ == "__main__":
    sys.exit(main())
