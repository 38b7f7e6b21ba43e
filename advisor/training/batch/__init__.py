"""Batches as trees of tensors, their micro-batches, and what each counts. Called by Training and measure."""
