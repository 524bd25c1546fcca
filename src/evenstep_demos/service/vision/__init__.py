"""``evenstep demo-service --vision``: an encoder and a backbone, balanced apart.

pictures    sources of made-up sizes and captions
strategies  samples with pixels, the two strategies, and the job of a run
encoder     a small vision transformer
routes      which embedding goes to which rank, and which comes from where
trainer     what a rank does with a step: encodes, exchanges embeddings, trains
"""
