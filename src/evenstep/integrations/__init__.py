"""evenstep in existing trainers: one module for each, on its public hooks.

```
transformers/    Hugging Face Trainer and what inherits from it
accelerate       custom loops with Accelerate
lightning/       Lightning's Trainer and Fabric
torchtitan       torchtitan's data loader
megatron         Megatron-LM's data iterator
verl             verl's updates of actor and critic

releases         whether a trainer is there, with the hooks that an integration needs
rank_values      small values between ranks; a loader's state in a trainer's checkpoint
job_facts        what a job tells a loader: the model whose time is made equal, and when ranks wait;
                 how many steps an epoch will have, before the first one; `StepValues`, which is
                 logged beside the loss
handed_steps     scales the losses of custom loops, and stops loops that train wrongly; batches that
                 bear no loss
update_stream    micro-batches for trainers that know no epochs
```

Importing a module imports its trainer; ``import evenstep`` imports none.
"""
