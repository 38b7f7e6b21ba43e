"""Lightning and the Hugging Face Trainer."""
