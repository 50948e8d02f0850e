"""accelerate: places a checkpoint by device_map="auto", with room for all or a part of it, and
offloads it to the CPU as a whole. Prints each placement and a checksum of its results."""

from __future__ import annotations

import json
import tempfile

import torch
from accelerate import cpu_offload
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2048,
            hidden_size=512,
            intermediate_size=1024,
            num_hidden_layers=3,
            num_attention_heads=8,
            num_key_value_heads=4,
        )
    ).eval()
    prompt = torch.randint(0, 2048, (2, 8))
    found: dict[str, object] = {}

    def note(name: str, placed: LlamaForCausalLM) -> None:
        with torch.no_grad():
            logits = placed(prompt.to("cuda")).logits
        found[name] = {
            "logits": logits.double().sum().item(),
            "tokens": placed.generate(
                prompt.to("cuda"), max_new_tokens=6, do_sample=False, pad_token_id=0
            ).tolist(),
            "map": {k: str(v) for k, v in getattr(placed, "hf_device_map", {}).items()},
        }

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        note("all", LlamaForCausalLM.from_pretrained(folder, device_map="auto"))
        part = {0: "14MiB", "cpu": "1GiB"}
        note("part", LlamaForCausalLM.from_pretrained(folder, device_map="auto", max_memory=part))
        whole = LlamaForCausalLM.from_pretrained(folder)
        note("none", cpu_offload(whole, execution_device=torch.device("cuda")))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
