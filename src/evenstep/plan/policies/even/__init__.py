"""`Even`, the default policy: equal cost on every rank in every step.

```
even                  the options
padded_round          the round of padded groups: the oldest runs of all ranks are the targets
sorted_window         the samples of a window by length; the limits of a group
padded_runs           padded groups that cost their target
last_runs             all that is left at the end, in padded groups: each meets a step's target
padded_end            the same, cut evenly: for a single rank, and for costs of two parts
padded_updates        the round of padded groups where ranks wait at the end of an update alone
update_parts          the updates of such a round, and what the groups of each cost together
timed                 samples as long as the time they take
packed_round          the round of packed groups
packed_anchors        what packed groups should count, and the samples they are made around
fill_packed           packed groups that are full
drain_packed          all that is left at the end, in packed groups
```

With a cost of two parts, language and vision:

```
two_part_round        the round of padded groups: targets of both parts
two_part_runs         padded groups that cost their target in both
fill_two_parts        packed groups that are full and cost their target for the vision tower
exchanges             two samples exchanged, for either form
```
"""

from evenstep.plan.policies.even.even import Even

__all__ = ["Even"]
