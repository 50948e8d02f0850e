"""What a move of a tensor does, by the table that the C++ and the C interface have too."""

from __future__ import annotations

import ast
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path

from tests.pytorch.conftest import MOVES_PRELUDE, ROOT, Checked

HOST = -1

PRELUDE = MOVES_PRELUDE


@dataclass
class Row:
    """One row of tests/support/moves.def, which says what the fields mean."""

    kind: str
    recorded: list[int]
    moves: list[list[int]]
    waits: str
    waits_if_not_blocking: str
    hints: str
    uses: list[int]
    size: str = "4 MiB"

    def places(self) -> list[int]:
        return [0 if self.kind == "Device" else HOST, *(to for to, _ in self.moves)]

    def is_of_torch(self) -> bool:
        """torch copies small tensors, moves nothing to where it is, and records uses on devices."""
        places = self.places()
        moves_each_time = all(a != b for a, b in itertools.pairwise(places))
        can_record = self.kind == "Device" or not self.recorded
        return self.size == "4 MiB" and moves_each_time and can_record

    def waited_for(self, is_blocking: bool) -> list[int]:
        """Returns the streams that the host waits for. As torch promises, that is also the one
        that reads host memory, if the move is blocking."""
        waits = self.waits
        if not is_blocking and self.waits_if_not_blocking != "Same":
            waits = self.waits_if_not_blocking
        streams = {int(stream) for stream in re.findall(r"host<(\d+)", waits)}
        if is_blocking and self.places()[-2] == HOST:
            streams.add(self.moves[-1][1])
        return sorted(streams)


def rows() -> list[Row]:
    text = (ROOT / "tests" / "support" / "moves.def").read_text()
    text = re.sub(r"//.*", "", text).replace("{", "[").replace("}", "]")
    text = re.sub(r"\bkBack\b", str(HOST), text)
    text = re.sub(r"\bk([A-Z]\w*)", r'"\1"', text)
    found = [Row(*ast.literal_eval(f"[{row}]")) for row in re.findall(r"UVM_MOVE\((.*)\)", text)]
    return [row for row in found if row.is_of_torch()]


# Before the last move, each stream of the row gets a kernel: a short one if the host should wait
# for the stream, or else a long one. The streams for which the host has waited are idle after the
# move. Tensors stay, so that each row has a block without a history.
PROGRAM = """
import sys

def use(stream):
    torch.cuda.set_device(stream.device)
    torch.cuda.set_stream(stream)

def made(kind):
    if kind == 'Device':
        use(streams[1])
        return torch.ones(1 << 20, device='cuda:0')
    return torch.ones(1 << 20, pin_memory=kind == 'Pinned')

kept = []
for kind, recorded, moves, *waited in json.load(open(sys.argv[1])):
    for is_blocking in (True, False):
        named = {1, *recorded, *(stream for _, stream in moves)}
        streams = {n: torch.cuda.Stream(device=n // 10) for n in named}
        tensors = [made(kind)]
        kept.append(tensors)
        for n in recorded:
            tensors[0].record_stream(streams[n])
        for number, (to, n) in enumerate(moves):
            use(streams[n])
            if number == len(moves) - 1:
                for each, stream in streams.items():
                    with torch.cuda.stream(stream):
                        is_short = each in waited[not is_blocking]
                        torch.cuda._sleep(10_000_000 if is_short else 100_000_000)
                before = report()
            to = 'cpu' if to < 0 else f'cuda:{to}'
            tensors.append(tensors[-1].to(to, non_blocking=not is_blocking))
        idle = sorted(n for n in named if streams[n].query())
        after = report()
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        assert all(each.sum().item() == 1 << 20 for each in tensors)
        gained = lambda *keys: [after[key]['sent'] - before[key]['sent'] for key in keys]
        moved = {key: after['moves'][key] - before['moves'][key] for key in after['moves']}
        print(json.dumps([idle, *gained('prefetches', 'advice'), moved]))
"""


def test_a_move_does_what_the_table_says(checked: Checked, tmp_path: Path) -> None:
    table = rows()
    assert len(table) >= 14
    asked = tmp_path / "rows.json"
    asked.write_text(
        json.dumps(
            [
                [row.kind, row.recorded, row.moves, row.waited_for(True), row.waited_for(False)]
                for row in table
            ]
        )
    )
    run = checked(PROGRAM, str(asked), devices=2)
    assert run.report["copies_by_moves"]["count"] == 0
    assert run.sim["copy_bytes"] < 4 << 20, "more than the results of sums"
    seen = iter(run.stdout.splitlines())
    for row in table:
        way = "_to_".join("host" if place == HOST else "device" for place in row.places()[-2:])
        for is_blocking in (True, False):
            idle, prefetches, advice, moved = json.loads(next(seen))
            said = f"{row}, {'blocking' if is_blocking else 'not blocking'}"
            assert idle == row.waited_for(is_blocking), said
            assert prefetches == row.hints.count("fetch"), said
            assert advice == row.hints.count("prefer") + row.hints.count("map"), said
            counted = {key: count for key, count in moved.items() if count}
            assert counted == {"total": 1, way: 1, "bytes": 4 << 20}, said
    assert next(seen, None) is None
