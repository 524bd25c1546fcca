"""When a mixture ends, and whether a source that has ended begins again.

- `FIRST_EXHAUSTED`: the mixture ends with the last sample of the first source that has no more.
- `ALL_EXHAUSTED`: a source that has ended is drawn no more, and the others divide its share; the
  mixture ends with the last sample of the last one. Each sample comes once.
- `ALL_REPEATED`: a source that has ended begins again, and the mixture ends when each has been read
  once.
- `REPEAT`: a source that has ended begins again, and the mixture never ends.
"""

from __future__ import annotations

from evenstep.errors import ConfigurationError

FIRST_EXHAUSTED = "first_exhausted"
ALL_EXHAUSTED = "all_exhausted"
ALL_REPEATED = "all_repeated"
REPEAT = "repeat"

_RULES = (FIRST_EXHAUSTED, ALL_EXHAUSTED, ALL_REPEATED, REPEAT)
_ALIASES = {
    # Hugging Face's interleave_datasets. Its "all_exhausted" is not here: it repeats.
    "all_exhausted_without_replacement": ALL_EXHAUSTED,
    # Ray Data's mix
    "STOP_ON_SHORTEST": FIRST_EXHAUSTED,
    "STOP_ON_LONGEST_DROP": ALL_EXHAUSTED,
    # torchdata's MultiNodeWeightedSampler
    "FIRST_DATASET_EXHAUSTED": FIRST_EXHAUSTED,
    "ALL_DATASETS_EXHAUSTED": ALL_EXHAUSTED,
    "CYCLE_UNTIL_ALL_DATASETS_EXHAUSTED": ALL_REPEATED,
    "CYCLE_FOREVER": REPEAT,
}


def stop_rule(name: str) -> str:
    """The stop rule with this name or alias.

    Raises:
        ConfigurationError: there is no such rule.
    """
    rule = _ALIASES.get(name, name)
    if rule not in _RULES:
        raise ConfigurationError(
            f"stop={name!r} must be one of {', '.join(_RULES)}, or an alias: {', '.join(_ALIASES)}"
        )
    return rule
