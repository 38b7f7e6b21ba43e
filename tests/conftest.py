"""What holds for every test."""

import os

# Two test processes share the cores, and every worker that they start inherits this: threads that wait for each other
# on a busy machine make small steps a hundred times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
