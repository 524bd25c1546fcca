"""What outlives the planner.

run_store.py   `RunStore`: the states of a run, and what trainers reported
runs.py        the runs of a store, and the state to resume from
report_log.py  `ReportLog`: reports, a record each
generation.py  `Generation`: which of a run's planners may write; files with a checksum
url_folder.py  files in a folder or under a URL, written whole or not at all
"""
