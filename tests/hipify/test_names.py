"""runtime/cuda uses only driver calls that have a twin in HIP."""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def twins() -> dict[str, str]:
    lines = (ROOT / "hipify" / "cuda_to_hip.csv").read_text().splitlines()
    return {
        row["cuda"]: row["hip"]
        for row in csv.DictReader(line for line in lines if not line.startswith("#"))
    }


def test_every_bound_driver_call_has_a_hip_twin() -> None:
    bound = set(re.findall(r'"(cu[A-Z]\w+)"\)', (ROOT / "runtime/cuda/driver_api.cpp").read_text()))
    assert len(bound) > 20, "the names could not be found in the source"
    assert bound - twins().keys() == set(), "calls without a twin"
    assert twins().keys() - bound == set(), "names that nobody binds any more"


def test_twins_are_hip_names_and_unique() -> None:
    names = list(twins().values())
    assert all(re.fullmatch(r"hip[A-Z]\w+", name) for name in names)
    assert len(names) == len(set(names))
