"""The registry of a running job: clients find it first, and it watches all other roles.

registry.py      `JobRegistry`
role_watch.py    `RoleWatch` asks a role how it is, and notices that its process has died
role_status.py   the status of all roles; what happened to them, in a file
orders.py        what others want of the process that started the job
common_state.py  where the ranks of a trainer meet to save
pace.py          how far each rank may go ahead of the others
metrics.py       how long trainers waited, and for what
"""
