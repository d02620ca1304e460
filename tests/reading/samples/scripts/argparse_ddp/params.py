import argparse


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", type=int, default=8)
    parser.add_argument("--test-batch-size", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--log-interval", type=int, default=1)
    parser.add_argument("--save-dir", default="checkpoints")
    return parser.parse_args()
