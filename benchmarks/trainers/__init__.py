"""Trainers of other projects, with their own loaders and with evenstep's; and a GPU.

gpu_speed      `evenstep demo`'s comparison on GPUs; make gpu
trainer_speed  tokens per second and held-out loss of Hugging Face's Trainer
"""
