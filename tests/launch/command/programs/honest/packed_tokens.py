"""Samples of different lengths are packed in one long row of tokens."""

import torch
from counted import asked, count
from torch.utils.data import DataLoader

options = asked()
torch.manual_seed(0)
texts = [torch.randint(0, 50, (5 + number % 20,)) for number in range(2000)]
model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(
    texts, batch_size=options.batch_size, shuffle=True, collate_fn=torch.cat
)
for tokens in loader:
    optimizer.zero_grad()
    logits = model(tokens[:-1])
    torch.nn.functional.cross_entropy(logits, tokens[1:]).backward()
    optimizer.step()
    if not count(options.batch_size):
        break
