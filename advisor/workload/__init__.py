"""What the user brings: the model's file, its functions and facts. Read by session and, with torch, by trial."""
