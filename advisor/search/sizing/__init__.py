"""Which batch or model size to try: memory from few runs. Called by session.trials."""
