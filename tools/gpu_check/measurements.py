"""Measures the driver and the allocator: conformance tests, the driver probe, allocation pairs.

Also measures programs without PyTorch, linked with CUDA's shared runtime and with its static one.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from uvmalloc._cli.environment import with_cuda_calls_served

from gpu_check.place import MIB, ROOT, Place
from gpu_check.subprograms import CheckError, Clock, ExitError, run

Json = dict[str, Any]

CONFORMANCE_TESTS = "*cuda*:Cuda*:RuntimeRegistry.*"  # without the tests of the fake runtime


def conformance(place: Place, clock: Clock, folder: Path) -> Json:
    """Runs the suite on the driver. A failing test is a result; a crash fails the stage."""
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
    """Returns nanoseconds of an allocation plus a free, from the cache, while memory suffices."""
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


ANY_PROGRAM = ROOT / "bench" / "any_program" / "cuda_program.cpp"


def any_program(place: Place, clock: Clock, folder: Path) -> Json:
    """Returns nanoseconds of cudaMalloc plus cudaFree in a program, without and with uvmalloc."""
    compiler = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if compiler is None:
        return {"not_measured": "there is no nvcc"}
    libraries = Path(compiler).resolve().parent.parent / "lib64"
    out: Json = {}
    # The simulated driver lacks the tables that the static runtime requests.
    for runtime in ("shared",) if place.simulated else ("shared", "static"):
        program = folder / f"cuda_program_{runtime}"
        command = [compiler, "-x", "cu", "-std=c++17", "-O2", "-cudart", runtime]
        command += ["-I", str(ROOT / "include"), "-o", str(program), str(ANY_PROGRAM)]
        run(command, place.environment(), clock.left(120), "nvcc")
        plain = place.driver_environment()
        paths = [plain.get("LD_LIBRARY_PATH", ""), str(libraries)]
        plain["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
        preloaded = with_cuda_calls_served(plain, place.libraries / "libuvmalloc_preload.so")
        for name, environment in (("driver", plain), ("uvmalloc", preloaded)):
            done = run([str(program), "pairs"], environment, clock.left(60), program.name)
            out[f"{runtime}_runtime_{name}_ns"] = json.loads(done.stdout)
    return out
