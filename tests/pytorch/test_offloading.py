"""accelerate's offload hooks as groups (uvmalloc.offload_hooks)."""

from __future__ import annotations

import pytest

from tests.pytorch.conftest import Checked

PRELUDE = """
import torch, uvmalloc
from accelerate import cpu_offload_with_hook
torch.manual_seed(0)
models = [torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]) for _ in range(2)]
uvmalloc.offload_hooks()
uvmalloc.offload_hooks()
first, of_first = cpu_offload_with_hook(models[0], 'cuda:0')
second, of_second = cpu_offload_with_hook(models[1], 'cuda:0', prev_module_hook=of_first)
x = torch.randn(4, 1024)
def forward():
    with torch.no_grad():
        return second(first(x)).sum().item()
"""


def test_offloaded_modules_compute_what_they_did_with_stock_torch(same_output: Checked) -> None:
    same_output("""
for _ in range(3):
    print(forward())
    of_second.offload()
with torch.no_grad():
    first[0].weight.mul_(2)  # while it sleeps
print(forward())
of_first.remove()
first.to('cpu')
print(first[0].weight.sum().item(), first[0].weight.device)
""")


def test_weights_that_are_only_read_leave_without_a_copy(checked: Checked) -> None:
    checked("""
from bench.simulated_counters import load_simulator, read_machine
simulator = load_simulator()
def link():
    torch.cuda.synchronize()
    machine = read_machine(simulator)
    return [machine[name] >> 20 for name in
            ('copy_bytes', 'migrated_bytes_to_device', 'migrated_bytes_to_host')]
forward()
of_second.offload()
addresses = [each.data_ptr() for each in first.parameters()]
before = link()
forward()
of_second.offload()
assert [b - a for a, b in zip(before, link())] == [0, 32, 0]
assert addresses == [each.data_ptr() for each in first.parameters()]
figures = uvmalloc.groups()['Sequential-1']
assert (figures.state, figures.device_bytes) == ('asleep', 0)
""")


def test_pipelines_of_diffusers_keep_their_hooks_between_calls(checked: Checked) -> None:
    checked("""
import types
from uvmalloc.offloading import _keep_hooks_of_pipelines

class Pipeline:  # as the one of diffusers
    def maybe_free_model_hooks(self):
        if self._all_hooks:
            self.enable_model_cpu_offload(device='cuda:0')
    def enable_model_cpu_offload(self, device):
        self.enabled = device

_keep_hooks_of_pipelines(types.SimpleNamespace(DiffusionPipeline=Pipeline))
pipeline = Pipeline()
pipeline._all_hooks = [of_first, of_second]
first(x)
pipeline.maybe_free_model_hooks()
assert uvmalloc.groups()['Sequential-1'].device_bytes == 0
assert vars(pipeline) == {'_all_hooks': [of_first, of_second]}
on_cpu, other = cpu_offload_with_hook(torch.nn.Linear(4, 4), 'cpu')
pipeline._all_hooks.append(other)
pipeline.maybe_free_model_hooks()
assert pipeline.enabled == 'cuda:0'
""")


@pytest.mark.parametrize("device", ["'cpu'", "torch.device('cpu')"])
def test_hooks_of_the_cpu_work_as_before(checked: Checked, device: str) -> None:
    checked(f"""
model, hook = cpu_offload_with_hook(torch.nn.Linear(4, 4), {device})
model(torch.ones(4))
hook.offload()
assert set(uvmalloc.groups()) == {{'Sequential-1', 'Sequential-2'}}
""")
