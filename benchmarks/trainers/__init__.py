"""Trainers of other projects, with their own loaders and with evenstep's.

trainer_speed  tokens per second and held-out loss of Hugging Face's Trainer
"""
