import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
total = torch.tensor([float(rank + 1)])
dist.all_reduce(total)
if rank == 0:
    print(f"the sum over {world} ranks is {total.item():g}", flush=True)
    torch.save({"total": total}, "total.pt")
dist.barrier()
with open(f"rank{rank}.txt", "w") as file:
    file.write(f"local rank {os.environ['LOCAL_RANK']}\n")
dist.destroy_process_group()
