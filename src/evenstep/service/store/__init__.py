"""What outlives the processes of a job: a folder or URL of the user's with its states and reports.

runs.py          the runs in a store, and the state to start the next one with
run_store.py     `RunStore`: the states of a run
report_log.py    `ReportLog`: what trainers reported, and when
generation.py    which of a run's planners may write
document.py      documents with a checksum
url_folder.py    files written whole or not at all, in a folder or under a URL
"""
