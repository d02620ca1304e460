"""Pretrain a tiny GPT-2 on made-up text with the Trainer of Hugging Face.

torchrun --nproc-per-node 2 train.py --output_dir out --max_steps 200
"""

import torch
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

VOCABULARY, SEQUENCE = 128, 64


class Counting(Dataset):
    """Sentences that count up from a random word in random strides."""

    def __init__(self, sentences, seed):
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(VOCABULARY, (sentences, 1), generator=generator)
        stride = torch.randint(1, 4, (sentences, 1), generator=generator)
        self.words = (start + stride * torch.arange(SEQUENCE)) % VOCABULARY

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.words[index]}


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    set_seed(args.seed)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=SEQUENCE, n_embd=64, n_layer=2, n_head=4
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=args,
        train_dataset=Counting(4096, seed=0),
        eval_dataset=Counting(256, seed=1),
    )
    result = trainer.train()
    trainer.save_metrics("train", result.metrics)


if __name__ == "__main__":
    main()
