"""What batches of a policy are worth: the held-out loss of equal samples and updates.

heldout_loss  the benchmark: policies against random batches, over seeds, on the user's own text
text          a text column as tokens: training samples, held-out samples
plans         the steps of a policy, as the loader would make them; their composition
train         one training run on the CPU, and how far a step's gradient is from that of all samples
summary       paired differences over seeds; the table and the JSON object
"""
