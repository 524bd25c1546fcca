"""evenstep in other people's training loops: one module for each trainer, on its public hooks.

```
releases         which releases of a trainer an integration was tried with
states           a loader's state in a trainer's checkpoint: the parts of all ranks in one
step_estimate    how many steps an epoch will have, before the first one
fillers          batches that bear no loss
step_values      what is logged beside the loss
```

Importing a module imports its trainer; ``import evenstep`` imports none.
"""
