"""The demos: commands of ``evenstep`` that show on real text and real processes what it gains.

    text/      ``evenstep demo``: a small GPT, with fixed batches and with `evenstep.Even`
    models.py  the small transformers that they train
    ranks.py   rank processes on this machine

The commands reach ``evenstep`` through the entry points ``evenstep.commands``.
"""
