// What operators of torch compute, computed on the CPU in the memory of the software device.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace values {
// Where the generator of the device stood before an operator ran: the same place gives the same numbers.
struct Draws {
  uint64_t seed = 0, offset = 0;
  at::Generator generator() const;  // of the CPU
};
Draws draws_of(const at::Generator& of_device);

// On the CPU nothing of what surrounds the operator is to be asked again.
struct Plain {
  c10::impl::ExcludeDispatchKeyGuard excluded{
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
      c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::Functionalize, c10::DispatchKey::PreDispatch})};
};

// Operators that draw without saying so draw from the default generator of the CPU, which is as before afterwards.
struct SeededDefault {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  at::Tensor before = generator.get_state();
  explicit SeededDefault(const Draws& draws) { generator.set_state(draws.generator().get_state()); }
  ~SeededDefault() { generator.set_state(before); }
};

// A tensor of the CPU in the memory of one of the device.
at::Tensor on_host(const at::Tensor& tensor);

// Operators that have no kernel for the CPU, or one that differs: from arguments on the CPU to results on the CPU, in the
// order of the schema; none leaves what the device has.
using Values = std::vector<c10::IValue>;
using Equivalent = Values (*)(const Values& given, const Draws& draws);
using Equivalents = std::unordered_map<std::string, Equivalent>;
void add_layers(Equivalents& known);     // layers.cpp
void add_attention(Equivalents& known);  // attention.cpp
}  // namespace values
