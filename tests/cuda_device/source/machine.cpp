#include "machine.hpp"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

static const char* variable(const char* name) {
  const char* value = getenv(name);
  return value && *value ? value : nullptr;
}

static std::vector<std::string> parts(const std::string& text, char separator) {
  std::vector<std::string> found;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) found.push_back(part);
  return found;
}

// By the table of compute capabilities in the CUDA programming guide.
int Gpu::threads_per_multiprocessor() const {
  if (capability() == 75) return 1024;
  return (major == 8 && minor > 0) || major == 12 ? 1536 : 2048;
}

int Gpu::multiprocessors() const {
  switch (capability()) {
    case 70: return 80;
    case 75: return 72;
    case 80: return 108;
    case 86: return 84;
    case 89: return 142;
    case 90: return 132;
    default: return 148;
  }
}

std::string Gpu::uuid() const {
  char text[64];
  snprintf(
      text, sizeof text, "%s-%02x%02x0000-0000-4000-8000-0000000000%02x", is_part() ? "MIG" : "GPU", 0xa0 + place,
      capability(), place);
  return text;
}

void Gpu::uuid(char bytes[16]) const {
  std::string text = uuid().substr(4);
  text.erase(std::remove(text.begin(), text.end(), '-'), text.end());
  for (int i = 0; i < 16; i++) bytes[i] = (char)std::stoi(text.substr(2 * i, 2), nullptr, 16);
}

// "NAME/MIB/MAJOR.MINOR;...", and of a GPU in MIG mode "NAME/MIB/MAJOR.MINOR/MIG/PROFILE=MIB/..."
static const std::pair<std::vector<Gpu>, std::vector<Gpu>>& all() {
  static auto* found = [] {
    auto* gpus = new std::pair<std::vector<Gpu>, std::vector<Gpu>>;
    const char* list = getenv("SOFTWARE_GPUS");
    auto entries = parts(list ? list : "", ';');
    for (auto& entry : entries) {
      auto fields = parts(entry, '/');
      Gpu gpu{fields.at(0), std::stoull(fields.at(1)) * MIB, 0, 0, (int)gpus->first.size()};
      sscanf(fields.at(2).c_str(), "%d.%d", &gpu.major, &gpu.minor);
      gpu.in_parts = fields.size() > 3;
      gpus->first.push_back(gpu);
      for (size_t i = 4; i < fields.size(); i++) {
        auto profile = parts(fields[i], '=');
        Gpu part = gpu;
        part.name += " MIG " + profile.at(0);
        part.memory = std::stoull(profile.at(1)) * MIB;
        part.place = (int)(entries.size() + gpus->second.size());
        part.whole = gpu.place;
        part.in_parts = false;
        gpus->second.push_back(part);
      }
    }
    if (gpus->first.size() + gpus->second.size() > MOST_GPUS) abort();
    return gpus;
  }();
  return *found;
}

const std::vector<Gpu>& machine::installed() { return all().first; }
const std::vector<Gpu>& machine::instances() { return all().second; }

// What CUDA shows of a GPU: itself, or its first MIG instance, if it has one.
static const Gpu* shown(const Gpu& gpu) {
  if (!gpu.in_parts) return &gpu;
  for (auto& part : machine::instances())
    if (part.whole == gpu.place) return &part;
  return nullptr;
}

// CUDA's default order is "fastest first" by a measure that NVIDIA does not tell; here it is the capability, then memory.
static std::vector<const Gpu*> in_order() {
  std::vector<const Gpu*> order;
  for (auto& gpu : machine::installed())
    if (auto* one = shown(gpu)) order.push_back(one);
  const char* named = variable("CUDA_DEVICE_ORDER");
  if (!named || strcmp(named, "PCI_BUS_ID"))
    std::stable_sort(order.begin(), order.end(), [](const Gpu* a, const Gpu* b) {
      return std::make_pair(a->capability(), a->memory) > std::make_pair(b->capability(), b->memory);
    });
  return order;
}

// The GPU that an entry of CUDA_VISIBLE_DEVICES names: a number, as strtol reads it, or the start of one UUID alone.
static const Gpu* named(std::string entry, const std::vector<const Gpu*>& order) {
  entry.erase(0, std::min(entry.find_first_not_of(" \t"), entry.size()));
  if (entry.rfind("GPU-", 0) == 0 || entry.rfind("MIG-", 0) == 0) {
    std::vector<const Gpu*> named;
    for (auto gpu : order)
      if (!gpu->is_part()) named.push_back(gpu);
    for (auto& part : machine::instances()) named.push_back(&part);
    const Gpu* found = nullptr;
    for (auto gpu : named)
      if (gpu->uuid().rfind(entry.substr(0, entry.find_last_not_of(" \t") + 1), 0) == 0) {
        if (found) return nullptr;
        found = gpu;
      }
    return found;
  }
  char* end;
  long number = strtol(entry.c_str(), &end, 10);
  return end == entry.c_str() || number < 0 || number >= (long)order.size() ? nullptr : order[number];
}

// A process sees a single MIG instance, and nothing beside it.
static std::vector<const Gpu*>* at_most_one_part(std::vector<const Gpu*>* gpus) {
  for (auto* gpu : *gpus)
    if (gpu->is_part()) {
      *gpus = {gpu};
      break;
    }
  return gpus;
}

const std::vector<const Gpu*>& machine::visible() {
  static auto* gpus = [] {
    auto order = in_order();
    const char* entries = getenv("CUDA_VISIBLE_DEVICES");
    if (!entries) return at_most_one_part(new auto(order));
    auto* found = new std::vector<const Gpu*>;
    for (auto& entry : parts(entries, ',')) {
      const Gpu* gpu = named(entry, order);
      if (!gpu) break;  // what follows an entry that names nothing is ignored
      if (std::count(found->begin(), found->end(), gpu)) {
        found->clear();  // one that is named twice hides all
        break;
      }
      found->push_back(gpu);
    }
    return at_most_one_part(found);
  }();
  return *gpus;
}

int machine::driver_version() {
  static int version = [] {
    int major = 13, minor = 0;
    if (const char* text = variable("SOFTWARE_GPU_DRIVER")) sscanf(text, "%d.%d", &major, &minor);
    return 1000 * major + 10 * minor;
  }();
  return version;
}

bool machine::nvml_lacks(const char* function) {
  static auto* lacking = new auto(parts(variable("SOFTWARE_GPU_NVML_LACKS") ? variable("SOFTWARE_GPU_NVML_LACKS") : "", ','));
  return std::count(lacking->begin(), lacking->end(), function) > 0;
}

double machine::time_scale() {
  static double scale = variable("SOFTWARE_GPU_TIME") ? atof(variable("SOFTWARE_GPU_TIME")) : 1;
  return scale;
}

const char* machine::trace_file() {
  static const char* path = variable("SOFTWARE_GPU_TRACE");
  return path;
}

const char* machine::values_library() {
  static const char* path = variable("SOFTWARE_GPU_VALUES");
  return path;
}

const char* machine::books_file() {
  static const char* path = variable("SOFTWARE_GPU_BOOKS");
  return path;
}
