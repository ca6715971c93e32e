import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1)
options = parser.parse_args()

set_seed(3)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(options.steps):
    loss = model(torch.ones(2, 3)).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(f"step {step}: loss {loss.item():.4f}")
accelerator.save_state("state")
print(f"{accelerator.num_processes} process on {accelerator.device}")
