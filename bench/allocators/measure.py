"""Measures all questions on all allocators, in turns, and takes medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bench.allocators.engines import NAMES, Program
from bench.allocators.plan import Question
from bench.allocators.server import Figures, RequestError, Server

Samples = dict[str, dict[str, dict[str, list[float]]]]
Results = dict[str, dict[str, dict[str, float | None]]]  # key -> allocator -> case -> value


@dataclass(frozen=True)
class Absent:
    """A missing value."""

    key: str
    allocator: str
    case: str
    reason: str


@dataclass
class Measured:
    """The measurements of a whole run."""

    versions: dict[str, str] = field(default_factory=dict)
    not_started: dict[str, str] = field(default_factory=dict)  # allocator -> reason
    samples: Samples = field(default_factory=dict)
    absent: list[Absent] = field(default_factory=list)

    def results(self) -> Results:
        """Returns medians; None for absent values."""
        values: Results = {
            key: {
                allocator: {case: statistics.median(taken) for case, taken in cases.items()}
                for allocator, cases in sorted(allocators.items(), key=_place)
            }
            for key, allocators in self.samples.items()
        }
        for gap in self.absent:
            values.setdefault(gap.key, {}).setdefault(gap.allocator, {}).setdefault(gap.case, None)
        return values

    def gaps(self) -> list[Absent]:
        """Returns the values that no round has measured."""
        values = self.results()
        return [gap for gap in self.absent if values[gap.key][gap.allocator][gap.case] is None]

    def add(self, question: Question, allocator: str, answer: Figures | RequestError) -> None:
        for figure in question.figures:
            if isinstance(answer, RequestError):
                gap = Absent(figure.key, allocator, figure.case, str(answer))
                if gap not in self.absent:
                    self.absent.append(gap)
                continue
            cases = self.samples.setdefault(figure.key, {}).setdefault(allocator, {})
            cases.setdefault(figure.case, []).append(float(answer[figure.field]))


def measure(
    programs: Mapping[str, Program],
    questions: Sequence[Question],
    rounds: int,
    progress: Callable[[int, int], None],
) -> Measured:
    """Puts each question to all allocators before the next question.

    In this order, other load on the machine disturbs all allocators alike. Each question, and each
    round, begins with a different allocator.
    """
    measured = Measured()
    with ExitStack() as open_servers:
        servers = {
            name: open_servers.enter_context(Server(program)) for name, program in programs.items()
        }
        for name, server in list(servers.items()):
            try:
                measured.versions[name] = str(server.ask("about", 60)["version"])
            except RequestError as failure:
                measured.not_started[name] = str(failure)
                del servers[name]
        for number in range(rounds):
            for index, question in enumerate(questions):
                progress(number * len(questions) + index, rounds * len(questions))
                if question.once and number > 0:
                    continue
                for name in (name for name in question.left_out if name in servers):
                    measured.add(question, name, RequestError(question.left_out[name]))
                names = _in_turn(question, list(servers), number + index)
                for name in names:
                    server = servers[name]
                    measured.add(question, name, _answer(question, server, programs[name]))
    return measured


def _place(entry: tuple[str, object]) -> int:
    return NAMES.index(entry[0])


def _in_turn(question: Question, present: list[str], turn: int) -> list[str]:
    names = [name for name in present if name in question.allocators]
    first = turn % len(names) if names else 0
    return names[first:] + names[:first]


def _answer(question: Question, server: Server, program: Program) -> Figures | RequestError:
    try:
        if not question.alone:
            return server.ask(question.request, question.timeout_seconds)
        with Server(program, question.environment) as own:
            return own.ask(question.request, question.timeout_seconds)
    except RequestError as failure:
        return failure
