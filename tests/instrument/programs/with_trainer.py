"""Trains with Hugging Face's Trainer (accelerate), with evaluation; prints its global step."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch

# By name, so that the type checker does not read all of it.
transformers: Any = importlib.import_module("transformers")


class Numbers(torch.utils.data.Dataset):  # type: ignore[misc]
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        row = (torch.arange(6) + index) % 16
        return {"input_ids": row, "labels": row}


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=16,
            n_positions=8,
            n_embd=8,
            n_layer=1,
            n_head=1,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    epochs, rows = 2, 24
    arguments = transformers.TrainingArguments(
        output_dir=sys.argv[1],
        num_train_epochs=epochs,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=Numbers(rows), eval_dataset=Numbers(6)
    )
    result = trainer.train()
    print("\n" + json.dumps({"steps": result.global_step, "samples": epochs * rows}))


if __name__ == "__main__":
    main()
