"""Samples of unlike lengths, which a worker pads; the model takes named tensors."""

import torch
from counted import asked, count
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


class Model(torch.nn.Module):
    """The mean of embedded words, as a score."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(100, 8)
        self.score = torch.nn.Linear(8, 1)

    def forward(self, words, lengths):
        """Return the scores of sentences, shape (n,)."""
        summed = self.words(words).sum(dim=1)
        return self.score(summed / lengths[:, None]).squeeze(1)


def padded(sentences):
    """Return sentences as a batch of named tensors."""
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    return {"words": pad_sequence(sentences, batch_first=True), "lengths": lengths}


options = asked()
torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
lengths = torch.randint(3, 40, (1024,)).tolist()
data = [torch.randint(0, 100, (length,)) for length in lengths]
loader = DataLoader(
    data, batch_size=options.batch_size, collate_fn=padded, num_workers=1
)
for batch in loader:
    optimizer.zero_grad()
    model(**batch).pow(2).mean().backward()
    optimizer.step()
    if not count(len(batch["lengths"])):
        break
