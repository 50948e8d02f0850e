"""Checks uvmalloc on a machine with a real GPU and writes down how that machine behaves.

scripts/gpu_check describes it. Only the standard library is used, and what is in the tree; nothing
is fetched except by --prepare. Exits with 1 where a stage failed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_deps import MissingSourceError, prepare

ROOT = Path(__file__).resolve().parent.parent
DEPS = ROOT / "build" / "gpu_deps"
MIB = 1 << 20
MOST_SECONDS = 8 * 60
LEAST_LIMIT_BYTES = 2048 * MIB  # of managed memory: below it, not even the tests fit
TOLERANCE = 1e-5
CLI_MODULES = ("typer", "rich")

# What a developer has set must not reach the programs.
STRAY_PREFIXES = ("UVMALLOC_", "UVMSIM_", "PYTORCH_", "LD_PRELOAD")

Json = dict[str, Any]


class CheckError(Exception):
    """Why a stage, or everything, cannot go on; one line."""


class ExitError(CheckError):
    """A program ended with another exit code than 0, or by a signal."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def say(text: str) -> None:
    print(f"gpu_check: {text}", flush=True)


# ---- where things are ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A machine to check: a real one or, for a trial, the simulated one."""

    simulated: bool
    build: Path
    budget_bytes: int = 0  # for programs under uvmalloc; known when the probe has looked

    @property
    def libraries(self) -> Path:
        return self.build / "lib"

    def program(self, name: str) -> str:
        return str(self.build / "bin" / name)

    def environment(self) -> dict[str, str]:
        """Of every program: where things are, and the most memory that it may manage."""
        result = {
            name: value for name, value in os.environ.items() if not name.startswith(STRAY_PREFIXES)
        }
        paths = [str(ROOT / "pytorch" / "python")]
        paths += [path] if (path := os.environ.get("PYTHONPATH")) else []
        if not all(map(importlib.util.find_spec, CLI_MODULES)):
            paths.append(str(DEPS / "python"))
        result["PYTHONPATH"] = os.pathsep.join(paths)
        result["UVMALLOC_LIB_DIR"] = str(self.libraries)
        result["UVMALLOC_BUDGET"] = str(max(self.budget_bytes, 2 * MIB))
        # By default each facade's span is as large as the budget: virtual, but asked for.
        result["UVMALLOC_SPAN_SIZE"] = str(max(self.budget_bytes // 8, 2 * MIB))
        result["UVM_TEST_DEVICE"] = "simulated" if self.simulated else "real"
        return result

    def driver_environment(self) -> dict[str, str]:
        """Of programs that open libcuda.so.1 themselves."""
        result = self.environment()
        if self.simulated:
            result["LD_LIBRARY_PATH"] = str(self.libraries / "sim")
        return result

    def python(self, *arguments: str, native: bool, report: Path | None = None) -> list[str]:
        """The command of a Python program on this machine's device."""
        program = [sys.executable, *arguments]
        if native and not self.simulated:
            return program
        command = [sys.executable, "-m", "uvmalloc", "sim" if self.simulated else "run"]
        command += ["--no-report", *(("--report", str(report)) if report else ())]
        command += ["--native"] if native else ["--budget", str(self.budget_bytes)]
        return [*command, "--", *program]


@dataclass
class Clock:
    """Seconds that are left of the time for everything."""

    ends: float = field(default_factory=lambda: time.monotonic() + MOST_SECONDS)

    def left(self, most: float) -> float:
        left = self.ends - time.monotonic()
        if left < 5:
            raise CheckError("no time is left for it")
        return min(left, most)


def run(
    command: Sequence[str], environment: Mapping[str, str], seconds: float, name: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; CheckError, with the end of what it said, where it fails.

    Neither it nor a program that it started is left behind.
    """
    try:
        started = subprocess.Popen(
            list(command),
            env=dict(environment),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise CheckError(f"{name} cannot be run: {error}") from None
    with started:
        try:
            stdout, stderr = started.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise CheckError(f"{name} was still running after {seconds:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
    if started.returncode != 0:
        last = "\n".join((stdout + stderr).strip().splitlines()[-12:])
        raise ExitError(
            f"{name} ended with exit code {started.returncode}:\n{last}", started.returncode
        )
    return subprocess.CompletedProcess(command, 0, stdout, stderr)


# ---- what is missing -----------------------------------------------------------------------------


def importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None or (DEPS / "python" / module).is_dir()


def compiles(include: str) -> bool:
    source = f"#include <{include}>\n"
    command = ["c++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-I", str(DEPS / "include"), "-"]
    return subprocess.run(command, input=source, text=True, capture_output=True).returncode == 0


def torch_folder() -> Path | None:
    found = importlib.util.find_spec("torch")
    return Path(found.origin).parent if found and found.origin else None


def cuda_include_folder() -> Path | None:
    """The folder of cuda.h: the one named, the one that came with torch, else a toolkit's."""
    candidates = []
    if home := os.environ.get("CUDA_HOME"):
        candidates.append(Path(home) / "include")
    if torch := torch_folder():
        candidates.append(torch.parent / "nvidia" / "cu13" / "include")
    if nvcc := shutil.which("nvcc"):
        candidates.append(Path(nvcc).resolve().parent.parent / "include")
    candidates.append(Path("/usr/local/cuda/include"))
    return next((folder for folder in candidates if (folder / "cuda.h").is_file()), None)


def jemalloc_folder() -> Path | None:
    """The jemalloc to build with: the one named, else the one carried along."""
    if chosen := os.environ.get("UVMALLOC_JEMALLOC_DIR"):
        return Path(chosen)
    carried = DEPS / "jemalloc"
    return carried if carried.is_dir() else None


def missing() -> list[str]:
    """What a build and the checks need and this machine lacks; one line each."""
    carry = "run scripts/gpu_check --prepare where there is network and carry build/gpu_deps along"
    lines = [
        f"{tool} is not on the path"
        for tool in ("c++", "cmake", "ninja")
        if shutil.which(tool) is None
    ]
    if shutil.which("c++") is not None:
        for name, include in (
            ("{fmt}", "fmt/format.h"),
            ("nlohmann/json", "nlohmann/json.hpp"),
        ):
            if not compiles(include):
                lines.append(f"{name}: <{include}> is not found; {carry}")
        if not (DEPS / "googletest").is_dir() and not compiles("gtest/gtest.h"):
            lines.append(f"GoogleTest: <gtest/gtest.h> is not found; {carry}")
    lines += [
        f"Python module {module} is not there; {carry}"
        for module in CLI_MODULES
        if not importable(module)
    ]
    if cuda_include_folder() is None:
        lines.append("cuda.h is in no CUDA toolkit and not beside torch; set CUDA_HOME")
    if jemalloc_folder() is None:
        lines.append(
            f"jemalloc: neither build/gpu_deps/jemalloc nor UVMALLOC_JEMALLOC_DIR; {carry}"
        )
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        lines.append("libcuda.so.1 cannot be loaded: no NVIDIA driver")
    return lines


# ---- the build -----------------------------------------------------------------------------------


def plugin_target() -> str:
    folder = torch_folder()
    text = (folder / "version.py").read_text(encoding="utf-8") if folder else ""
    found = re.search(r"__version__ = '(\d+)\.(\d+)", text)
    if not found:
        raise CheckError("torch does not say its version")
    return f"uvmalloc_torch_{found[1]}_{found[2]}"


def build(place: Place, clock: Clock) -> None:
    definitions = {
        "CMAKE_BUILD_TYPE": "RelWithDebInfo",
        "CMAKE_PREFIX_PATH": str(DEPS),
        "UVMALLOC_BUILD_SIM": "OFF",
        "UVMALLOC_WERROR": "OFF",  # another compiler has other warnings
        "UVMALLOC_TORCH_DIRS": str(torch_folder()),
        "UVMALLOC_CUDA_INCLUDE_DIR": str(cuda_include_folder()),
    }
    if jemalloc := jemalloc_folder():
        definitions["UVMALLOC_JEMALLOC_DIR"] = str(jemalloc)
    options = [f"-D{name}={value}" for name, value in definitions.items()]
    configure = ["cmake", "-S", str(ROOT), "-B", str(place.build), "-G", "Ninja", *options]
    targets = ["uvmalloc_shared", plugin_target(), "uvmalloc_bench_torch"]
    targets += ["driver_probe", "conformance_test"]
    run(configure, os.environ, clock.left(60), "configuring")
    command = ["cmake", "--build", str(place.build), "--target", *targets]
    run(command, os.environ, clock.left(300), "building")


# ---- the stages ----------------------------------------------------------------------------------


CONFORMANCE_TESTS = "*cuda*:Cuda*:RuntimeRegistry.*"  # all but the fake runtime's


def conformance(place: Place, clock: Clock, folder: Path) -> Json:
    """The suite on the real driver. A failing test is a result; a crash fails the stage."""
    file = folder / "conformance.json"
    command = [place.program("conformance_test"), f"--gtest_output=json:{file}"]
    command.append(f"--gtest_filter={CONFORMANCE_TESTS}")
    try:
        run(command, place.driver_environment(), clock.left(120), "conformance_test")
    except ExitError as error:
        if error.code != 1 or not file.is_file():
            raise
    found = json.loads(file.read_text(encoding="utf-8"))
    tests = [
        (f"{suite['name']}.{test['name']}", test)
        for suite in found["testsuites"]
        for test in suite["testsuite"]
    ]
    failures = {name: test["failures"][0]["failure"] for name, test in tests if "failures" in test}
    skipped = [name for name, test in tests if test["result"] == "SKIPPED"]
    return {
        "passed": len(tests) - len(failures) - len(skipped),
        "failed": len(failures),
        "skipped": len(skipped),
        "failures": failures,
    }


def probe(place: Place, clock: Clock, *arguments: str) -> Json:
    command = [place.program("driver_probe"), *arguments]
    done = run(command, place.driver_environment(), clock.left(180), "driver_probe")
    return json.loads(done.stdout)


PAIR_SIZES = {
    "512_b": 512,
    "64_kib": 64 << 10,
    "2_mib": 2 * MIB,
    "20_mib": 20 * MIB,
    "256_mib": 256 * MIB,
}


def pairs(place: Place, clock: Clock) -> Json:
    """Nanoseconds of an allocation and a free that the cache serves, all of it fitting."""
    script = str(ROOT / "bench" / "torch_pairs" / "measure_here.py")
    library = str(place.libraries / "libuvmalloc_bench_torch.so")
    out: Json = {}
    for native in (True, False):
        command = place.python(script, library, *map(str, PAIR_SIZES.values()), native=native)
        done = run(command, place.environment(), clock.left(60), "measure_here.py")
        found = json.loads(done.stdout.strip().splitlines()[-1])
        expected = "native" if native else "uvmalloc"
        if found["allocator"] != expected:
            raise CheckError(f"torch's allocator is '{found['allocator']}', not '{expected}'")
        times = {name: round(found["pair_ns"][str(size)], 1) for name, size in PAIR_SIZES.items()}
        out[f"{expected}_ns"] = times
    out["native_over_uvmalloc"] = {
        name: round(out["native_ns"][name] / out["uvmalloc_ns"][name], 2) for name in PAIR_SIZES
    }
    return out


@dataclass(frozen=True)
class Training:
    steps: int
    batch_size: int
    embedding: int
    layers: int
    context: int
    heads: int = 8
    corpus_mib: int = 8
    least_budget_bytes: int = 0  # of a machine that it is for

    def options(self) -> list[str]:
        values = {name: value for name, value in vars(self).items() if not name.startswith("least")}
        pairs = [(f"--{name.replace('_', '-')}", str(value)) for name, value in values.items()]
        return [word for pair in pairs for word in pair]


TRAININGS = {
    "small_model": Training(steps=30, batch_size=8, embedding=256, layers=4, context=128),
    "larger_model": Training(
        steps=20,
        batch_size=16,
        embedding=768,
        layers=8,
        context=256,
        least_budget_bytes=4096 * MIB,
    ),
}
SIMULATED_TRAININGS = {
    "small_model": Training(4, batch_size=2, embedding=32, layers=1, context=16, corpus_mib=1),
}


def compare_losses(native: Sequence[float], ours: Sequence[float]) -> tuple[str, float]:
    """How equal they are, in words, and the largest relative difference."""
    if len(native) != len(ours) or not all(map(math.isfinite, [*native, *ours])):
        return "different", math.inf
    largest = max(
        abs(a - b) / max(abs(a), abs(b), 1e-30) for a, b in zip(native, ours, strict=True)
    )
    if largest == 0:
        return "equal_bit_for_bit", 0.0
    return ("within_1e-5" if largest <= TOLERANCE else "different"), largest


@dataclass
class Trained:
    losses: list[float]
    step_ms: float
    report: Json


def train_once(
    place: Place, clock: Clock, folder: Path, training: Training, native: bool
) -> Trained:
    files = {name: folder / f"{name}.json" for name in ("losses", "times", "report")}
    for file in files.values():
        file.unlink(missing_ok=True)
    script = [str(ROOT / "examples" / "train_gpt.py"), *training.options()]
    script += ["--losses", str(files["losses"]), "--times", str(files["times"])]
    command = place.python(*script, native=native, report=None if native else files["report"])
    run(command, place.environment(), clock.left(120), "train_gpt.py")
    times = json.loads(files["times"].read_text())
    return Trained(
        [float.fromhex(loss) for loss in json.loads(files["losses"].read_text())],
        round(1000 * statistics.median(times[len(times) // 3 :]), 3),
        {} if native else json.loads(files["report"].read_text()),
    )


def train(place: Place, clock: Clock, folder: Path, training: Training) -> Json:
    native, ours = (train_once(place, clock, folder, training, native) for native in (True, False))
    report = ours.report
    if not report.get("active"):
        raise CheckError(f"uvmalloc was not active: {report.get('reason', 'no reason given')}")
    outcome, difference = compare_losses(native.losses, ours.losses)
    out: Json = {
        "steps": training.steps,
        "native_step_ms": native.step_ms,
        "uvmalloc_step_ms": ours.step_ms,
        "uvmalloc_over_native": round(ours.step_ms / native.step_ms, 3),
        "losses": outcome,
        "largest_relative_difference": difference,
    }
    if outcome == "different":
        # Some kernels add in another order each time.
        again = train_once(place, clock, folder, training, native=True)
        control, of_native = compare_losses(native.losses, again.losses)
        out["native_against_itself"] = of_native
        if control == "different":
            out["losses"] = "different_from_run_to_run"
    for name in ("peak_bytes", "moves", "copies_by_moves", "native_allocations", "driver_calls"):
        out[name] = report.get(name)
    return out


# ---- what is written -----------------------------------------------------------------------------


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "device"


def words(name: str) -> str:
    return name.replace("_", " ")


def one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def failure(section: Json) -> list[str] | None:
    return [f"Failed: {section['failed']}", ""] if isinstance(section.get("failed"), str) else None


def hint_lines(hints: Json) -> list[str]:
    rows = [
        (
            *(words(call), words(size), words(populated)),
            one["result"],
            *(one.get(name, "") for name in HINT_TIMES),
        )
        for call, by_size in hints.items()
        for size, by_population in by_size.items()
        for populated, one in by_population.items()
    ]
    header = ("call", "size", "populated", "result", "first, call", "first, done")
    return table((*header, "repeated, call", "repeated, done"), rows)


HINT_TIMES = ("first_call_us", "first_done_us", "repeated_call_us", "repeated_done_us")


def capture_lines(capture: Json) -> list[str]:
    """One row for each call, one column for each mode and thread."""
    columns = [(mode, thread) for mode, by_thread in capture.items() for thread in by_thread]
    mode, thread = columns[0]
    rows = []
    for call in capture[mode][thread]:
        cells = []
        for mode, thread in columns:
            one = capture[mode][thread][call]
            ended = "" if one["capture"] == "CUDA_SUCCESS" else f", capture: {one['capture']}"
            cells.append((one["result"] + ended).replace("CUDA_ERROR_", "").replace("CUDA_", ""))
        rows.append((words(call), *cells))
    header = [f"{mode}, {thread}".replace("_", " ") for mode, thread in columns]
    return table(("call", *header), rows)


def nested_lines(section: Json) -> list[str]:
    """Plain figures as one table, sections of like figures as another, others one by one."""
    plain = [(words(name), value) for name, value in section.items() if not isinstance(value, dict)]
    lines = table(("what", "value"), plain) if plain else []
    nested = {name: one for name, one in section.items() if isinstance(one, dict) and one}
    if not nested:
        return lines
    columns = list(next(iter(nested.values())))
    flat = all(not isinstance(value, dict) for one in nested.values() for value in one.values())
    if flat and all(list(one) == columns for one in nested.values()):
        rows = [(words(name), *one.values()) for name, one in nested.items()]
        return lines + table(("", *map(words, columns)), rows)
    for name, one in nested.items():
        lines += [f"{words(name)}:", "", *nested_lines(one)]
    return lines


def conformance_lines(section: Json) -> list[str]:
    counts = {name: value for name, value in section.items() if name != "failures"}
    failures = [f"* {name}: {one_line(text)}" for name, text in section["failures"].items()]
    return nested_lines(counts) + ([*failures, ""] if failures else [])


def training_lines(trainings: Json) -> list[str]:
    rows = []
    for name, one in trainings.items():
        if "failed" in one:
            rows.append((words(name), f"failed: {one_line(one['failed'])}", "", "", ""))
            continue
        times = (one["native_step_ms"], one["uvmalloc_step_ms"], one["uvmalloc_over_native"])
        rows.append((words(name), words(one["losses"]), *times))
    return table(("model", "losses", "native step, ms", "uvmalloc step, ms", "ratio"), rows)


SECTIONS: dict[str, tuple[str, Callable[[Json], list[str]]]] = {
    "conformance": ("Conformance tests on this driver", conformance_lines),
    "training": ("Training with and without uvmalloc, all of it fitting", training_lines),
    "pairs": ("Allocation and free from the cache, through torch", nested_lines),
    "alignment": ("Alignment of managed allocations", nested_lines),
    "allocations": ("cuMemAllocManaged and cuMemFree, microseconds", nested_lines),
    "hints": (
        "Hints, microseconds: until the call returned, until it had taken effect",
        hint_lines,
    ),
    "prefetch_to_host": ("Does a prefetch to the host block its caller?", nested_lines),
    "default_stream_event": ("Events of the default stream across threads", nested_lines),
    "capture": ("Calls while a stream is captured", capture_lines),
    "call_costs": ("Small calls, nanoseconds", nested_lines),
}


def document(results: Json) -> str:
    device = results["device"]
    lines = [f"# {device['name']}", ""]
    lines += ["Written by `scripts/gpu_check`; the same figures as JSON are beside this page.", ""]
    lines += nested_lines(device)
    for key, (title, show) in SECTIONS.items():
        section = results.get(key, {"failed": "not run"})
        lines += [f"## {title}", "", *(failure(section) or show(section))]
    return "\n".join(lines)


# ---- all of it -----------------------------------------------------------------------------------


class Check:
    def __init__(self, place: Place, clock: Clock, folder: Path) -> None:
        self._place = place
        self._clock = clock
        self._folder = folder
        self.results: Json = {}
        self.failures: list[str] = []

    def stage(self, name: str, measure: Callable[[], Json]) -> Json:
        """What a stage found, or why it failed: the next one runs in any case."""
        started = time.monotonic()
        try:
            found = measure()
        except (CheckError, OSError, KeyError, ValueError) as error:
            found = {"failed": str(error)}
            self.failures.append(f"{name}: {error}")
        outcome = "failed" if isinstance(found.get("failed"), str) else "done"
        say(f"{name}: {outcome}, {time.monotonic() - started:.0f} s")
        return found

    def run(self) -> None:
        device = probe(self._place, self._clock, "--limit")["device"]
        if device["simulated"] != self._place.simulated:
            raise CheckError(f"the device is {device['name']}, which is not what was asked for")
        limit = device["managed_limit_bytes"]
        if limit < LEAST_LIMIT_BYTES and not self._place.simulated:
            raise CheckError(
                f"only {limit // MIB} MiB of managed memory may be used here: too little"
            )
        # Half: what a budget counts is pages handed out, and the driver is asked for whole spans.
        self._place = Place(self._place.simulated, self._place.build, limit // 2)
        say(f"{device['name']}: at most {limit // MIB} MiB of managed memory")
        place, clock, folder = self._place, self._clock, self._folder
        results = self.results
        results["device"] = device
        results["conformance"] = self.stage(
            "conformance", lambda: conformance(place, clock, folder)
        )
        for name, test_failure in results["conformance"].get("failures", {}).items():
            self.failures.append(f"{name}: {one_line(test_failure)}")
        sizes = ["--sizes-mib", "2,16", "--rounds", "1"] if place.simulated else []
        probed = self.stage("driver probe", lambda: probe(place, clock, *sizes))
        results.update({name: probed[name] for name in SECTIONS if name in probed})
        for name in SECTIONS:
            if isinstance(why := probed.get(name, {}).get("failed"), str):
                self.failures.append(f"{name}: {one_line(why)}")
        results["pairs"] = self.stage("allocation pairs", lambda: pairs(place, clock))
        results["training"] = {}
        trainings = SIMULATED_TRAININGS if place.simulated else TRAININGS
        for name, training in trainings.items():
            if place.budget_bytes < training.least_budget_bytes:
                say(f"training, {name.replace('_', ' ')}: not on a device of this size")
                continue
            found = self.stage(
                f"training, {name.replace('_', ' ')}",
                lambda training=training: train(place, clock, folder, training),
            )
            results["training"][name] = found
            if found.get("losses") == "different":
                self.failures.append(f"training, {name}: the losses differ")

    def write(self, output: Path) -> None:
        output.mkdir(parents=True, exist_ok=True)
        ordered = {
            name: self.results[name] for name in ("device", *SECTIONS) if name in self.results
        }
        name = slug(self.results["device"]["name"])
        text = json.dumps(ordered, indent=1) + "\n"
        (output / f"{name}.json").write_text(text, encoding="utf-8")
        (output / f"{name}.md").write_text(document(ordered), encoding="utf-8")
        say(f"written: {output / name}.md and .json")


def main() -> int:
    parser = argparse.ArgumentParser(description="Checks uvmalloc on a machine with a real GPU.")
    parser.add_argument("--prepare", action="store_true", help="fill build/gpu_deps and end")
    parser.add_argument("--simulated", action="store_true", help="a trial on the simulated device")
    parser.add_argument("--build", type=Path, help="a finished build to check instead of a new one")
    parser.add_argument("--output", type=Path, help="default: docs/measurements")
    arguments = parser.parse_args()
    try:
        if arguments.prepare:
            prepare(ROOT, DEPS)
            return 0
        return check(arguments.simulated, arguments.build, arguments.output)
    except (CheckError, MissingSourceError) as error:
        print(f"gpu_check: error: {error}", file=sys.stderr)
        return 1


def check(simulated: bool, finished_build: Path | None, output: Path | None) -> int:
    clock = Clock()
    started = time.monotonic()
    if simulated:
        place = Place(True, (finished_build or ROOT / "build" / "release").resolve())
        output = output or Path(tempfile.mkdtemp(prefix="gpu-check-"))
    else:
        lines = missing()
        for line in lines:
            say(f"missing: {line}")
        if lines:
            return 1
        place = Place(False, (finished_build or ROOT / "build" / "gpu").resolve())
        output = output or ROOT / "docs" / "measurements"
        if finished_build is None:
            build(place, clock)
            say(f"build: done, {time.monotonic() - started:.0f} s")
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        one = Check(place, clock, Path(folder))
        one.run()
        one.write(output)
    for line in one.failures:
        say(f"FAILED: {line}")
    say(f"{len(one.failures)} failed, {time.monotonic() - started:.0f} s")
    return 1 if one.failures else 0


if __name__ == "__main__":
    sys.exit(main())
