"""Pipeline parallelism for any model with a chain of blocks; no policy applies it yet."""
