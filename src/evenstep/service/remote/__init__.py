"""Roles in processes of their own, whatever starts these: Ray, or the process that starts the job.

In the process of a role:

    role_host.py      `RoleHost` hands messages to the role, counts them, and listens for them
    role_threads.py   threads that handle its messages, and others
    role_makers.py    makes roles, in their own processes
    wait_timer.py     how long each message waited for other roles
    open_requests.py  what a process works on, and what it waits for
    process_memory.py its memory, and that of its workers

The registry:

    job_info.py       `JobInfo`: who plays which role
    standing.py       `Standing`: that, and what processes must know that are begun anew
    registry.py       `JobRegistry`, which clients find by name
    watched_roles.py  `WatchedRoles`: the other roles, all of which it watches
    role_statuses.py  `RoleStatuses`: what they say of themselves, for the status
    role_watch.py     `RoleWatch`, which has a dead process followed by another
    role_inquiry.py   asks a role how it is, and does not wait for ever
    role_limits.py    what roles may not break, and `LimitWatch`, which kills those that do
    event_log.py      `EventLog`: what happened to roles, in a file
    waits.py          who waits for whom, out of what all roles say
    common_state.py   where the ranks of a trainer meet to save

The job as a whole:

    running_job.py    what can be asked about a running job, by its owner and by others
    changing_job.py   `ChangingJob`: loaders and the mesh change while it runs
    scaling_thread.py `ScalingThread`: changes the loaders as weights move
    discovery.py      finds a running job by the file that it writes

Where a message is sent:

    handles.py        `RemoteHandle`: a role, whichever process plays it
    role_place.py     `RolePlace`: that process, and its successors
    roads.py          roads: ZeroMQ, or threads of this process; that of Ray is in `ray/`
    client.py         `RemoteClient`: a `RankClient` that watches the service
    alarm.py          `Alarm`: tells it that the service has failed, or its mesh has changed
    finders.py        finds other processes of roles for clients that have the service's file
    wait_warnings.py  logs which role keeps a client waiting
"""
