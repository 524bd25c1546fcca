"""``evenstep demo-service --vision``: an encoder and a backbone, balanced apart.

pictures    sources of made-up sizes and captions, or those of Parquet files
encode      turns a stored size and text into pixels and tokens
collate     micro-batches with pixels and without
strategies  the three strategies, and the job of a run
encoder     a small vision transformer
routes      which embedding goes to which rank, and which comes from where
trainer     what a rank does: encodes, exchanges embeddings, trains
account     the cost of each module by rank, and whether every picture was encoded once
"""
