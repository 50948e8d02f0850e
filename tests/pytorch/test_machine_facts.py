"""What the doctor reads about a machine, on file trees that stand for machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from uvmalloc._cli import machine_facts

GIB = 1 << 30
DISCRETE = {
    "concurrent_managed_access": True,
    "discard": True,
    "batches": True,
    "finds_pages": True,
}


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_the_host_is_read_from_proc(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {"proc/meminfo": "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\nSwapTotal: 0 kB\nX: 1 kB"},
    )
    assert machine_facts.host_facts(root) == {
        "total_bytes": GIB,
        "available_bytes": GIB // 2,
        "swap_bytes": 0,
    }
    assert machine_facts.host_facts(tmp_path / "nothing") == {}


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b", {"a/b/memory.max": "max", "a/memory.max": str(GIB)}, GIB),
        ("0::/a/b", {"a/b/memory.max": "4096", "a/memory.max": str(GIB)}, 4096),
        ("0::/", {"memory.max": "max"}, None),
        ("3:cpu,memory:/a", {"memory/a/memory.limit_in_bytes": "8192"}, 8192),
        ("3:memory:/a", {"memory/a/memory.limit_in_bytes": str((1 << 63) - 4096)}, None),
        ("3:cpu:/a", {"a/memory.max": "4096"}, None),
    ],
)
def test_the_smallest_limit_of_the_control_groups_counts(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    tree = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    root = write(tmp_path, {"proc/self/cgroup": groups, **tree})
    assert machine_facts.host_facts(root).get("control_group_limit_bytes") == limit


def test_hooks_are_those_of_others(tmp_path: Path) -> None:
    root = write(tmp_path, {"etc/ld.so.preload": "/lib/libhami.so\n"})
    variables = {"LD_PRELOAD": "/x/libuvmalloc_preload.so:/y/libjemalloc.so.2 /z/libtrace.so"}
    assert machine_facts.hooks(variables, root) == [
        "/y/libjemalloc.so.2 (LD_PRELOAD)",
        "/z/libtrace.so (LD_PRELOAD)",
        "/lib/libhami.so (/etc/ld.so.preload)",
    ]


def test_amd_is_there_where_its_driver_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HSA_XNACK", "1")
    assert machine_facts.amd_facts(tmp_path) == {}
    root = write(
        tmp_path,
        {
            "sys/module/amdgpu/parameters/noretry": "0\n",
            "sys/class/drm/card1/device/mem_info_gtt_total": str(GIB),
        },
    )
    assert machine_facts.amd_facts(root) == {"noretry": 0, "gtt_bytes": [GIB], "HSA_XNACK": "1"}


@pytest.mark.parametrize(
    ("more", "begins"),
    [
        ({}, "managed memory only"),
        ({"pageable_memory_access": True}, "HMM"),
        ({"pageable_memory_access": True, "host_page_tables": True}, "hardware coherent"),
        ({"integrated": True, "pageable_memory_access": True}, "integrated"),
        ({"concurrent_managed_access": False}, "not usable: host and device"),
        ({"migrates_on_fault": False}, "not usable: pages of managed memory"),
    ],
)
def test_the_paradigm_follows_from_the_capabilities(more: dict[str, bool], begins: str) -> None:
    assert machine_facts.paradigm({**DISCRETE, **more}).startswith(begins)


def test_what_is_degraded_names_the_missing_capability() -> None:
    reaching = {**DISCRETE, "pageable_memory_access": True}
    assert machine_facts.degraded(reaching) == []
    for name, begin in (
        ("discard", "no discard: freed pages stay"),
        ("batches", "no batches: each range"),
        ("finds_pages", "the driver does not report where pages are"),
    ):
        [line] = machine_facts.degraded({**reaching, name: False})
        assert line.startswith(begin)
        assert machine_facts.degraded({**reaching, "integrated": True, name: False}) == []
    [line] = machine_facts.degraded(DISCRETE)
    assert line.startswith("the device cannot use memory")
    assert line.endswith("groups cannot sleep in a file")
    [line] = machine_facts.degraded({})
    assert "inactive" in line


def test_advice_is_about_this_machine() -> None:
    host = {"total_bytes": 8 * GIB, "page_cache_bytes": 4 * GIB, "swap_bytes": 0}
    assert machine_facts.advice(host, [{"capabilities": DISCRETE}]) == []
    [line] = machine_facts.advice(host, [{"capabilities": {"integrated": True}}])
    assert "drop_caches" in line
    limited = {**host, "control_group_limit_bytes": GIB, "swap_bytes": GIB}
    group, swap = machine_facts.advice(limited, [])
    assert "control group" in group and "swap" in swap
