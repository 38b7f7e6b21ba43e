// What every process of the machine holds on every GPU: NVML tells of all of them, and they share the capacity.
#pragma once
#include <cstdint>
#include <vector>

namespace books {
struct Use {
  int pid;
  uint64_t bytes;
};
bool take(int place, uint64_t bytes, uint64_t capacity);  // false: not that much is free
void give(int place, uint64_t bytes);
std::vector<Use> uses(int place);  // of living processes
uint64_t used(int place);
void add_busy(uint64_t ns);
uint64_t busy_ns();
}  // namespace books
