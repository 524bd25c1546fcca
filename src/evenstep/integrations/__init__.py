"""evenstep in other people's training loops: one module for each trainer, on its public hooks.

```
transformers/    Hugging Face Trainer and what inherits from it
accelerate       loops of one's own with Accelerate
lightning/       Lightning's Trainer and Fabric
torchtitan       torchtitan's data loader
megatron         Megatron-LM's data iterator

releases         which releases of a trainer an integration was tried with
rank_values      small values between ranks
states           a loader's state in a trainer's checkpoint: the parts of all ranks in one
step_estimate    how many steps an epoch will have, before the first one
fillers          batches that bear no loss
step_values      what is logged beside the loss
handed_steps     steps in a loop of one's own, whose losses are scaled, or it is stopped
update_stream    micro-batches for trainers that know no epochs
```

Importing a module imports its trainer; ``import evenstep`` imports none.
"""
