"""Adds up the JUnit files of a test run; the last line it prints is "N passed, N failed".

    summarize_tests.py FOLDER SUITE... --allowed-skips FILE [--stage NAME=SECONDS]...
        [--failed-stage NAME]... [--failed-suite SUITE]... [--slowest COUNT]

SUITE names FOLDER/SUITE.xml; a missing or empty file is a failure. A test of `ctest` that is a
shard of a GoogleTest program counts as the tests listed in FOLDER/../PRESET/test-results/SHARD.xml.
A skip or an expected failure counts as a failure, unless a line `test id pattern : reason` in the
file of allowed skips covers it; `*` stands for anything. A failed stage is a failure. A failed
suite is a failure if its results show none. Lists the slowest tests and the time of each stage.
"""

from __future__ import annotations

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    test: str
    state: str  # passed, failed or skipped
    message: str = ""
    output: str = ""  # last lines that a failed test printed
    seconds: float = 0.0


def read_suite(file: Path, suite: str) -> list[Outcome]:
    """Returns a suite's outcomes. ctest and pytest store a test's name in different attributes."""
    if not file.is_file():
        return [Outcome(suite, "failed", "the suite left no results")]
    try:
        cases = list(ElementTree.parse(file).getroot().iter("testcase"))
    except ElementTree.ParseError as error:
        return [Outcome(suite, "failed", f"its results cannot be read: {error}")]
    if not cases:
        return [Outcome(suite, "failed", "the suite ran no test")]
    outcomes: list[Outcome] = []
    for case in cases:
        outcomes += _shard_outcomes(case, suite, file.parent) or [_outcome(case, suite)]
    return outcomes


def _shard_outcomes(case: ElementTree.Element, suite: str, folder: Path) -> list[Outcome] | None:
    """Returns the outcomes of the tests of a shard, or None if the case is not a shard.

    A crashed shard has written no list. If a shard fails although its tests passed, for example
    because of a leak, the shard's own failure is added.
    """
    name = case.get("name") or ""
    if not suite.startswith("ctest-") or not _SHARD.search(name):
        return None
    own = _outcome(case, suite)
    listed = folder.parent / suite.removeprefix("ctest-") / "test-results" / f"{name}.xml"
    if not listed.is_file():
        return [own]
    try:
        tests = list(ElementTree.parse(listed).getroot().iter("testcase"))
    except ElementTree.ParseError as error:
        return [Outcome(own.test, "failed", f"its list of tests cannot be read: {error}")]
    outcomes = [_google_outcome(test, suite, own.output) for test in tests]
    if own.state == "failed" and all(outcome.state != "failed" for outcome in outcomes):
        outcomes.append(own)
    return outcomes


_SHARD = re.compile(r"\.shard\d+$")


def _google_outcome(case: ElementTree.Element, suite: str, printed: str) -> Outcome:
    test = f"{suite}::{case.get('classname')}.{case.get('name')}"
    seconds = float(case.get("time") or 0)
    if case.find("failure") is not None:
        return Outcome(test, "failed", output=printed, seconds=seconds)
    if case.get("result") == "skipped" or case.get("status") == "notrun":
        return Outcome(test, "skipped", seconds=seconds)
    return Outcome(test, "passed", seconds=seconds)


def _outcome(case: ElementTree.Element, suite: str) -> Outcome:
    if suite.startswith("ctest-"):
        test = f"{suite}::{case.get('name')}"
    else:
        test = f"{case.get('file') or case.get('classname')}::{case.get('name')}"
    seconds = float(case.get("time") or 0)
    printed = case.findtext("system-out") or ""
    for tag in ("failure", "error"):
        found = case.find(tag)
        if found is not None:
            output = _last_lines(printed + (found.text or ""))
            return Outcome(test, "failed", _first_line(found.get("message")), output, seconds)
    skipped = case.find("skipped")
    if skipped is not None or case.get("status") in ("notrun", "disabled"):
        return Outcome(
            test, "skipped", _first_line(skipped.get("message") if skipped is not None else "")
        )
    if case.get("status") == "fail":
        return Outcome(test, "failed", output=_last_lines(printed), seconds=seconds)
    return Outcome(test, "passed", seconds=seconds)


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _last_lines(text: str, count: int = 60) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-count:])


class AllowedSkips:
    """The expected skips, each with its reason."""

    def __init__(self, file: Path) -> None:
        self._patterns: list[tuple[str, re.Pattern[str]]] = []
        self._used: set[str] = set()
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.startswith("#"):
                continue
            pattern, separator, reason = line.partition(" : ")
            if not separator or not reason.strip():
                raise SystemExit(f"{file}:{number}: expected 'test id pattern : reason'")
            text = pattern.strip()
            self._patterns.append((text, re.compile(".*".join(map(re.escape, text.split("*"))))))

    def allow(self, test: str) -> bool:
        for text, pattern in self._patterns:
            if pattern.fullmatch(test):
                self._used.add(text)
                return True
        return False

    def unused(self) -> list[str]:
        return [text for text, _ in self._patterns if text not in self._used]


def print_times(outcomes: list[Outcome], count: int, stages: list[str]) -> None:
    """Prints the slowest tests, slowest first, and the stages in the order in which they ran."""
    slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:count]
    if slowest:
        print(f"the {len(slowest)} slowest tests:")
    for outcome in slowest:
        print(f"{outcome.seconds:8.1f} s  {outcome.test}")
    if stages:
        print("stages:")
    for stage in stages:
        name, _, seconds = stage.rpartition("=")
        print(f"{int(seconds):8d} s  {name}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Adds up the JUnit files of a test run.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("suites", nargs="*")
    parser.add_argument("--allowed-skips", type=Path, required=True)
    parser.add_argument("--failed-stage", action="append", default=[])
    parser.add_argument("--failed-suite", action="append", default=[])
    parser.add_argument("--stage", action="append", default=[], metavar="NAME=SECONDS")
    parser.add_argument("--slowest", type=int, default=20, metavar="COUNT")
    arguments = parser.parse_args()

    allowed = AllowedSkips(arguments.allowed_skips)
    passed = 0
    skipped = 0
    failure_outputs: list[str] = []
    everything: list[Outcome] = []
    failures = [f"stage failed: {stage}" for stage in arguments.failed_stage]
    for suite in arguments.suites:
        outcomes = read_suite(arguments.folder / f"{suite}.xml", suite)
        everything += outcomes
        failures_before = len(failures)
        for outcome in outcomes:
            if outcome.state == "passed":
                passed += 1
            elif outcome.state == "failed":
                failures.append(f"failed: {outcome.test} {outcome.message}".rstrip())
                if outcome.output:
                    failure_outputs.append(f"{outcome.test} printed:\n{outcome.output}")
            elif allowed.allow(outcome.test):
                skipped += 1
            else:
                failures.append(
                    f"skipped, not in {arguments.allowed_skips}: {outcome.test} {outcome.message}"
                )
        if suite in arguments.failed_suite and len(failures) == failures_before:
            failures.append(f"failed: {suite} ended with an error, though no test in it failed")
        suite_passed = sum(outcome.state == "passed" for outcome in outcomes)
        print(f"{suite}: {suite_passed} of {len(outcomes)} passed")
    print_times(everything, arguments.slowest, arguments.stage)
    for text in failure_outputs + failures:
        print(text)
    for pattern in allowed.unused():
        print(f"note: {arguments.allowed_skips} allows '{pattern}', which no skipped test matches")
    if skipped:
        print(f"{skipped} skipped as {arguments.allowed_skips} allows")
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
