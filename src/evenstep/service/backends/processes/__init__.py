"""The service on one machine without Ray: loaders are processes, all other roles are threads of the
process that starts it.

    service.py            `ProcessService` starts a job, and ends it
    loader_process.py     `LoaderProcess`: a loader's process, as its parent sees it
    loader_succession.py  `LoaderSuccession`: a loader's process, its replacements, and standbys
    loader_main.py        what runs in such a process
"""
