"""What torchrun has made of this program: how many take part in one training."""

import os
import time

time.sleep(3)
print("WORLD_SIZE", os.environ["WORLD_SIZE"], "rank", os.environ["RANK"], flush=True)
