"""What outlives the planner.

run_store.py    `RunStore`: the states of a run, and what trainers reported; the runs of a store
report_log.py   `ReportLog`: reports, a record each
store_files.py  files in a folder or under a URL, written whole or not at all;
                `Generation`: which of a run's planners may write
"""
