"""The job that the service runs: one data-parallel group for each GPU of the hosts."""

import os

import evenstep.service as es

CORPUS = os.environ.get("CORPUS", "s3://corpus")


def tokens(row):
    return {"input_ids": row["tokens"]}


def strategy(graph, mesh, step):
    ranks = graph.mix().distribute("DP").cost(lambda tokens: tokens)
    return ranks.balance("karmarkar_karp").plan()


job = es.Job(
    sources=[
        es.Source("code", f"{CORPUS}/code/*.parquet", transform=tokens, weight=0.3),
        es.Source("web", f"{CORPUS}/web/*.parquet", transform=tokens, weight=0.7),
    ],
    mesh=es.Mesh(DP=int(os.environ["RANKS"])),
    strategy=strategy,
    micro_batches=4,
    max_tokens=8192,
    seed=0,
)
