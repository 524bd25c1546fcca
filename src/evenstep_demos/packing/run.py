"""The demo from beginning to end."""

from __future__ import annotations

import json

from evenstep.tools.report.packing_plot import plot_packing
from evenstep_demos.packing.compare import compare
from evenstep_demos.packing.documents import DocumentLengths
from evenstep_demos.packing.options import PackingDemoOptions, suitable_context
from evenstep_demos.packing.result import PackingDemoResult


def pack_documents(documents: DocumentLengths, options: PackingDemoOptions) -> PackingDemoResult:
    """Packs, and writes ``micro_batches.png`` and ``result.json``.

    Raises:
        ConfigurationError: there is too little text, or options are out of range.
        ImportError: matplotlib is not installed.
    """
    context = options.context
    if context is None:
        context = suitable_context(int(documents.lengths.sum()), options.micro_batches)
    result = PackingDemoResult(
        options=options,
        documents=documents,
        context=context,
        packed=compare(
            documents.lengths,
            context=context,
            micro_batches=options.micro_batches,
            queues=(options.queues,),
            max_tokens=options.max_tokens,
            cost=options.cost,
        ),
        picture=options.out / "micro_batches.png",
    )
    plot_packing(result.panels(), result.picture, title="Cost of every micro-batch in each step")
    (options.out / "result.json").write_text(json.dumps(result.as_dict(), indent=1) + "\n")
    return result
