"""Shows what this machine can do, the effective settings, and what to do about problems."""

from __future__ import annotations

import os
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from uvmalloc._cli import library_calls, machine_facts
from uvmalloc._cli.tables import print_table
from uvmalloc.errors import CommandError
from uvmalloc.libraries import CUDA_MAJOR, Libraries, find_libraries
from uvmalloc.sizes import format_size

Diagnosis = dict[str, Any]

_WITHOUT_PLUGIN = "without it `uvmalloc run` serves only torch's CUDA allocation calls"


def diagnose() -> Diagnosis:
    """Returns the library's report on this machine, plus facts, "problems" and "usable".

    A missing library is one of the problems, not an error.
    """
    libraries: Libraries | None = None
    diagnosis: Diagnosis = {}
    problems: list[str] = []
    try:
        libraries = find_libraries()
        diagnosis = library_calls.doctor(libraries.require_uvmalloc())
    except CommandError as error:
        problems.append(str(error))
    else:
        problems += _machine_problems(diagnosis)
    torch = _describe_torch(libraries)
    if torch["version"] and libraries:
        problems += _torch_problems(torch, libraries)
    host = machine_facts.host_facts()
    devices = [_with_paradigm(device) for device in diagnosis.get("devices", [])]
    return {
        **diagnosis,
        "devices": devices,
        "driver_version": machine_facts.driver_version(),
        "host": host,
        "amd": machine_facts.amd_facts(),
        "hooks": machine_facts.hooks(os.environ),
        "advice": machine_facts.advice(host, devices),
        "library": str(libraries.uvmalloc) if libraries else None,
        "torch": torch,
        "problems": problems,
        "usable": not problems,
    }


def build_facts(libraries: Libraries) -> dict[str, str]:
    """Returns what is known of the build: its commit, its compiler, and the torches it serves."""
    build = library_calls.doctor(libraries.require_uvmalloc()).get("build", {})
    return {**build, "plugins for torch": ", ".join(libraries.built_for_torch()) or "none"}


def _with_paradigm(device: Diagnosis) -> Diagnosis:
    capabilities = device.get("capabilities", {})
    return {
        **device,
        "paradigm": machine_facts.paradigm(capabilities),
        "degraded": machine_facts.degraded(capabilities),
    }


def _machine_problems(diagnosis: Diagnosis) -> list[str]:
    runtime = diagnosis.get("runtime", {})
    if not runtime.get("available"):
        reason = runtime.get("reason") or "no reason given"
        return [f"no device runtime: {reason}. Without a GPU, try: uvmalloc sim -- COMMAND"]
    if not diagnosis.get("devices"):
        return ["the device runtime shows no device. Without a GPU, try: uvmalloc sim -- COMMAND"]
    if not diagnosis.get("usable", True):
        return [diagnosis.get("verdict") or "uvmalloc says that it cannot be used here"]
    return []


def _torch_problems(torch: Diagnosis, libraries: Libraries) -> list[str]:
    version, cuda = torch["version"], torch["cuda"]
    if cuda is None or cuda.split(".")[0] != str(CUDA_MAJOR):
        built = f"for CUDA {cuda}" if cuda else "without CUDA"
        also = f"; {_WITHOUT_PLUGIN}" if cuda else ""
        return [
            f"torch {version} is built {built}, and uvmalloc needs a torch for CUDA {CUDA_MAJOR}: "
            f"install that wheel{also}"
        ]
    if torch["plugin"]:
        return []
    served = libraries.served_torch()
    missing = f"no plugin for torch {version} in {libraries.folder}"
    if ".".join(version.split(".")[:2]) not in served:
        return [f"{missing}: install one of the versions {', '.join(served)}; {_WITHOUT_PLUGIN}"]
    command = f"{libraries.checkout}/scripts/build --torch-of {sys.executable}"
    return [f"{missing}: run {command}; {_WITHOUT_PLUGIN}"]


def _describe_torch(libraries: Libraries | None) -> Diagnosis:
    version, cuda = None, None
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        pass
    else:
        version, cuda = torch.version, _cuda_of(Path(str(torch.locate_file("torch/version.py"))))
    plugin = libraries.plugin(version) if libraries and version else None
    return {
        "version": version,
        "cuda": cuda,
        "plugin": str(plugin) if plugin and plugin.is_file() else None,
        "plugins": [file.name for file in libraries.plugins()] if libraries else [],
        "built_for": libraries.built_for_torch() if libraries else [],
    }


def _cuda_of(version_file: Path) -> str | None:
    """Returns the CUDA version torch was built for, "13.0", or None. Does not import torch."""
    if not version_file.is_file():
        return None
    found = re.search(r"^cuda\b[^=\n]*= *['\"]([^'\"]+)", version_file.read_text(), re.MULTILINE)
    return found[1] if found else None


def show_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    runtime = diagnosis.get("runtime", {})
    torch = diagnosis["torch"]
    facts = {
        "library": f"{diagnosis['library'] or 'not found'} {diagnosis.get('version', '')}".strip()
    }
    if build := diagnosis.get("build"):
        facts["built from"] = f"commit {build['commit']}, with {build['compiler']}"
    if runtime:
        state = (
            "available"
            if runtime.get("available")
            else f"not available: {runtime.get('reason', '')}"
        )
        facts["runtime"] = f"{runtime.get('name', '')}, {state}"
    if diagnosis.get("driver_version"):
        facts["CUDA driver"] = diagnosis["driver_version"]
    facts["host"] = _host(diagnosis["host"])
    if "host_memory" in diagnosis:
        facts["CPU tensors in"] = f"{diagnosis['host_memory']} memory"
    if diagnosis["amd"]:
        facts["AMD"] = ", ".join(f"{name} {value}" for name, value in diagnosis["amd"].items())
    if diagnosis["hooks"]:
        facts["other hooks"] = ", ".join(diagnosis["hooks"])
    facts["torch"] = torch["version"] or "not installed in this environment"
    if torch["version"]:
        facts["plugin"] = torch["plugin"] or "none for this torch"
    facts["plugins for torch"] = ", ".join(torch["built_for"]) or "none"
    width = max(map(len, facts))
    for name, fact in facts.items():
        console.print(f"{name:<{width}}  {fact}", soft_wrap=True)
    if diagnosis.get("devices"):
        of_devices = ("device", "name", "memory", "free", "capabilities")
        print_table(console, of_devices, map(_device_row, diagnosis["devices"]))
        for device in diagnosis["devices"]:
            console.print(f"device {device['index']}: {device['paradigm']}", soft_wrap=True)
            for line in device["degraded"]:
                console.print(f"device {device['index']}: {line}", soft_wrap=True)
    if diagnosis.get("configuration"):
        of_settings = ("variable", "value", "from")
        print_table(console, of_settings, map(_setting_row, diagnosis["configuration"]))
    for error in diagnosis.get("configuration_errors", []):
        console.print(f"configuration: {error}", style="yellow", soft_wrap=True)
    for line in diagnosis["advice"]:
        console.print(f"advice: {line}", soft_wrap=True)
    for problem in diagnosis["problems"]:
        console.print(f"problem: {problem}", style="red", soft_wrap=True)
    verdict = diagnosis.get("verdict") or ("usable" if diagnosis["usable"] else "not usable")
    console.print(f"verdict: {verdict}", style="bold", soft_wrap=True)


def _host(host: Diagnosis) -> str:
    parts = [
        f"{format_size(host[key])} {words}"
        for key, words in (
            ("total_bytes", "of memory"),
            ("available_bytes", "available"),
            ("control_group_limit_bytes", "allowed by the control group"),
            ("swap_bytes", "of swap"),
        )
        if key in host
    ]
    return ", ".join(parts) or "not known"


def _device_row(device: Diagnosis) -> tuple[str, ...]:
    capabilities = device.get("capabilities", {}).items()
    return (
        str(device.get("index", "")),
        device.get("name", ""),
        format_size(device.get("total_bytes", 0)),
        format_size(device.get("free_bytes", 0)),
        "\n".join(_capability(name, value) for name, value in capabilities),
    )


def _capability(name: str, value: bool | int) -> str:
    if isinstance(value, bool):
        return f"{name}: {'yes' if value else 'no'}"
    return f"{name}: {value}"


def _setting_row(entry: Diagnosis) -> tuple[str, ...]:
    value = str(entry.get("value", ""))
    if entry.get("effective"):
        value += f": {entry['effective']}"
    return entry.get("name", ""), value, entry.get("source", "")
