"""``evenstep demo``: a small GPT trained on real text, with fixed batches and with `evenstep.Even`.

    command        the command line
    options        what a user may choose
    corpus         documents of the standard library, or of a Parquet file
    prepared_text  tokenizer trained on them, lengths, training and held-out documents
    budget         how many samples fit the time, and the fixed batch size that makes as many steps
    batches        the two ways of forming batches, behind one interface
    train          one epoch of DDP on one rank, timed step by step (clock: when compute ends)
    job            what a rank does: calibrate, then both runs one after the other
    ranks          starts the rank processes, passes on their messages, ends them all if one fails
    messages       the messages of ranks
    progress       what the user sees meanwhile
    figures        records of all ranks -> the figures of a run
    result         the table, the verdict and the JSON object
    run            all of it, in order

Both runs get the same samples, each once, the same initial weights, optimizer, collator and number
of worker processes. The fixed batch size is the mean number of samples per rank and step that
`Even` makes of these lengths, so both take about as many optimizer steps.
"""
