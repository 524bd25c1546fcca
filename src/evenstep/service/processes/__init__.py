"""The service on one machine without Ray: loaders are processes, all other roles are threads of the
process that starts it.

    service.py         `ProcessService` starts a job, and ends it
    loader_process.py  `LoaderProcess`: a loader's process, as its parent sees it, and the next ones
    loader_main.py     what runs in it
"""
