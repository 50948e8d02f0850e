"""Runs one scenario on the machine named by UVMSIM_MACHINE and prints its figures as JSON.

`python -m bench.machine.measure_here FOLDER SCENARIO [NUMBER...]`
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.machine.scenarios import SCENARIOS
from bench.machine.simulated import SimulatedMachine


def main() -> None:
    folder, scenario, *numbers = sys.argv[1:]
    machine = SimulatedMachine(Path(folder))
    print(json.dumps(SCENARIOS[scenario](machine, *(int(number) for number in numbers))))


if __name__ == "__main__":
    main()
