"""The model of cost and failures, and what it proposes next. Called by search.study."""
