"""Methods that compute the same by other kernels: compiled, fused, chunked, in another layout."""
