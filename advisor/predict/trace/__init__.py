"""One step on fake tensors: every allocation and operator. Loads torch."""
