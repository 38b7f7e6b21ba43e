"""The model of cost and failures, and what it proposes next."""
