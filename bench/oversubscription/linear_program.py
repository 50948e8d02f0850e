"""A linear program, built row by row."""

from __future__ import annotations

from collections.abc import Sequence

from scipy.optimize import linprog
from scipy.sparse import csr_matrix


class LinearProgram:
    """Minimizes the cost of non-negative variables, with rows of `values * variables <= limit`."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self._limits: list[float] = []

    def variable(self, cost: float = 0.0) -> int:
        self._costs.append(cost)
        return len(self._costs) - 1

    def at_most(self, entries: Sequence[tuple[int, float]], limit: float) -> None:
        for column, value in entries:
            self._rows.append(len(self._limits))
            self._columns.append(column)
            self._values.append(value)
        self._limits.append(limit)

    def least(self, name: str, largest: float | None = None) -> float:
        """Returns the minimum. Raises RuntimeError, with `name`, if there is no minimum. `largest`
        bounds each variable.
        """
        if not self._limits:
            return 0.0
        shape = (len(self._limits), len(self._costs))
        matrix = csr_matrix((self._values, (self._rows, self._columns)), shape=shape)
        solved = linprog(
            self._costs, A_ub=matrix, b_ub=self._limits, bounds=(0, largest), method="highs"
        )
        if not solved.success:
            raise RuntimeError(f"no bound {name}: {solved.message}")
        return float(solved.fun)
