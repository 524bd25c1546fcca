"""Trainers of other projects, with and without evenstep.

rollout_speed  seconds of an update of TRL's GRPOTrainer
"""
