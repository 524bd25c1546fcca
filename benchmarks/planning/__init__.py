"""What plans cost and how even they are, from lengths alone.

overhead      seconds that a policy takes to plan, beside the released ODB package
scale         the exchange of messages with the number of ranks
rebalance     updates of rollouts, compared with a plain split and with verl's
vision        vision-language samples: whether each part of the cost is even
image_cells   tokens and patches of images; images drawn for samples
single_images images dealt one by one to a service's encoders, and with their samples
plan_digests  digests of all policies' plans, to compare before and after a change
"""
