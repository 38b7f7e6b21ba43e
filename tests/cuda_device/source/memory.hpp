// Memory of the device: addresses and their owners, with nothing behind them.
#pragma once
#include <cstdint>

namespace memory {
// Address space that no access of the host survives, as with a device's memory.
void* reserve(uint64_t bytes);
void release(void* address, uint64_t bytes);
// Where values are computed, what is mapped there is the host's to read and write.
bool open(uintptr_t address, uint64_t bytes);
void close(uintptr_t address, uint64_t bytes);
void own(void* address, uint64_t bytes, int device);  // what is there belongs to the device from now on
bool disown(void* address, uint64_t& bytes, int& device);
int device_of(const void* address);  // -1: it is no memory of a device
bool range_of(const void* address, void** begin, uint64_t* bytes);
bool page_locked(const void* address);
// A copy. What the host copied to the device, or a part of it, is there until the next kernel runs: after that nothing is
// known of what is in its memory, and what is read is zeros.
void copied(void* to, const void* from, uint64_t bytes);
void forget();  // a kernel runs
}  // namespace memory
