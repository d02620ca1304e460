"""Train a small classifier with Lightning.

python train.py --devices 2 --batch-size 64
"""

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(L.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.model = nn.Sequential(
            nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.Linear(1024, 10)
        )

    def training_step(self, batch, batch_idx):
        features, labels = batch
        loss = nn.functional.cross_entropy(self.model(features), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def make_dataset():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(8192, 256, generator=generator)
    labels = (features @ torch.randn(256, 10, generator=generator)).argmax(dim=1)
    return TensorDataset(features, labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64, help="per device")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--num-nodes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    L.seed_everything(args.seed)
    trainer = L.Trainer(
        devices=args.devices,
        num_nodes=args.num_nodes,
        accumulate_grad_batches=args.accumulate,
        max_epochs=1000,
        callbacks=[TQDMProgressBar()],
        logger=False,
        enable_checkpointing=False,
    )
    loader = DataLoader(make_dataset(), args.batch_size, shuffle=True, drop_last=True)
    trainer.fit(Classifier(args.lr), loader)


if __name__ == "__main__":
    main()
