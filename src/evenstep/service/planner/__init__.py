"""Planner: decides, step after step, which samples are drawn and where each goes.

planner.py          `Planner`: the plan of each step
policy_steps.py     the steps that a policy makes of the mixture, and their windows
strategy_steps.py   the steps that a strategy makes of it, checked
draws.py            what is drawn of the mixture for a step; samples that were passed over
loader_pool.py      all loaders as one provider of metadata
trainer_reports.py  what trainers report, used in an order that does not depend on timing
changes.py          `Changes`: what somebody changes by hand, from a step on
planner_state.py    the planner's part of a checkpoint; the last plans that were made
seen.py             which samples went into which steps, in Parquet: files and queries
seen_writer.py      `SeenWriter`: writes these files
stored_planner.py   `StoredPlanner`: resumes where a planner that died has ended; writes its states
store/              what outlives the planner: its states, and what trainers reported

When a planner dies, `backends/` starts another process for it: Ray restarts the actor
(`backends/ray/actor_options`), and `remote/role_makers.restart_planner` makes the role again.
`StoredPlanner` reads the last state from the store, plans the steps since then again and continues.
Callers that wait for an answer find the new process through `remote/channels`, with a locator of
the backend, and repeat their message. `registry/role_watch` notices the death and logs it.
"""
