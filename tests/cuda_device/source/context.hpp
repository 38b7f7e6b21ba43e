// The state of a process and of its threads: the current device, its context, the last error.
#pragma once
#include <cuda_runtime_api.h>

#include <mutex>

#include "machine.hpp"

namespace context {
extern std::mutex lock;  // of everything that threads of this process share
extern thread_local int device;

cudaError_t failed(cudaError_t error);  // remembers it, as cudaGetLastError wants it
cudaError_t ready();                    // whether CUDA can be used here at all
const Gpu& gpu(int device);
const Gpu& gpu();                // the current one
void open(int device);           // makes the context, which takes memory, when it is first needed
bool is_open(int device);
}  // namespace context

#define RETURN_UNLESS_READY \
  if (cudaError_t unready = context::ready()) return context::failed(unready)
