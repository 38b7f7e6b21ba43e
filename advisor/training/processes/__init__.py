"""How one training is spread over several processes: who they are, and what each has of the batch and of the model.

Called by measure, methods, policy, training, training/batch and trial.
"""
