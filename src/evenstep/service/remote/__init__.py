"""What all processes of a job share.

The process of a role:

    child_process.py  `ChildProcess`: a process of this machine, as its parent sees it
    role_host.py    `RoleHost` hands messages to the role, counts them, and listens for them
    role_threads.py threads that handle its messages, and others
    role_makers.py  makes roles, in their own processes

Where a message is sent:

    handles.py      `RemoteHandle`: a role, whichever process runs it
    channels.py     how messages get there: by ZeroMQ, or to threads of this process;
                    `RolePlace`: that process, and its successors
    job_state.py    `JobInfo`: which roles a job has; `JobState`, from which roles restart
"""
