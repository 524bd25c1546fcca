"""``evenstep demo``: a small GPT trained on real text, with fixed batches and with `evenstep.Even`.

    command        the command line
    corpus         functions and classes of the standard library, or a Parquet file's documents
    prepared_text  tokenizer trained on them, and `Task`: training and held-out documents, a model
    budget         a batch size and a budget that make as many steps
    batches        the two ways of forming batches, behind one interface
    train          both runs on one rank, timed step by step
    result         figures of all ranks, the table and the verdict
    run            all of it, in order

Both runs get the same samples, each once, the same initial weights, optimizer, collator and number
of worker processes, and take about as many steps. Gradients are added up over a few steps, so that
an update of two ranks holds as many groups as a step of more. Both runs are made several times,
with other initial weights and orders, so that losses have an interval.
"""
