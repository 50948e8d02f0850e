"""The steps of a newcomer who has installed the newest torch: build, wheel, doctor, run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from uvmalloc._cli.environment import without_settings

pytestmark = pytest.mark.all  # it builds everything once more

ROOT = Path(__file__).resolve().parents[2]
RELEASES = [
    line
    for line in (ROOT / "scripts" / "torch_versions.txt").read_text().splitlines()
    if not line.startswith("#")
]
MINORS = [release.rpartition(".")[0] for release in RELEASES]
NEWEST = MINORS[-1]
VERSIONS = [minor.replace(".", "_") for minor in MINORS]


class Newcomer:
    """A copy of this checkout that has built nothing, and an environment outside that copy."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.environment = folder / "checkout", folder / "environment"
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (self.checkout / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, self.checkout / name, follow_symlinks=False)
        subprocess.run([sys.executable, "-m", "venv", self.environment], check=True)
        base = {"base": str(self.environment), "platbase": str(self.environment)}
        self.packages = Path(sysconfig.get_path("purelib", vars=base))
        torch = (ROOT / "build" / f"venv-{NEWEST}" / "site-packages").read_text().strip()
        (self.packages / "torch.pth").write_text(f"import site; site.addsitedir({torch!r})")

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        variables = without_settings(os.environ, "CUDA_", "LD_", "PYTHON", "VIRTUAL_ENV")
        variables["VIRTUAL_ENV"] = str(self.environment)
        variables["PATH"] = f"{self.environment}/bin:{variables['PATH']}"
        finished = subprocess.run(
            [str(word) for word in command],
            env=variables, cwd=self.checkout, capture_output=True, text=True, timeout=3600,
        )  # fmt: skip
        assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
        return finished

    def plugins(self) -> list[str]:
        files = (self.checkout / "build" / "release" / "lib").glob("libuvmalloc_torch_*.so")
        return sorted(file.stem.removeprefix("libuvmalloc_torch_") for file in files)


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    signal.alarm(0)  # builds take longer than a test may
    subprocess.run([ROOT / "scripts" / "setup", NEWEST], check=True)
    with tempfile.TemporaryDirectory(prefix="newcomer.", dir=ROOT / "build") as folder:
        yield Newcomer(Path(folder))


def test_the_build_and_the_wheel_serve_the_torch_that_is_there_and_every_other(
    newcomer: Newcomer,
) -> None:
    said = newcomer.run("scripts/build").stderr
    assert f"the plugin for torch {NEWEST} is built for the one in " in said
    assert newcomer.plugins() == [VERSIONS[0], VERSIONS[-1]]

    wheel = newcomer.run("scripts/wheel", "--built").stdout.strip()
    newcomer.run("python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    doctor = ("uvmalloc", "sim", "--native", "--no-report", "--", "uvmalloc", "doctor", "--json")
    seen = json.loads(newcomer.run(*doctor).stdout)
    assert seen["problems"] == []
    assert seen["torch"]["version"].startswith(f"{NEWEST}.")
    program = "import torch; x = torch.ones(1 << 20).cuda(); print(torch.ops.uvmalloc.report()[:1])"
    assert newcomer.run("uvmalloc", "sim", "--", "python", "-c", program).stdout == "{\n"

    wheel = newcomer.run("scripts/wheel").stdout.strip()
    assert newcomer.plugins() == VERSIONS
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    for room in ("uvmalloc", "uvmsim"):
        assert {f"uvmalloc/lib/lib{room}_torch_{version}.so" for version in VERSIONS} <= set(names)
