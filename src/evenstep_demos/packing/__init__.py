"""``evenstep demo-packing``: documents packed for pretraining, in three ways. Trains nothing.

command    the command line
documents  lengths of real documents
compare    the three packers over the same stream
run        all of it, in order; the table, its meaning, the picture and the JSON object
"""
