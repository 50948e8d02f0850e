"""Facts of the host and of its devices that decide how well unified memory works.

The functions only depend on a file system's root and on the devices' capabilities. Facts in missing
or unreadable files are left out.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

_MEMINFO = {
    "MemTotal": "total_bytes",
    "MemAvailable": "available_bytes",
    "Cached": "page_cache_bytes",
    "SwapTotal": "swap_bytes",
    "SwapFree": "swap_free_bytes",
}
# A control group without a limit has "max" or, in version 1, a number near 2^63.
_LEAST_UNLIMITED = 1 << 60


def host_facts(root: Path = Path("/")) -> Facts:
    """Returns memory, swap, and the smallest limit of the control groups above this process."""
    facts: Facts = {}
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name in _MEMINFO:
            facts[_MEMINFO[name]] = int(value.split()[0]) << 10
    limit = _control_group_limit(root)
    if limit is not None:
        facts["control_group_limit_bytes"] = limit
    return facts


def amd_facts(root: Path = Path("/")) -> Facts:
    """Returns XNACK and the memory that AMD devices share with the host, if amdgpu is loaded."""
    facts: Facts = {}
    for line in _lines(root / "sys/module/amdgpu/parameters/noretry"):
        facts["noretry"] = int(line)  # 0: retries faults: pages may migrate; -1: the chip decides
    cards = sorted((root / "sys/class/drm").glob("card*/device/mem_info_gtt_total"))
    if cards:
        facts["gtt_bytes"] = [int(line) for card in cards for line in _lines(card)]
    if facts and "HSA_XNACK" in os.environ:
        facts["HSA_XNACK"] = os.environ["HSA_XNACK"]
    return facts


def hooks(environment: Mapping[str, str], root: Path = Path("/")) -> list[str]:
    """Returns other preloaded and audit libraries, which may intercept the same calls."""
    found = []
    for name in ("LD_PRELOAD", "LD_AUDIT"):
        entries = re.split(r"[ :]+", environment.get(name, ""))
        found += [f"{entry} ({name})" for entry in entries if entry]
    for line in _lines(root / "etc/ld.so.preload"):
        found += [f"{entry} (/etc/ld.so.preload)" for entry in line.split()]
    return [hook for hook in found if "libuvmalloc_preload.so" not in hook]


def driver_version() -> str | None:
    """Returns the version of CUDA's driver, such as 13.0, or None. Initialises nothing."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        version = ctypes.c_int()
        if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def paradigm(capabilities: Mapping[str, Any]) -> str:
    """Says how device and host share memory (CUDA's programming guide, Unified Memory)."""
    if not capabilities.get("concurrent_managed_access"):
        return "not usable: host and device cannot use managed memory at the same time"
    if not capabilities.get("migrates_on_fault", True):
        return "not usable: pages of managed memory do not migrate to their user (XNACK is off)"
    if capabilities.get("integrated"):
        return "integrated: device and host share one memory, and nothing moves"
    if capabilities.get("host_page_tables"):
        return "hardware coherent: the device uses the host's page tables"
    if capabilities.get("pageable_memory_access"):
        return "HMM: the device reaches all memory of the host, by page faults"
    return "managed memory only: pages migrate at faults and by hints"


def degraded(capabilities: Mapping[str, Any]) -> list[str]:
    """Returns what does not work, or works less well, because the device lacks a capability."""
    if not capabilities.get("concurrent_managed_access") or not capabilities.get(
        "migrates_on_fault", True
    ):
        return ["uvmalloc stays inactive: programs run as without it"]
    found = []
    moves = not capabilities.get("integrated") and not capabilities.get("host_page_tables")
    if moves and not capabilities.get("discard"):
        found.append(
            "no discard: freed pages stay where they are, and are copied if they are evicted"
        )
    if moves and not capabilities.get("batches"):
        found.append("no batches: each range of pages moves by a call of its own")
    if moves and not capabilities.get("finds_pages"):
        found.append(
            "the driver does not report where pages are: the planner does not see that another "
            "program took memory, and uvmalloc.residency(tensor, exact=True) raises an error"
        )
    if not capabilities.get("pageable_memory_access"):
        found.append(
            "the device cannot use memory from malloc, so a move of such a tensor copies, and "
            "groups cannot sleep in a file"
        )
    return found


def advice(host: Facts, devices: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns what to change on this machine."""
    found = []
    limit = host.get("control_group_limit_bytes")
    if limit is not None and limit < host.get("total_bytes", 0):
        found.append(
            "a control group limits this process's memory, managed memory included: its limit is "
            "the budget"
        )
    integrated = any(device.get("capabilities", {}).get("integrated") for device in devices)
    total, cached = host.get("total_bytes", 0), host.get("page_cache_bytes", 0)
    if integrated and 4 * cached > total:
        found.append(
            "the driver counts the page cache as used memory: free it before a large program "
            "(sync; echo 1 > /proc/sys/vm/drop_caches)"
        )
    if host.get("swap_bytes"):
        found.append("swap is on: an exhausted host becomes slow before a request fails")
    return found


def _control_group_limit(root: Path) -> int | None:
    limits = []
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        second = number == "0" and not controllers
        if not second and "memory" not in controllers.split(","):
            continue
        base = root / ("sys/fs/cgroup" if second else "sys/fs/cgroup/memory")
        file = "memory.max" if second else "memory.limit_in_bytes"
        group = base / path.lstrip("/")
        while group == base or base in group.parents:
            limits += [int(text) for text in _lines(group / file) if text.isdigit()]
            group = group.parent
    limits = [limit for limit in limits if limit < _LEAST_UNLIMITED]
    return min(limits, default=None)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []
