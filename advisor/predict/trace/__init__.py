"""One step on fake tensors: every allocation and operator. Called by trial; loads torch."""
