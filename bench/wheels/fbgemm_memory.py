"""fbgemm-gpu: its tensors in managed and in host-mapped memory, hints, and moves."""

import torch
from fbgemm_gpu.uvm import cudaMemAdvise, cudaMemoryAdvise, cudaMemPrefetchAsync

calls = torch.ops.fbgemm
numbers = torch.arange(100_000, dtype=torch.float32)
like = torch.empty(0, dtype=torch.float32, device="cuda")

managed = calls.new_managed_tensor(like, [numbers.numel()])
managed.copy_(numbers)
assert calls.is_uvm_tensor(managed)
on_cpu = calls.uvm_to_cpu(managed)
assert torch.equal(on_cpu, numbers)
assert torch.equal(calls.uvm_to_device(managed, like).cpu(), numbers)

cudaMemAdvise(managed, cudaMemoryAdvise.cudaMemAdviseSetAccessedBy)
cudaMemPrefetchAsync(managed)
assert torch.equal(managed.cpu(), numbers)

for make in (calls.new_host_mapped_tensor, calls.new_vanilla_managed_tensor):
    tensor = make(like, [numbers.numel()])
    tensor.copy_(numbers)
    assert torch.equal(tensor.cpu(), numbers)
unified = calls.new_unified_tensor(like, [numbers.numel()], False)
unified.copy_(numbers)
assert torch.equal(unified.cpu(), numbers)
print("right")
