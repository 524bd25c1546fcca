"""Samples as a graph sees them. They live in `evenstep.plan`, which mixtures are part of."""

from evenstep.plan.samples import BufferedMetadata, Metadata, SampleId, SampleTable

__all__ = ["BufferedMetadata", "Metadata", "SampleId", "SampleTable"]
