"""What outlives the processes of a job: a folder or URL of the user's with its states and reports.

url_folder.py    files written whole or not at all, in a folder or under a URL
document.py      documents with a checksum
run_store.py     `RunStore`: the states of a run
generation.py    which of a run's planners may write
report_log.py    `ReportLog`: what trainers reported, and when
"""
