"""What starts the roles of a job, and ends them.

local.py           `LocalService`: all roles in one thread
running_job.py     what can be asked about a running job, by its owner and by others
steering.py        `Steering`: the mixture of a running job is changed by hand
changing_job.py    `ChangingJob`: loaders and the mesh change while it runs
scaling_thread.py  `ScalingThread`: changes the loaders as weights move
processes/         loaders are processes of this machine, all other roles threads
ray/               each role is an actor on a cluster
"""
