"""What torchrun starts on each host, maybe before the service, and again after a failure.

Put your model in the place of `Sequential`. A file has the model and the step that comes next. The
service resumes at that step, too: it keeps the state that `common_state` asked for last.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import evenstep.service as es

VOCABULARY = 65_536
SAVE_EVERY = int(os.environ.get("SAVE_EVERY", "50"))  # fewer than ServiceMemory.plans_kept

dist.init_process_group()
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 64), torch.nn.Linear(64, VOCABULARY))
file, first = Path(os.environ["RUN_FOLDER"]) / "model.pt", None
if file.exists():
    saved = torch.load(file, map_location="cpu")
    first = saved["step"]
    model.load_state_dict(saved["model"])
replica = DistributedDataParallel(model.to(device))
optimizer = torch.optim.SGD(replica.parameters(), lr=0.1)

patience = float(os.environ["PATIENCE"])  # seconds; nodes of a cluster may take that long to come
with es.Client("auto", os.environ["JOB_NAME"], step=first, patience=patience) as client:
    for micro_batches, step in client:
        for batch, scale in zip(micro_batches, step.loss_scales):
            logits = replica(batch["input_ids"].to(device))
            loss = cross_entropy(logits[0, :-1], batch["labels"][0, 1:].to(device))
            (loss * scale).backward()
        optimizer.step()
        optimizer.zero_grad()
        if client.step % SAVE_EVERY == 0:
            client.common_state()  # every rank waits here for the others
            if dist.get_rank() == 0:
                new = file.with_suffix(".new")
                torch.save({"step": client.step, "model": model.state_dict()}, new)
                new.rename(file)
dist.destroy_process_group()
