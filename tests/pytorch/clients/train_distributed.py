"""One rank of a data-parallel training on random data over gloo: DistributedDataParallel or FSDP2.

Start two with torchrun. Rank 0 prints the losses and the type of its parameters, as a line of
JSON."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(600, 900), torch.nn.ReLU(), torch.nn.Linear(900, 300)
    ).to("cuda")
    if sys.argv[1] == "ddp":
        parallel = DistributedDataParallel(model, device_ids=[rank])
    else:
        for layer in (model[0], model[2], model):
            parallel = fully_shard(layer)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(4):
        batch = torch.randn(16, 600, generator=generator).to("cuda")
        loss = parallel(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weight = model[0].weight
    if rank == 0:
        print(json.dumps({"losses": losses, "weight": type(weight).__name__}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
