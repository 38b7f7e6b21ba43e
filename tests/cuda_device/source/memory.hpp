// Memory of the device: addresses and their owners, with nothing behind them.
#pragma once
#include <cstdint>

namespace memory {
// Address space that no access of the host survives, as with a device's memory.
void* reserve(uint64_t bytes);
void release(void* address, uint64_t bytes);
void own(void* address, uint64_t bytes, int device);  // what is there belongs to the device from now on
bool disown(void* address, uint64_t& bytes, int& device);
int device_of(const void* address);  // -1: it is no memory of a device
bool range_of(const void* address, void** begin, uint64_t* bytes);
bool page_locked(const void* address);
// A copy as the host sees it: what comes from the device is zeros.
void copied(void* to, const void* from, uint64_t bytes);
}  // namespace memory
