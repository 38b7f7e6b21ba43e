"""Train with a policy in the trainers that people have: transformers, trl, accelerate, Lightning.

Runs in the user's own process, with torch and the trainer's library.

Called by trainers.
"""
