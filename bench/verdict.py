"""The targets of a benchmark, and whether they are met."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class Target:
    """One line of a verdict. `met` is None if nothing was measured."""

    name: str
    case: str
    value: float | None
    bound: float
    at_most: bool

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.bound if self.at_most else self.value >= self.bound


def number(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.4g}"  # enough digits to show that 1.0346 exceeds 1.03
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def verdict_table(verdict: list[Target]) -> Table:
    table = Table(title="Targets")
    for column in ("target", "case", "value", "bound", ""):
        table.add_column(column)
    for target in verdict:
        bound = f"{'<=' if target.at_most else '>='} {target.bound:g}"
        word = {True: "met", False: "[red]missed[/red]", None: "not measured"}[target.met]
        table.add_row(target.name, target.case, number(target.value), bound, word)
    return table
