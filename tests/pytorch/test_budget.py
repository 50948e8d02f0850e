"""The budget of a running program (uvmalloc.set_budget), and the summary of its memory."""

from __future__ import annotations

import pytest

from tests.pytorch.conftest import REFUSED_PRELUDE, Checked

PRELUDE = """
import threading, torch, uvmalloc
MIB = 1 << 20
def fits(size_bytes, device='cuda', kept=None):
    try:
        x = torch.empty(size_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        return False
    if kept is not None:
        kept.append(x)
    return True
"""


def test_the_budget_of_the_process_is_lowered_raised_and_restored(checked: Checked) -> None:
    checked(
        """
kept = []
assert uvmalloc.set_budget('64MiB')
assert uvmalloc.stats()['budget_bytes'] == 64 * MIB
assert fits(40 * MIB, kept=kept) and not fits(32 * MIB)
assert not fits(32 * MIB, 'cuda:1'), 'it is that of all devices'
assert uvmalloc.set_budget(128 * MIB) and fits(32 * MIB)
assert uvmalloc.set_budget(0.25)
assert uvmalloc.stats()['budget_bytes'] == 64 * MIB
assert uvmalloc.set_budget(None)
assert uvmalloc.stats()['budget_bytes'] == 256 * MIB
assert fits(200 * MIB) and not fits(260 * MIB)
""",
        devices=2,
        budget="256MiB",
    )


def test_below_what_is_in_use_nothing_is_freed_and_cached_memory_serves(checked: Checked) -> None:
    checked("""
kept = [torch.full((48 * MIB,), 7, dtype=torch.uint8, device='cuda')]
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    cached = torch.empty(8 * MIB, dtype=torch.uint8, device='cuda')
    address = cached.data_ptr()
    del cached
uvmalloc.set_budget('16MiB')
assert kept[0][-3:].tolist() == [7] * 3
with torch.cuda.stream(side):
    again = torch.empty(8 * MIB, dtype=torch.uint8, device='cuda')
assert again.data_ptr() == address
assert not fits(4 * MIB)
try:
    torch.empty(4 * MIB, dtype=torch.uint8, device='cuda')
except torch.OutOfMemoryError as error:
    assert 'budget of 16 MiB' in str(error), error
    assert 'raise the budget that the program has set' in str(error), error
kept.clear()
del again
torch.cuda.empty_cache()
assert fits(8 * MIB)
""")


def test_the_budget_of_a_device_is_its_own_and_yields_to_the_smaller_fraction(
    checked: Checked,
) -> None:
    checked(
        """
assert uvmalloc.set_budget('32MiB', 'cuda:1')
assert not fits(40 * MIB, 'cuda:1') and fits(40 * MIB, 'cuda:0') and fits(40 * MIB, 'cpu')
torch.cuda.set_per_process_memory_fraction(0.125, 1)
assert fits(16 * MIB, 'cuda:1')
torch.cuda.empty_cache()
assert not fits(40 * MIB, 'cuda:1')
uvmalloc.set_budget(None, 1)
assert torch.cuda.get_per_process_memory_fraction(1) == 0.125
assert fits(30 * MIB, 'cuda:1') and not fits(40 * MIB, 'cuda:1'), 'the fraction stays'
torch.cuda.set_per_process_memory_fraction(1.0, 1)
assert fits(40 * MIB, 'cuda:1')
torch.cuda.empty_cache()
uvmalloc.set_budget(0.5, torch.device('cuda', 1))
assert fits(120 * MIB, 'cuda:1') and not fits(140 * MIB, 'cuda:1')
""",
        devices=2,
        capacity="256MiB",
    )


def test_a_budget_at_the_start_is_what_none_restores(checked: Checked) -> None:
    checked(
        """
assert not fits(40 * MIB)
uvmalloc.set_budget('64MiB', 'cuda')
assert fits(40 * MIB)
torch.cuda.empty_cache()
uvmalloc.set_budget(None, 'cuda')
assert not fits(40 * MIB) and fits(30 * MIB)
""",
        environment={"UVMALLOC_DEVICE_BUDGET": "32MiB"},
    )


def test_threads_may_change_the_budget_at_any_time(checked: Checked) -> None:
    checked("""
torch.cuda.init()
ended = threading.Event()
failed = []
def work(number):
    stream = torch.cuda.Stream()
    try:
        with torch.cuda.stream(stream):
            while not ended.is_set():
                fits((number + 3) * MIB)
    except BaseException as error:
        failed.append(error)
threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for step in range(200):
    uvmalloc.set_budget('8MiB' if step % 2 else '64MiB')
    uvmalloc.set_budget('4MiB' if step % 3 else None, 'cuda')
    torch.cuda.set_per_process_memory_fraction(0.5 if step % 5 else 1.0)
ended.set()
for thread in threads:
    thread.join()
assert not failed, failed
uvmalloc.set_budget('64MiB')
uvmalloc.set_budget(None, 'cuda')
torch.cuda.set_per_process_memory_fraction(1.0)
torch.cuda.empty_cache()
assert fits(60 * MIB) and not fits(70 * MIB)
""")


def test_wrong_budgets_are_refused_and_change_nothing(checked: Checked) -> None:
    checked(
        REFUSED_PRELUDE
        + """
torch.cuda.init()
before = uvmalloc.stats()['budget_bytes']
sizes = 'accepted: a size'
for wrong in (0, -1, '1MiB', 2 * MIB - 1, 'much', '', 0.0, -0.5, 1.5, float('nan'), 1e-12):
    refused(ValueError, f'set_budget: the budget is {wrong!r}; {sizes}', uvmalloc.set_budget, wrong)
for wrong in (True, [1], b'1GiB'):
    refused(TypeError, f'set_budget: the budget is a {type(wrong).__name__}; {sizes}',
            uvmalloc.set_budget, wrong)
for wrong in ('cpu', 'cuda:5', 7, -1, 'gpu'):
    refused(ValueError, 'set_budget: ', uvmalloc.set_budget, '1GiB', wrong)
assert uvmalloc.stats()['budget_bytes'] == before
"""
    )


def test_a_program_without_uvmalloc_has_no_budget_and_no_summary(checked: Checked) -> None:
    checked(
        """
assert uvmalloc.set_budget('64MiB') is False and uvmalloc.set_budget(None, 'cuda') is False
assert uvmalloc.memory_summary() == 'uvmalloc is not switched on in this program\\n'
assert fits(80 * MIB)
""",
        native=True,
    )


# ---- the summary


@pytest.mark.parametrize("device", ["0", "1", "'cuda:1'", "torch.device('cuda')"])
def test_the_summary_has_the_figures_of_a_device_and_of_the_process(
    checked: Checked, device: str
) -> None:
    run = checked(
        f"""
x = torch.empty(40 * MIB, dtype=torch.uint8, device='cuda:0')
y = torch.empty(24 * MIB, dtype=torch.uint8, device='cuda:1')
del y
torch.empty(2 * MIB).pin_memory()
uvmalloc.set_budget('2GiB')
print(torch.device({device}).index or 0)
print(uvmalloc.memory_summary({device}), end='')
""",
        devices=2,
    )
    index, *lines = run.stdout.splitlines()
    assert {(len(line), line[0], line[-1]) for line in lines} == {(77, "|", "|")}
    assert f"| uvmalloc memory summary, device {index} (" in lines[1]
    rows = {}
    for line in lines:
        first, *cells = line.strip("|").split("|")
        if len(cells) == 4:
            rows[first.strip()] = [cell.strip() for cell in cells]
    assert rows["Memory"] == ["Live", "Peak", "Allocated", "Cached"]
    of_device = {"0": ["40 MiB", "40 MiB", "40 MiB", "0 B"], "1": ["0 B", "24 MiB", "24 MiB"]}
    assert rows[f"device {index}"][:3] == of_device[index][:3]
    assert rows["all device memory"][:3] == ["40 MiB", "64 MiB", "64 MiB"]
    assert rows["pinned host memory"][2] == "8 MiB"
    assert "budget of the process: 2 GiB" in lines[3]


def test_a_summary_of_no_device_is_refused(checked: Checked) -> None:
    checked(
        REFUSED_PRELUDE
        + """
for wrong in ('cpu', 4, 'cuda:9'):
    refused(ValueError, 'memory_summary: ', uvmalloc.memory_summary, wrong)
"""
    )
