"""What goes wrong around samples: in fetching several at once, in the sampler, in a worker."""

from __future__ import annotations

import pytest
from torch.utils.data import Subset

import evenstep
from documents import Documents
from evenstep.errors import LoaderDiedError, SampleError

COUNT = 60


class Short(Documents):
    """Gives one sample less than it is asked for."""

    def __getitems__(self, indices):
        return [self[index] for index in indices[1:]]


class Breaking:
    def __iter__(self):
        yield from range(20)
        raise OSError("index server gone")


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        (Short(COUNT), {}, "one of sample 0, sample 1, "),
        (Subset(Documents(4), [0, 1, 9]), {}, "sample 2: .* raised IndexError"),
        (Documents(COUNT), {"sampler": [1, 2, COUNT + 5]}, f"sample {COUNT + 5}"),
        (Documents(COUNT), {"sampler": Breaking()}, "sampler raised OSError: index server gone"),
        (
            Documents(COUNT),
            {"sampler": Breaking(), "num_workers": 1},
            "sampler raised OSError: index server gone",
        ),
    ],
)
def test_what_is_wrong_is_said_by_name(dataset, options, said):
    loader = evenstep.DataLoader(dataset, policy=evenstep.TokenBudget(512), **options)
    with pytest.raises(SampleError, match=f"(?s){said}"):
        list(loader)


def broken_init(worker):
    raise ImportError("no codec")


def test_a_worker_that_cannot_start_is_said_to():
    loader = evenstep.DataLoader(
        Documents(COUNT), batch_size=4, num_workers=1, worker_init_fn=broken_init
    )
    with pytest.raises(LoaderDiedError, match="ImportError: no codec"):
        list(loader)
