// Whether kernels' values are computed: in memory that the host reads and writes, by a library that stands before torch's
// operators (the folder values).
#pragma once

namespace values {
bool on();
bool inside();   // an operator whose values are computed, in this thread
void install();  // as soon as there is a torch
bool refuses(const char* kernel);  // one that nobody computes; says so
const char* refused();             // the last that was, in this thread; null: none
}  // namespace values
