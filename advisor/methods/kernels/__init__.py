"""Methods that compute the same by other kernels: compiled, fused, chunked, or in another layout. In the catalogue."""
