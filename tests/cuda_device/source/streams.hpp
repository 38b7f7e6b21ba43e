// The device's time: every stream is busy until a moment, and what waits for it waits until then.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

namespace streams {
void spend(cudaStream_t stream, double ns);  // work is added
void wait(cudaStream_t stream);
void wait_for_device(int device);
int device_of(cudaStream_t stream);  // the current device for a default stream
}  // namespace streams
