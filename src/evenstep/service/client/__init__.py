"""The client in each trainer process.

rank_client.py    `RankClient`: steps, requested ahead
service_step.py   `ServiceStep`: what comes with the micro-batches
remote_client.py  `RemoteClient`: a `RankClient` of a service in other processes, which it watches
discovery.py      finds a running job, and the new processes of its roles, by the job's file
joining.py        `Client` for trainers' processes; `attach`
"""
