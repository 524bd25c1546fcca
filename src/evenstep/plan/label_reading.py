"""How models read labels, and how a job learns it from its samples.

- "causal": the model shifts labels by one inside. It predicts position i from the positions before
  i, so nothing predicts position 0: where a sample has one integer for each token, the first one is
  not supervised, whatever its value.
- "every": the model does not shift them. Encoder-decoders, token classifiers and CTC do so, and
  causal models whose data set has shifted the labels.

The two differ only in samples whose first label is not -100. Of these, an aligned copy of the
tokens (``labels[i] == input_ids[i]`` wherever it is not -100) fits both; any other labels prove
that nothing is shifted inside. So ranks tell each other how many samples of either kind are in
their windows. As soon as there is any, a proof decides for "every", else it is "causal", on all
ranks alike and for the rest of the job.
"""

from __future__ import annotations

from evenstep.arrays import Int64Array

READINGS = ("causal", "every")

FIRST, UNSHIFTED, UNKNOWN = 1, 2, 4
"""Bits of what a sample's labels show: it has one more supervised token if every label is read; it
proves that every label is read; it has no tokens to compare its labels with."""


def read_labels(
    supervised: Int64Array, shows: Int64Array, labels: str
) -> tuple[Int64Array, Int64Array]:
    """Supervised tokens as models read `labels`, and what the labels show once that is done.

    Args:
        supervised: [samples] read as "causal", where `shows` has `FIRST`.
        shows: [samples] bits.
    """
    first = shows & FIRST
    return supervised + first * (labels == "every"), shows - first
