"""transformers: Trainer on random tokens, then greedy generation with its growing cache.

Prints losses, tokens and whether generation with sampling repeats, as one line of JSON."""

from __future__ import annotations

import argparse
import json
import tempfile

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

VOCABULARY = 1024


def make(name: str) -> PreTrainedModel:
    if name == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=64,
                n_embd=384,
                n_layer=2,
                n_head=4,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=384,
            intermediate_size=768,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=["gpt2", "llama"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--workers", type=int, default=0, help="of the data loader")
    options = parser.parse_args()
    set_seed(7)
    model = make(options.model)
    tokens = torch.randint(0, VOCABULARY, (64, 32))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=8,
                max_steps=options.steps,
                logging_steps=1,
                save_strategy="steps",
                save_steps=options.steps,
                dataloader_num_workers=options.workers,
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
        )
        trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    model.eval()
    prompt = tokens[:2, :8].to(model.device)
    greedy = model.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=0)
    sampled = []
    for _ in range(2):
        torch.manual_seed(3)
        sampled.append(model.generate(prompt, max_new_tokens=8, do_sample=True, pad_token_id=0))
    print(
        json.dumps(
            {
                "losses": losses,
                "greedy": greedy.tolist(),
                "sampled": sampled[0].tolist(),
                "sampling_repeats": torch.equal(*sampled),
            }
        )
    )


if __name__ == "__main__":
    main()
