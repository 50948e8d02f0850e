"""What the driver and the allocator do: conformance tests, the probe, allocation pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_check.commands import CheckError, Clock, ExitError, run
from gpu_check.place import MIB, ROOT, Place

Json = dict[str, Any]

CONFORMANCE_TESTS = "*cuda*:Cuda*:RuntimeRegistry.*"  # leaves out the fake runtime's


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
    """Nanoseconds of an allocation and a free that the cache serves, with memory to spare."""
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
