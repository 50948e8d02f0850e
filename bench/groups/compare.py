"""Writes groups.json: what it costs to sleep and wake groups, beside stock PyTorch's copies."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import tomllib
from rich.console import Console
from rich.table import Table
from uvmalloc.libraries import find_libraries

from bench.allocators.engines import OURS, find_programs
from bench.allocators.instructions import instructions_per_pair
from bench.allocators.plan import SIZES
from bench.groups import requests
from bench.oversubscription.live import MACHINE, run_module
from bench.verdict import Target, number, verdict_table

_ROOT = Path(__file__).resolve().parents[2]
_GROUP_MIB = 4096
_MODEL_MIB, _SWAPS = 1024, 4
_SWAP_CAPACITY_MIB = 1536  # holds one of the models
_WEIGHTS, _ROUNDS = 32, 4
_CLIENTS, _REQUESTS, _REQUESTS_ON_DISK = 4, 2000, 400
_GROWN_BYTES = 8 << 20  # of a server, in the second half of its requests
_FILE_MIB = 1024
_TOKENS = ("512", "32768")


def _run(
    module: str, *arguments: str, capacity_mib: int = 8192, policy: str | None = "auto"
) -> Any:
    return run_module((f"bench.groups.{module}", *arguments), policy, capacity_mib)


def _link_bytes_per_ns() -> float:
    profile = tomllib.loads((_ROOT / "sim" / "profiles" / f"{MACHINE}.toml").read_text())
    return float(profile["links"]["to_device_gb_per_s"])


def _fit_overhead() -> float | None:
    """Returns the instructions of a pair beside a sleeping group over those without groups."""
    if shutil.which("valgrind") is None:
        return None
    program = find_programs(find_libraries())[0][OURS]
    ratios = [
        instructions_per_pair(program, size, "groups=1") / instructions_per_pair(program, size)
        for size in SIZES
    ]
    return round(max(ratios), 3)


def _file_sleep() -> Any:
    with tempfile.TemporaryDirectory(dir=_ROOT / "build") as folder:
        module = ("bench.groups.file_here", str(_FILE_MIB), folder)
        return run_module(module, "auto", 8192, machine=requests.FILE_MACHINE)


def measure() -> dict[str, Any]:
    wake = _run("wake_here", str(_GROUP_MIB))
    arguments = str(_MODEL_MIB), str(_SWAPS)
    ours = _run("swaps_here", "ours", *arguments, capacity_mib=_SWAP_CAPACITY_MIB)
    stock = _run("swaps_here", "stock", *arguments, capacity_mib=_SWAP_CAPACITY_MIB, policy=None)
    if [each["result"] for each in ours] != [each["result"] for each in stock]:
        raise RuntimeError("the models' kernels have read different bytes")
    ratios = [one["time_ns"] / other["time_ns"] for one, other in zip(ours, stock, strict=True)]
    order = _run("order_here", str(_WEIGHTS))
    offloaded = [
        _run("offload_here", "hooks", str(_ROUNDS)),
        _run("offload_here", "stock", str(_ROUNDS), policy=None),
    ]
    if [each["result"] for each in offloaded[0]] != [each["result"] for each in offloaded[1]]:
        raise RuntimeError("the offloaded models have computed different values")
    grown = [
        _run("growth_here", "ours", *_TOKENS),
        _run("growth_here", "stock", *_TOKENS, policy=None),
    ]
    if grown[0]["result"] != grown[1]["result"]:
        raise RuntimeError("the caches differ")
    filed = _file_sleep()
    served = requests.run(_CLIENTS, _REQUESTS // _CLIENTS)
    with tempfile.TemporaryDirectory(dir=_ROOT / "build") as folder:
        filed_server = requests.run(_CLIENTS, _REQUESTS_ON_DISK // _CLIENTS, Path(folder))
    return {
        "wake_over_link": wake["woken_bytes"] / (wake["wake_ns"] * _link_bytes_per_ns()),
        "wake_faults": wake["faults"],
        "second_sleep_bytes": wake["second_sleep_bytes"],
        "swap_over_to_first": ratios[0],
        "swap_over_to": max(ratios[2:]),
        "swap_bytes_over_needed": max(each["link_bytes"] for each in ours[2:]) / (_MODEL_MIB << 20),
        "ordered_wake_over": order["times_ns"][-1] / order["times_ns"][0],
        "offload_bytes_over": _link_bytes(offloaded[0][-1]) / _link_bytes(offloaded[1][-1]),
        "offload_time_over": offloaded[0][-1]["time_ns"] / offloaded[1][-1]["time_ns"],
        "fit_overhead": _fit_overhead(),
        "growth_copies": grown[0]["copied_bytes"],
        "growth_peak": grown[0]["peak_bytes"] / grown[0]["cache_bytes"],
        "growth_stock_peak": grown[1]["peak_bytes"] / grown[1]["cache_bytes"],
        "growth_stock_copies": grown[1]["copied_bytes"],
        "file_sleep_rss": filed["kept_bytes"] / filed["group_bytes"],
        "file_sleep": filed,
        "server_requests": served.answered + served.refused + served.gone,
        "server_wrong": len(served.wrong) + len(filed_server.wrong),
        "server_grown_bytes": served.grown_bytes,
        "server_filed_bytes": filed_server.filed_bytes,
        "server_full_disks": filed_server.unfiled,
        "swaps": ours,
        "stock_swaps": stock,
    }


def _link_bytes(done: dict[str, Any]) -> int:
    """Returns the bytes of copies and of moved pages."""
    return sum(value for name, value in done.items() if name.endswith(("bytes", "device", "host")))


def targets(keys: dict[str, Any]) -> list[Target]:
    return [
        Target("wake_over_link", "4 GiB", keys["wake_over_link"], 0.92, at_most=False),
        Target("second_sleep_bytes", "only read", keys["second_sleep_bytes"], 0, at_most=True),
        Target("swap_over_to", "first swap", keys["swap_over_to_first"], 0.75, at_most=True),
        Target("swap_over_to", "later swaps", keys["swap_over_to"], 0.55, at_most=True),
        Target("ordered_wake_over", "1 GiB", keys["ordered_wake_over"], 0.8, at_most=True),
        Target("offload_bytes_over", "last round", keys["offload_bytes_over"], 0.5, at_most=True),
        Target("fit_overhead", "pairs beside a group", keys["fit_overhead"], 1.0, at_most=True),
        Target("growth_copies", "", keys["growth_copies"], 0, at_most=True),
        Target("growth_peak", "", keys["growth_peak"], 1.02, at_most=True),
        Target("file_sleep_rss", "1 GiB, real", keys["file_sleep_rss"], 0.01, at_most=True),
        Target("server_wrong", "2,400 requests", keys["server_wrong"], 0, at_most=True),
        Target(
            "server_grown_bytes", "real", keys["server_grown_bytes"], _GROWN_BYTES, at_most=True
        ),
        Target("server_full_disks", "", keys["server_full_disks"], 1, at_most=False),
        Target("swap_bytes_over_needed", "", keys["swap_bytes_over_needed"], 1.02, at_most=True),
    ]


def compare(output: Path, console: Console) -> None:
    keys = measure()
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(keys, indent=2) + "\n")
    table = Table(title="Swaps of two models of 1 GiB on a device for one, virtual time")
    for column in ("swap", "uvmalloc, ms", "link, MiB", "stock, ms", "link, MiB", "ratio"):
        table.add_column(column, justify="right")
    for index, (one, other) in enumerate(zip(keys["swaps"], keys["stock_swaps"], strict=True)):
        table.add_row(
            str(index + 1), number(one["time_ns"] / 1e6), number(one["link_bytes"] / 2**20),
            number(other["time_ns"] / 1e6), number(other["link_bytes"] / 2**20),
            number(one["time_ns"] / other["time_ns"]),
        )  # fmt: skip
    console.print(table)
    console.print(verdict_table(targets(keys)))
