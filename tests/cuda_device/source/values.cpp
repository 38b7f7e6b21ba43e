#include "values.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "machine.hpp"

static thread_local int depth = 0;
static thread_local std::string last;

bool values::on() { return machine::values_library(); }
bool values::inside() { return depth > 0; }

// Called by the library around every operator.
API int software_gpu_operator(int change) { return depth += change; }

void values::install() {
  static std::atomic<bool> begun{false};
  if (!on() || begun || !dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD) || begun.exchange(true)) return;
  void* library = dlopen(machine::values_library(), RTLD_NOW | RTLD_GLOBAL);
  if (auto install = library ? (void (*)())dlsym(library, "software_gpu_install") : nullptr) return install();
  fprintf(stderr, "the software CUDA device cannot compute values: %s\n", dlerror());
  abort();
}

bool values::refuses(const char* kernel) {
  if (!on() || inside()) return false;
  last = std::string("operation not supported: the software CUDA device cannot compute the values of kernel ") + kernel;
  return true;
}

const char* values::refused() { return last.empty() ? nullptr : last.c_str(); }
