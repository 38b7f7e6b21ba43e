// The machine that is emulated: its GPUs, what of them this process sees, its driver. All of it comes from variables of
// the environment, which machine.py writes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

constexpr uint64_t KIB = 1ull << 10, MIB = 1ull << 20;
constexpr int MOST_GPUS = 16;

struct Gpu {
  std::string name;
  uint64_t memory;
  int major, minor;
  int place;             // on the PCI bus, which is NVML's numbering; MIG instances come after all GPUs
  int whole = -1;        // the place of the GPU of which this is a MIG instance
  bool in_parts = false;  // in MIG mode

  bool is_part() const { return whole >= 0; }
  int bus() const { return (is_part() ? whole : place) + 1; }
  int capability() const { return 10 * major + minor; }
  int multiprocessors() const;
  int threads_per_multiprocessor() const;
  std::string uuid() const;  // "GPU-..." or "MIG-..."
  void uuid(char bytes[16]) const;
};

namespace machine {
const std::vector<Gpu>& installed();       // by place
const std::vector<Gpu>& instances();       // of MIG, by place
const std::vector<const Gpu*>& visible();  // in CUDA's numbering, by CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER
int driver_version();                      // 13000 is 13.0
bool nvml_lacks(const char* function);
double time_scale();           // how long the device takes; 0: no time at all
const char* trace_file();      // where launches are written to; null: nowhere
const char* values_library();  // that computes what kernels would; null: nothing does
const char* books_file();      // what all processes of this machine share; null: nothing
}  // namespace machine
