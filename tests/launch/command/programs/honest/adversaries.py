"""Two networks: the first learns from each batch, the second after each fifth."""

import torch
from counted import asked, count, model_and_data
from torch.utils.data import DataLoader

options = asked()
critic, optimizer, data = model_and_data()
generator = torch.nn.Linear(4, 8)
other_optimizer = torch.optim.Adam(generator.parameters())
loader = DataLoader(data, batch_size=options.batch_size, shuffle=True)
for at, (x, _) in enumerate(loader, start=1):
    optimizer.zero_grad()
    made = generator(torch.randn(len(x), 4))
    (critic(x).mean() - critic(made.detach()).mean()).backward()
    optimizer.step()
    if at % 5 == 0:
        other_optimizer.zero_grad()
        critic(made).mean().backward()
        other_optimizer.step()
    if not count(len(x)):
        break
