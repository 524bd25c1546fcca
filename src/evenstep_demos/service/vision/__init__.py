"""``evenstep demo-service --vision``: an encoder and a backbone, balanced apart.

pictures    made-up sizes and captions, or those of Parquet files, to sources
encode      a stored size and text to pixels and tokens
strategies  the three strategies, and the job of a run
encoder     a small vision transformer
routes      which embedding goes where, and which comes from where
trainer     what a rank does: encodes, exchanges embeddings, trains
account     the work of each module by rank, and was every picture encoded once?
"""
