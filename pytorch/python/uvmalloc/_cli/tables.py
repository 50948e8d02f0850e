"""Tables that stay readable on a narrow console: each row becomes a short list there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table


def one_line(text: str, most: int) -> str:
    """Returns `text` in one line of at most `most` characters, without control characters."""
    line = " ".join(text.split())
    line = "".join(each if each.isprintable() else "?" for each in line)
    return line if len(line) <= most else line[: most - 3] + "..."


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers_from: int | None = None,
) -> None:
    """Prints `rows` below `columns`. Columns from `numbers_from` on are right-aligned.

    If the console is too narrow, prints each row as its first cell, with a line below it for each
    other cell that is not empty.
    """
    rows = [list(row) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        right = numbers_from is not None and number >= numbers_from
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    if Measurement.get(console, console.options, table).maximum < console.width:
        console.print(table)
        return
    width = max(len(column) for column in columns[1:])
    for row in rows:
        console.print(row[0], style="bold", soft_wrap=True)
        for column, cell in zip(columns[1:], row[1:], strict=True):
            for line in cell.splitlines():
                console.print(f"  {column:<{width}}  {line}", soft_wrap=True)
