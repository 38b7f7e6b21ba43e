// Launches of kernels: they are checked, noted and timed, and nothing is computed.
#pragma once
#include <cuda_runtime_api.h>

namespace kernels {
struct Shape {
  unsigned grid[3], block[3];
};
cudaError_t launched(const char* name, const Shape& shape, cudaStream_t stream);
void note(const char* name);  // for the trace: NAME on the current device
// A product of matrices of m x k and k x n; false: its values were to be computed, and cannot be.
bool multiplied(const char* name, double m, double n, double k, double batch, int type, cudaStream_t stream);
}  // namespace kernels
