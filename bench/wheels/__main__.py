"""Counts the wheels that run unmodified on the simulated device.

    python -m bench.wheels --python PYTHON [--out FILE]

PYTHON belongs to an environment with the packages of scripts/wheel_requirements.txt; scripts/wheels
makes it and passes it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from bench.wheels.started import measure, show


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="the environment's Python")
    parser.add_argument("--out", type=Path, help="file for the figures, in JSON")
    arguments = parser.parse_args()
    figures = measure(arguments.python)
    show(figures)
    text = json.dumps(figures, indent=2)
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
