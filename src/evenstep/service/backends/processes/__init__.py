"""The service on one machine without Ray: loaders are processes, all other roles are threads of the
process that starts it.

    process_service.py   `ProcessService` starts a job, and ends it
    loader_processes.py  `LoaderProcess`: a loader's process, as its parent sees it;
                         `LoaderSuccession`: such a process, its replacements, and standbys
    loader_main.py       what runs in such a process
"""
