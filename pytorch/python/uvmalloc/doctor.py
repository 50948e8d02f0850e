"""What this machine can do, what is set, and what to do about it."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from uvmalloc import native
from uvmalloc.errors import CommandError
from uvmalloc.libraries import CUDA_MAJOR, Libraries, find_libraries
from uvmalloc.sizes import format_size
from uvmalloc.tables import print_table

Diagnosis = dict[str, Any]


def diagnose() -> Diagnosis:
    """What libuvmalloc.so says, completed by "library", "torch", "problems" and "usable".

    Never raises for a missing library: that is a diagnosis.
    """
    libraries: Libraries | None = None
    diagnosis: Diagnosis = {}
    problems: list[str] = []
    try:
        libraries = find_libraries()
        diagnosis = native.doctor(libraries.require_uvmalloc())
    except CommandError as error:
        problems.append(str(error))
    else:
        problems += _machine_problems(diagnosis)
    torch = _describe_torch(libraries)
    if torch["version"] and libraries and not torch["plugin"]:
        built = ", ".join(torch["plugins"]) or "none"
        problems.append(
            f"no plugin for torch {torch['version']} in {libraries.folder} (built: {built}): "
            "run scripts/build with this torch"
        )
    if torch["cuda"] and torch["cuda"].split(".")[0] != str(CUDA_MAJOR):
        problems.append(
            f"torch {torch['version']} is built for CUDA {torch['cuda']}, and uvmalloc needs a "
            f"torch for CUDA {CUDA_MAJOR}: install that wheel"
        )
    return {
        **diagnosis,
        "library": str(libraries.uvmalloc) if libraries else None,
        "torch": torch,
        "problems": problems,
        "usable": not problems,
    }


def _machine_problems(diagnosis: Diagnosis) -> list[str]:
    runtime = diagnosis.get("runtime", {})
    if not runtime.get("available"):
        reason = runtime.get("reason") or "no reason given"
        return [f"no device runtime: {reason}. Without a GPU, try: uvmalloc sim -- COMMAND"]
    if not diagnosis.get("devices"):
        return ["the device runtime shows no device. Without a GPU, try: uvmalloc sim -- COMMAND"]
    if not diagnosis.get("usable", True):
        return [diagnosis.get("verdict") or "libuvmalloc.so says that it cannot be used here"]
    return []


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
    }


def _cuda_of(version_file: Path) -> str | None:
    """The CUDA that torch was built for, "13.0", without importing torch; None: it has none."""
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
    if runtime:
        state = (
            "available"
            if runtime.get("available")
            else f"not available: {runtime.get('reason', '')}"
        )
        facts["runtime"] = f"{runtime.get('name', '')}, {state}"
    if "host_memory" in diagnosis:
        facts["host memory"] = diagnosis["host_memory"]
    facts["torch"] = torch["version"] or "not installed in this environment"
    if torch["version"]:
        facts["plugin"] = torch["plugin"] or "none for this torch"
    width = max(map(len, facts))
    for name, fact in facts.items():
        console.print(f"{name:<{width}}  {fact}", soft_wrap=True)
    if diagnosis.get("devices"):
        columns = ("device", "name", "memory", "free", "capabilities")
        print_table(console, columns, map(_device_row, diagnosis["devices"]))
    if diagnosis.get("configuration"):
        columns = ("variable", "value", "from")
        print_table(console, columns, map(_setting_row, diagnosis["configuration"]))
    for error in diagnosis.get("configuration_errors", []):
        console.print(f"configuration: {error}", style="yellow", soft_wrap=True)
    for problem in diagnosis["problems"]:
        console.print(f"problem: {problem}", style="red", soft_wrap=True)
    verdict = diagnosis.get("verdict") or ("usable" if diagnosis["usable"] else "not usable")
    console.print(f"verdict: {verdict}", style="bold", soft_wrap=True)


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
