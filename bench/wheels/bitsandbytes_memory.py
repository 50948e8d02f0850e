"""bitsandbytes: paged tensors, which its optimizers keep in managed memory."""

import torch
from bitsandbytes import functional

numbers = torch.arange(100_000, dtype=torch.float32)
paged = functional.get_paged(numbers.numel(), dtype=torch.float32)
paged.copy_(numbers)
functional.prefetch_tensor(paged)
torch.cuda.synchronize()
on_device = paged.to("cuda")
assert torch.equal(paged, numbers)
assert torch.equal(on_device.cpu(), numbers)
print("right")
