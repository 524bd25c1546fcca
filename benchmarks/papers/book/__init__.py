"""The book "The papers, reproduced": one page of docs/papers for each document.

outcomes   what one entry found: tables, stored as small JSON files
chapters   what a chapter says of each table and figure, and which function makes its outcome
pages      chapters and stored outcomes -> Markdown
__main__   runs entries and writes the pages: ``python -m benchmarks.papers.book``

A chapter is the ``CHAPTER`` of a module ``contents`` beside the code that makes its outcomes. An
entry names a function that takes the seed and returns an `Outcome`; what it returned last is
stored in results/<chapter>/<key>.json, from which pages are written. Entries marked ``slow`` take
minutes, or want a quiet machine; ``--fast`` leaves theirs as they are stored.
"""
