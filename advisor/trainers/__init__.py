"""Tune what a trainer holds: the model, data, optimizer and loss of a Hugging Face Trainer or of a LightningModule."""
