"""Checks the files of a release and writes build/release.json, one row a key.

python scripts/release_check.py ROOT DIST [KEY...]      from scripts/release --check
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOOLS = Path(sys.executable).parent


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, **options
    )


class Release:
    def __init__(self, root: Path, dist: Path) -> None:
        self.root, self.dist = root, dist
        self.wheels = sorted(dist.glob("*.whl"))

    def wheel_tags(self) -> tuple[Any, bool]:
        """auditwheel's own word for each wheel: what it was named, and what its symbols need."""
        tags, needs = [], []
        for wheel in self.wheels:
            said = run(TOOLS / "auditwheel", "show", wheel, env={"PATH": f"{TOOLS}:/usr/bin:/bin"})
            found = re.search(r'constrains the platform tag to\s+"(\w+)"', said.stdout)
            tags.append(wheel.stem.split("-")[-1])
            needs.append(found[1] if found else said.stdout + said.stderr)
        wanted = ["manylinux_2_28_aarch64", "manylinux_2_28_x86_64"]
        return {"tags": tags, "needs": needs}, tags == wanted and not any(map(newer, needs))

    def wheel_mib(self) -> tuple[Any, bool]:
        sizes = [round(wheel.stat().st_size / 2**20, 1) for wheel in self.wheels]
        return sizes, all(size <= 12 for size in sizes)

    def torch_minors(self) -> tuple[Any, bool]:
        """Every wheel has a plugin for each served version of torch."""
        lines = (self.root / "scripts/torch_versions.txt").read_text().splitlines()
        wanted = {line.rpartition(".")[0] for line in lines if line[:1].isdigit()}
        found = []
        for wheel in self.wheels:
            names = "\n".join(zipfile.ZipFile(wheel).namelist())
            plugins = re.findall(r"libuvmalloc_torch_(\d+)_(\d+)\.so", names)
            found.append(
                sorted((".".join(pair) for pair in plugins), key=lambda text: text.split("."))
            )
        return found, bool(found) and all(set(minors) == wanted for minors in found)

    def metadata(self) -> tuple[Any, bool]:
        """twine and check-wheel-contents."""
        files = [*self.wheels, *self.dist.glob("*.tar.gz")]
        twine = run(TOOLS / "twine", "check", "--strict", *files)
        contents = run(TOOLS / "check-wheel-contents", "--ignore", "W009", *self.wheels)
        complaints = [said.stdout for said in (twine, contents) if said.returncode != 0]
        return complaints, not complaints

    def checksums(self) -> tuple[Any, bool]:
        said = run("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=self.dist)
        return said.stdout + said.stderr, said.returncode == 0

    def refusals(self) -> tuple[Any, bool]:
        """pip's last line on machines that the wheel is not for; nothing is installed."""
        wheel = next(wheel for wheel in self.wheels if "x86_64" in wheel.name)
        machines = {
            "musl": "musllinux_1_2_x86_64",
            "older glibc": "manylinux_2_27_x86_64",
            "64-bit ARM": "manylinux_2_28_aarch64",
        }
        said = {}
        for name, platform in machines.items():
            with tempfile.TemporaryDirectory() as folder:
                command = [TOOLS / "pip", "install", "--disable-pip-version-check", "--no-index"]
                command += ["--no-deps", "--only-binary=:all:", "--target", folder]
                done = run(*command, "--platform", platform, wheel)
                is_refused = done.returncode != 0 and not any(Path(folder).iterdir())
                said[name] = done.stderr.strip().rpartition("\n")[2] if is_refused else "installed"
        are_refused = all(
            "is not a supported wheel on this platform" in each for each in said.values()
        )
        # pip compares this entry only with the Python that runs it, not with --python-version.
        archive = zipfile.ZipFile(wheel)
        metadata = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        found = re.search(r"^Requires-Python: (.*)$", archive.read(metadata).decode(), re.MULTILINE)
        said["other Pythons"] = found[1] if found else ""
        return said, are_refused and said["other Pythons"] == ">=3.10"

    def install_seconds(self) -> tuple[Any, bool]:
        """A wheel into an environment that has torch, until a tensor is on the device."""
        wheel = next(wheel for wheel in self.wheels if "x86_64" in wheel.name)
        site = (self.root / "build/venv/site-packages").read_text().strip()
        with tempfile.TemporaryDirectory() as folder:
            venv = Path(folder) / "venv"
            run(sys.executable, "-m", "venv", venv, check=True)
            (packages,) = venv.glob("lib/python*/site-packages")
            (packages / "torch.pth").write_text(site + "\n")
            # Without a compiler on the path.
            variables = {"PATH": f"{venv / 'bin'}:{folder}", "HOME": folder}
            started = time.monotonic()
            command = [venv / "bin/pip", "install", "--no-index", "--no-deps", wheel]
            run(*command, env=variables, check=True)
            program = "import torch; print(torch.ones(1).cuda())"
            said = run(venv / "bin/uvmalloc", "sim", "--", "python", "-c", program, env=variables)
            seconds = round(time.monotonic() - started, 1)
        right = said.stdout.startswith("tensor([1.], device='cuda:0')")
        return seconds if right else said.stdout + said.stderr, right and seconds < 15

    def reproducible(self) -> tuple[Any, bool]:
        """The wheel for this machine, built again in another folder."""
        first = next(wheel for wheel in self.wheels if "x86_64" in wheel.name)
        with tempfile.TemporaryDirectory() as folder:
            variables = {**os.environ, "UVMALLOC_RELEASE_WORK": f"{folder}/work"}
            command = [self.root / "scripts/release", "--machine", "x86_64", f"{folder}/dist"]
            said = run(*command, env=variables)
            again = Path(folder, "dist", first.name)
            if not again.exists():
                return said.stderr[-2000:], False
            hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (first, again)]
        return hashes, hashes[0] == hashes[1]

    def pytest(self, *words: str | Path) -> tuple[Any, bool]:
        paths = {"PYTHONPATH": f"{self.root}:{self.root / 'pytorch/python'}"}
        command = [self.root / "build/venv/bin/python", "-P", "-m", "pytest", "-q", *words]
        said = run(*command, cwd=self.root, env={**os.environ, **paths})
        failed = re.search(r"(\d+) failed", said.stdout)
        broken = said.returncode not in (0, 1)
        return said.stdout[-2000:] if broken else int(failed[1]) if failed else 0, not (
            failed or broken
        )

    def abi_changes(self) -> tuple[Any, bool]:
        """Tests of the binary interface that fail."""
        return self.pytest("tests/library/test_abi.py")

    def examples_failed(self) -> tuple[Any, bool]:
        """Commands and programs of the user's pages that do not run as written."""
        return self.pytest("tests/pytorch/test_pages.py")

    def user_words(self) -> tuple[Any, bool]:
        said = run(sys.executable, "scripts/tree_figures.py", cwd=self.root)
        found = re.search(r"user_words\D*(\d+)", said.stdout)
        return int(found[1]) if found else said.stderr, found is not None and int(found[1]) <= 12000

    def mypy_errors(self) -> tuple[Any, bool]:
        paths = {"PYTHONPATH": (self.root / "build/checkers").read_text().strip()}
        command = [self.root / "build/venv/bin/python", "-m", "mypy", "--no-error-summary"]
        said = run(*command, cwd=self.root, env={**os.environ, **paths})
        count = said.stdout.count(": error: ")
        return count, said.returncode == 0 and count == 0

    def consumers(self) -> tuple[Any, bool]:
        """Programs that use the library in each way, and the Debian packages in an empty Debian."""
        failed, _ = self.pytest("tests/library/test_install.py", "tests/library/test_subproject.py")
        debian = run(self.root / "scripts/debian_packages", "--test")
        found = {
            "failed_tests": failed,
            "debian": "ok" if debian.returncode == 0 else debian.stderr[-2000:],
        }
        return found, failed == 0 and debian.returncode == 0


def newer(tag: str) -> bool:
    found = re.search(r"_2_(\d+)_", tag)
    return found is None or int(found[1]) > 28


def main() -> None:
    root, dist = map(Path, sys.argv[1:3])
    release = Release(root, dist)
    names = (
        "wheel_tags",
        "wheel_mib",
        "torch_minors",
        "metadata",
        "checksums",
        "refusals",
        "install_seconds",
        "abi_changes",
        "user_words",
        "examples_failed",
        "mypy_errors",
        "consumers",
        "reproducible",
    )
    checks: dict[str, Callable[[], tuple[Any, bool]]] = {
        name: getattr(release, name) for name in sys.argv[3:] or names
    }
    file = root / "build" / "release.json"
    rows = json.loads(file.read_text()) if file.exists() and len(checks) < len(names) else {}
    for name, check in checks.items():
        value, is_met = check()
        rows[name] = {"value": value, "is_met": is_met}
        print(f"{name:16} {'ok    ' if is_met else 'MISSED'} {value}")
    file.write_text(json.dumps(rows, indent=2) + "\n")
    sys.exit(0 if all(row["is_met"] for row in rows.values()) else 1)


if __name__ == "__main__":
    main()
