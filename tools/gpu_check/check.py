"""Runs the stages in order, and collects what each of them found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from gpu_check.document import SECTIONS, document, one_line, slug
from gpu_check.measurements import Json, any_program, conformance, pairs, probe
from gpu_check.place import MIB, Place
from gpu_check.programs import evictions, random_moves, served_training
from gpu_check.subprograms import CheckError, Clock, say
from gpu_check.training import EVICTED_TRAINING, SIMULATED_TRAININGS, TRAININGS, train

LEAST_LIMIT_BYTES = 2048 * MIB  # managed memory that the tests need


class Check:
    def __init__(self, place: Place, clock: Clock, folder: Path) -> None:
        self._place = place
        self._clock = clock
        self._folder = folder
        self.results: Json = {}
        self.failures: list[str] = []

    def stage(self, name: str, measure: Callable[[], Json]) -> Json:
        """Returns the result of a stage, or why it failed. The next stage runs in either case."""
        started = time.monotonic()
        try:
            found = measure()
        except (CheckError, OSError, KeyError, ValueError) as error:
            found = {"failed": str(error)}
            self.failures.append(f"{name}: {error}")
        outcome = "failed" if isinstance(found.get("failed"), str) else "done"
        say(f"{name}: {outcome}, {time.monotonic() - started:.0f} s")
        return found

    def run(self) -> None:
        device = probe(self._place, self._clock, "--limit")["device"]
        if device["simulated"] != self._place.simulated:
            raise CheckError(f"the device is {device['name']}, which is not what was asked for")
        limit = device["managed_limit_bytes"]
        if limit < LEAST_LIMIT_BYTES and not self._place.simulated:
            raise CheckError(
                f"only {limit // MIB} MiB of managed memory may be used here: too little"
            )
        # Half of the limit: a budget counts pages in use, but the allocator reserves whole spans
        # from the driver.
        self._place = Place(self._place.simulated, self._place.build, limit // 2)
        say(f"{device['name']}: at most {limit // MIB} MiB of managed memory")
        place, clock, folder = self._place, self._clock, self._folder
        results = self.results
        results["device"] = device
        results["conformance"] = self.stage(
            "conformance", lambda: conformance(place, clock, folder)
        )
        for name, test_failure in results["conformance"].get("failures", {}).items():
            self.failures.append(f"{name}: {one_line(test_failure)}")
        sizes = ["--sizes-mib", "2,16", "--rounds", "1"] if place.simulated else []
        probed = self.stage("driver probe", lambda: probe(place, clock, *sizes))
        results.update({name: probed[name] for name in SECTIONS if name in probed})
        for name in SECTIONS:
            if isinstance(why := probed.get(name, {}).get("failed"), str):
                self.failures.append(f"{name}: {one_line(why)}")
        results["pairs"] = self.stage("allocation pairs", lambda: pairs(place, clock))
        results["any_program"] = self.stage(
            "CUDA programs without PyTorch", lambda: any_program(place, clock, folder)
        )
        results["training"] = {}
        trainings = SIMULATED_TRAININGS if place.simulated else TRAININGS
        for name, training in trainings.items():
            if place.budget_bytes < training.least_budget_bytes:
                say(f"training, {name.replace('_', ' ')}: not on a device of this size")
                continue
            found = self.stage(
                f"training, {name.replace('_', ' ')}",
                lambda training=training: train(place, clock, folder, training),
            )
            results["training"][name] = found
            if found.get("losses") == "different":
                self.failures.append(f"training, {name}: the losses differ")

        smallest = trainings["small_model"]
        results["random_moves"] = self.stage(
            "random moves", lambda: random_moves(place, clock, 5 if place.simulated else 200)
        )
        results["served_training"] = self.stage(
            "training, served calls", lambda: served_training(place, clock, folder, smallest)
        )
        evicted, divisors = (smallest, [2.0]) if place.simulated else EVICTED_TRAINING
        results["evictions"] = self.stage(
            "evictions",
            lambda: evictions(place, clock, folder, evicted, device["total_bytes"], divisors),
        )

    def write(self, output: Path) -> None:
        output.mkdir(parents=True, exist_ok=True)
        ordered = {
            name: self.results[name] for name in ("device", *SECTIONS) if name in self.results
        }
        name = slug(self.results["device"]["name"])
        text = json.dumps(ordered, indent=1) + "\n"
        (output / f"{name}.json").write_text(text, encoding="utf-8")
        (output / f"{name}.md").write_text(document(ordered), encoding="utf-8")
        say(f"written: {output / name}.md and .json")
