"""How models read labels, and how a job learns it from its samples.

- "causal": the model shifts labels by one inside. It predicts position i from the positions before
  i, so nothing predicts position 0: where a sample has one integer for each token, the first one is
  not supervised, whatever its value.
- "every": the model does not shift them. Encoder-decoders, token classifiers and CTC do so, and
  causal models whose data set has shifted the labels.

The two differ only in samples whose first label is not -100. Of these, an aligned copy of the
tokens (``labels[i] == input_ids[i]`` wherever it is not -100) fits both; any other labels prove
that nothing is shifted inside. So ranks count such samples of both kinds in their windows. As soon
as there are any, one that proves it decides for "every", else it is "causal", on all ranks alike
and for the rest of the job.
"""

from __future__ import annotations

READINGS = ("causal", "every")

FIRST, UNSHIFTED, UNKNOWN = 1, 2, 4
"""Bits of what a sample's labels show: it has one more supervised token if every label is read; it
proves that every label is read; it has no tokens to compare its labels with."""
