"""The wheel that scripts/wheel makes, in an environment without this checkout."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from uvmalloc._cli.accepted import DRIVER_VERSIONS
from uvmalloc._cli.environment import without_settings
from uvmalloc.libraries import Libraries

from tests.conftest import MakeOnce

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, torch
x = torch.ones(1 << 20)
y = x.to('cuda')
mapped = {line.split()[-1] for line in open('/proc/self/maps') if '/libuvmalloc' in line}
print(torch.cuda.get_allocator_backend(), y.sum().item(), *sorted(map(os.path.basename, mapped)))
"""


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and torch's folder of packages, but without this checkout."""

    wheel: Path
    folder: Path
    package: Path

    def run(
        self, *command: str | Path, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        environment = without_settings(os.environ, "CUDA_", "LD_", "PYTHON", "TORCH_")
        environment["PATH"] = f"{self.folder / 'bin'}:{environment['PATH']}"
        return subprocess.run(
            [str(word) for word in command],
            env={**environment, **variables},
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            timeout=120,
        )


def install(folder: Path) -> None:
    made = subprocess.run(
        [CHECKOUT / "scripts" / "wheel", folder],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages = Path(importlib.util.find_spec("torch").origin).parents[1]
    (purelib_of(venv) / "packages.pth").write_text(
        f"import site; site.addsitedir({str(packages)!r})"
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    target = ["--python", str(venv / "bin" / "python")]
    wheel = made.stdout.strip()
    subprocess.run(
        [*pip, *target, "install", "--quiet", "--no-index", "--no-deps", wheel], check=True
    )


def purelib_of(venv: Path) -> Path:
    variables = {"base": str(venv), "platbase": str(venv)}
    return Path(sysconfig.get_path("purelib", vars=variables))


@pytest.fixture(scope="session")
def installed(make_once: MakeOnce) -> Installed:
    folder = make_once("wheel", install)
    (wheel,) = folder.glob("*.whl")
    return Installed(wheel, folder / "venv", purelib_of(folder / "venv") / "uvmalloc")


def test_the_wheel_is_for_this_platform_and_holds_each_library_once(
    installed: Installed, libraries: Libraries
) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert installed.wheel.name.endswith(f"-py3-none-{platform}.whl")
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
        description = archive.read(next(n for n in names if n.endswith("/WHEEL"))).decode()
        entries = archive.read(next(n for n in names if n.endswith("/entry_points.txt"))).decode()
    assert "Root-Is-Purelib: false" in description
    assert "[torch.backends]\nuvmalloc = uvmalloc_autoload:load" in entries
    carried = sorted(n.removeprefix("uvmalloc/lib/") for n in names if ".so" in n)
    versions = [p.stem.removeprefix("libuvmalloc_torch_") for p in libraries.plugins()]
    expected = ["libuvmalloc_preload.so", "libuvmalloc_pipelines.so", "libuvmsim_torch.so"]
    expected += [f"lib{room}_torch_{v}.so" for v in versions for room in ("uvmalloc", "uvmsim")]
    expected += [f"sim/lib{name}.so" for name in ("uvmsim", "uvmsim_audit", "uvmsim_host")]
    expected += ["sim/libcudart.so.13", "sim/libcupti.so.13", "sim/libnvidia-ml.so.1"]
    expected += ["sim/libcuda.so.1"]
    expected += [f"sim/{version}/libcuda.so.1" for version in DRIVER_VERSIONS[:-1]]
    expected += [f"sim/hip/libamdhip64.so.{major}" for major in (5, 6, 7)]
    expected += ["sim/hip/libhsa-runtime64.so.1"]
    assert carried == sorted(expected)
    symbols = subprocess.run(
        ["readelf", "-sW", installed.package / "lib" / f"libuvmalloc_torch_{versions[0]}.so"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "CUDACachingAllocator13CUDAAllocatorE" in symbols.stdout, "class_layout.cpp compares it"
    machines = {f"uvmalloc/lib/sim/profiles/{name}.toml" for name in libraries.machines()}
    assert machines <= set(names)
    assert installed.wheel.stat().st_size < 20 << 20, "its libraries are stripped"


def test_its_command_finds_its_programs(installed: Installed) -> None:
    steps = "import torch\nx = torch.ones(1 << 20).cuda()\nfor _ in range(99): x += 1"
    machine = ("--machine", "h100-pcie5", "--memory", "1GiB")
    run = installed.run("uvmalloc", "plan", *machine, "--", "python", "-c", steps)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "nothing has to be set" in run.stdout.splitlines()[-1]
    for name in ("uvmalloc_plan", "uvmalloc_machine_replay"):
        shown = installed.run(installed.package / "bin" / name, "--help")
        assert shown.returncode == 0 and f"/{name} [OPTIONS]" in shown.stdout


def test_its_command_finds_its_libraries(installed: Installed) -> None:
    doctor = ["uvmalloc", "doctor", "--json"]
    run = installed.run("uvmalloc", "sim", "--no-report", "--native", "--", *doctor)
    assert run.returncode == 0, run.stdout + run.stderr
    seen = json.loads(run.stdout)
    lib = installed.package / "lib"
    assert seen["usable"] and seen["library"] == str(lib / "libuvmalloc_preload.so")
    assert Path(seen["torch"]["plugin"]).parent == lib


@pytest.mark.parametrize(
    "way",
    [
        ("sim", "--", "python"),
        ("sim", "--native", "--", "uvmalloc", "run", "--", "python"),
        ("sim", "--native", "--", "env", "PYTORCH_ENABLE_UNIFIED_MEMORY=1", "python"),
    ],
    ids=["sim", "run", "entry point"],
)
def test_each_way_in_takes_its_libraries(installed: Installed, way: tuple[str, ...]) -> None:
    run = installed.run("uvmalloc", *way, "-c", PROGRAM)
    assert run.returncode == 0, run.stdout + run.stderr
    major, minor = importlib.metadata.version("torch").split(".")[:2]
    plugin = f"libuvmalloc_torch_{major}_{minor}.so"
    assert run.stdout == f"uvmalloc 1048576.0 libuvmalloc_preload.so {plugin}\n"


@pytest.mark.parametrize(
    "variables",
    [{}, {"PYTORCH_ENABLE_UNIFIED_MEMORY": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}],
    ids=["not switched on", "torch calls no entry point"],
)
def test_otherwise_the_wheel_is_not_noticed(
    installed: Installed, variables: dict[str, str]
) -> None:
    program = PROGRAM + "import sys; print('uvmalloc' in sys.modules, hasattr(x, 'is_managed'))"
    words = [f"{name}={value}" for name, value in variables.items()]
    run = installed.run(
        "uvmalloc", "sim", "--no-report", "--native", "--", "env", *words, "python", "-c", program
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout == "native 1048576.0\nFalse False\n" and run.stderr == ""


def test_no_failure_of_ours_reaches_import_torch(installed: Installed, tmp_path: Path) -> None:
    """The package may be broken, or hidden by another package with the same name."""
    (tmp_path / "uvmalloc").mkdir()
    (tmp_path / "uvmalloc" / "__init__.py").write_text("raise LookupError('two\\nlines')\n")
    run = installed.run(
        "python", "-c", "import torch", cwd=tmp_path, PYTORCH_ENABLE_UNIFIED_MEMORY="1"
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == "uvmalloc: two lines: torch keeps its own allocators\n"


# Runs a command where no file can be written, outside of /dev, /proc and /sys.
READ_ONLY = ("unshare", "--mount", "sh", "-c", 'mount -o remount,bind,ro / && exec "$@"', "sh")


@pytest.fixture
def read_only(installed: Installed) -> Installed:
    if installed.run(*READ_ONLY, "true").returncode != 0:
        pytest.skip("this user may not mount")
    refused = installed.run(*READ_ONLY, "touch", installed.package / "new")
    assert "Read-only file system" in refused.stderr
    return installed


def test_it_runs_where_nothing_can_be_written(read_only: Installed) -> None:
    for way in (
        ("sim", "--no-report", "--", "python"),
        ("sim", "--native", "--no-report", "--", "uvmalloc", "run", "--no-report", "--", "python"),
    ):
        run = read_only.run(*READ_ONLY, "uvmalloc", *way, "-c", PROGRAM)
        assert run.returncode == 0 and run.stdout.startswith("uvmalloc 1048576.0 "), run.stderr
        assert run.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("sim", "--report", "/tmp/report.json", "--", "true"),
            "--report is '/tmp/report.json'; accepted: a file in a folder that exists and can be "
            "written",
        ),
        (
            ("doctor", "--bundle", "/tmp/bundle.tar.gz"),
            "FILE is '/tmp/bundle.tar.gz'; accepted: a file in a folder that exists and can be "
            "written",
        ),
        (
            ("plan", "--machine", "h100-pcie5", "--", "true"),
            "set TMPDIR to a folder with room",
        ),
    ],
    ids=["report", "bundle", "plan"],
)
def test_a_folder_that_cannot_be_written_is_named(
    read_only: Installed, words: tuple[str, ...], said: str
) -> None:
    run = read_only.run(*READ_ONLY, "uvmalloc", *words)
    assert run.returncode in (1, 2) and len(run.stderr.splitlines()) == 1
    assert run.stderr.startswith("uvmalloc: error: ") and run.stderr.endswith(said + "\n")
