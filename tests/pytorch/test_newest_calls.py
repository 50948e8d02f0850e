"""Calls that only later versions of torch have. With an earlier torch, the programs say so."""

from __future__ import annotations

import re
from importlib import metadata

from tests.pytorch.conftest import ROOT, TORCH_MINOR, Checked, SimulatedRun

PRELUDE = """
import json, torch
def report():
    return json.loads(torch.ops.uvmalloc.report())
def needs(owner, name):
    if not hasattr(owner, name):
        print('absent')
        raise SystemExit
"""


def is_checked(run: SimulatedRun) -> bool:
    """Whether the program did not stop at needs(), although torch has everything."""
    return (run.stdout == "absent\n") == (TORCH_MINOR < 15)


def test_a_graph_of_the_accelerator_is_what_torch_makes_of_it(same_output: Checked) -> None:
    run = same_output("""
needs(torch.accelerator, 'Graph')
try:
    torch.accelerator.Graph()
except RuntimeError as error:
    print(error)
""")
    # A torch that can capture such a graph on CUDA needs a test of its memory here.
    assert is_checked(run) and run.stdout in {
        "absent\n",
        "Graph is not supported on device type: cuda\n",
    }


def test_the_host_cache_is_emptied_as_by_torch(same_output: Checked) -> None:
    """Torch 2.15.0 empties it by _host_emptyCache() only; its empty_host_cache() does nothing."""
    run = same_output("""
needs(torch.accelerator, 'empty_host_cache')
def cached():
    stats = torch.cuda.host_memory_stats()
    return stats.get('allocated_bytes.current', 0) - stats.get('active_bytes.current', 0)
torch.accelerator.empty_host_cache()  # before anything is allocated
kept, freed = (torch.ones(8 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(2))
del freed
print(cached())
torch.accelerator.empty_host_cache()
print(cached(), kept.is_pinned(), kept[-1].item())
torch._C._host_emptyCache()
print(cached(), kept.is_pinned(), kept[-1].item())
""")
    assert is_checked(run)


def test_a_pool_without_a_capture_and_a_capture_in_a_pool(same_output: Checked) -> None:
    """Torch marks the begin and the end of a capture apart from those of a pool's use."""
    same_output("""
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    outside = torch.ones(1 << 20, device='cuda')
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, pool=pool.id):
    inside = outside * 2
later = [torch.zeros(1 << 20, device='cuda') for _ in range(3)]
with torch.cuda.use_mem_pool(pool):
    more = torch.ones(1 << 20, device='cuda')
outside.fill_(3)
graph.replay()
torch.cuda.synchronize()
print(inside.sum().item(), more.sum().item(), [x.sum().item() for x in later])
""")


WITH_EFFECT = {"per_process_memory_fraction", "throw_on_cudamalloc_oom"}


def listed_settings() -> set[str]:
    """Returns the settings in the first column of the page's table."""
    page = (ROOT / "docs" / "reference" / "differences.md").read_text()
    table = page.partition("## Allocator settings\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall("`([a-z0-9_]+)`", row)}


def test_the_page_has_every_allocator_setting() -> None:
    """Torch's headers declare one function for most settings, and list the names of the others."""
    torch = metadata.distribution("torch")
    headers = [
        torch.locate_file(f"torch/include/c10/{header}").read_text()
        for header in ("core/AllocatorConfig.h", "cuda/CUDAAllocatorConfig.h")
    ]
    known = listed_settings() | WITH_EFFECT
    plain = {name.replace("_", "") for name in known}
    functions = set(re.findall(r"(?:size_t|double) parse([A-Z]\w+)\(", "".join(headers)))
    functions -= {"AllocatorConfig"}  # of `backend`
    assert len(functions) >= 11
    for function in functions:
        words = function.lower().removesuffix("size")
        assert any(name.startswith(words) for name in plain), function
    for header in headers:
        # A name may be in two parts, so that torch's translation to HIP leaves it alone.
        names = re.search(r"unordered_set<std::string> keys\{(.*?)\};", header, re.DOTALL)
        if names is not None:
            text = re.sub(r"//.*", "", names[1])
            joined = re.sub(r'"\s*"', "", text)
            assert set(re.findall('"([a-z0-9_]+)"', joined)) <= known


def test_torch_accepts_the_settings_of_the_page_and_uvmalloc_serves_as_without(
    checked: Checked,
) -> None:
    run = checked(
        """
import sys
def figures():
    kept = [torch.ones(n, device='cuda') for n in (3, 1 << 20, 5 << 20)]
    kept += [torch.ones(n, pin_memory=True) for n in (3, 1 << 20, 5 << 20)]
    del kept[1::2]
    facades = report()['facades']
    return (torch.cuda.memory_allocated(), torch.cuda.memory_reserved(),
            [facades[kind]['live_bytes'] for kind in ('device', 'pinned')])
before = figures()
unknown = []
for name in sys.argv[1:]:
    for value in ('True', '1', '64', '0.5'):
        try:
            torch._C._accelerator_setAllocatorSettings(f'{name}:{value}')
        except Exception as error:
            if 'Unrecognized key' in str(error):
                unknown.append(name)
                break
assert figures() == before, (before, figures())
print(*sorted(unknown))
""",
        *sorted(listed_settings()),
    )
    newest = {"expandable_segments_reserve", "expandable_segments_reserve_by_class"}
    newest |= {"pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"}
    newest |= {"pinned_free_catch_all"}
    unknown = set(run.stdout.split())
    assert unknown <= newest and (unknown == set() or TORCH_MINOR < 15)
