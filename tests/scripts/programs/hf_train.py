import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.utils import logging

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="out")
parser.add_argument("--max_steps", type=int, default=1)
options = parser.parse_args()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        row = (torch.arange(6) + index) % 16
        return {"input_ids": row, "labels": row}


logging.disable_progress_bar()
set_seed(11)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0
    )
)
arguments = TrainingArguments(
    output_dir=options.output_dir,
    max_steps=options.max_steps,
    per_device_train_batch_size=2,
    save_steps=options.max_steps,
    logging_steps=1,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
result = Trainer(model=model, args=arguments, train_dataset=Numbers()).train()
print(f"{result.global_step} steps, loss {result.training_loss:.4f}")
