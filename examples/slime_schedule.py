"""slime's `build_dp_schedule`, balanced by evenstep: each rank's micro-batches have equal cost.

Put it in place of the function in ``slime.utils.dp_schedule``. It has the signature of slime's
commit 04e6743, and refuses a sequence over the limit, which slime runs alone.
"""

import numpy as np

from evenstep.rebalance import plan_rebalance


def build_dp_schedule(
    args, train_parallel_config, total_lengths, *, global_batch_size, rollout_indices, **_
):
    ranks, config = train_parallel_config["dp_size"], train_parallel_config
    group = config["microbatch_group_size_per_vp_stage"] if config["vpp_size"] > 1 else 1
    rollouts = {name: number for number, name in enumerate(dict.fromkeys(rollout_indices))}
    steps = len(rollouts) // global_batch_size
    step_of = np.array([rollouts[name] // global_batch_size for name in rollout_indices])
    partitions, micro_batches = ([[] for _ in range(ranks)] for _ in range(2))
    counts = []
    for step in range(steps):
        samples = np.flatnonzero(step_of == step)
        plan = plan_rebalance(
            np.asarray(total_lengths)[samples],
            ranks=ranks,
            max_tokens=args.max_tokens_per_gpu * config["cp_size"],
            multiple_of=group,
        )
        for rank in range(ranks):
            for members in plan.of_rank(rank):
                first = len(partitions[rank])
                partitions[rank] += samples[members].tolist()
                micro_batches[rank].append(list(range(first, len(partitions[rank]))))
        counts.append(plan.micro_batches)
    return partitions, micro_batches, counts, [global_batch_size] * steps
