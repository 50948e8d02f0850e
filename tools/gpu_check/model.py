"""Runs small probes on the card and on a profile's simulated machine, and compares them.

The probes never oversubscribe the card. The table helps to correct the profile.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from gpu_check.place import ROOT, Place
from gpu_check.subprograms import CheckError, Clock, run

PROBE = ROOT / "tools" / "gpu_check" / "machine_probe.py"


@dataclass(frozen=True)
class Probed:
    device: str
    figures: dict[str, float]


def profiles(build: Path) -> list[str]:
    return sorted(file.stem for file in (build / "lib" / "sim" / "profiles").glob("*.toml"))


def probe_machine(build: Path, profile: str | None, clock: Clock) -> Probed:
    """Returns the figures of a profile's simulated machine, or of the card if `profile` is None."""
    place = Place(profile is not None, build)
    environment = place.driver_environment()
    command = [sys.executable, str(PROBE)]
    if profile is not None:
        environment["UVMSIM_MACHINE"] = profile
        command.append(str(place.libraries / "sim" / "libuvmsim.so"))
    found = json.loads(run(command, environment, clock.left(120), "machine_probe.py").stdout)
    return Probed(found["device"], found["figures"])


def table(card: Probed, model: Probed) -> list[str]:
    lines = [
        f"card:  {card.device}",
        f"model: {model.device}",
        f"{'figure':<30}{'card':>12}{'model':>12}{'model/card':>12}",
    ]
    for name, measured in card.figures.items():
        modelled = model.figures[name]
        ratio = f"{modelled / measured:.2f}" if measured else "-"
        lines.append(f"{name:<30}{measured:>12.3f}{modelled:>12.3f}{ratio:>12}")
    return lines


def compare(build: Path, profile: str, card_profile: str | None, clock: Clock) -> list[str]:
    """`card_profile` is the simulated machine that replaces the card in a trial run."""
    known = profiles(build)
    for name in (profile, *((card_profile,) if card_profile else ())):
        if name not in known and not Path(name).is_file():
            raise CheckError(f"--model is '{name}'; accepted: {', '.join(known)}; a file in TOML")
    card = probe_machine(build, card_profile, clock)
    return table(card, probe_machine(build, profile, clock))
