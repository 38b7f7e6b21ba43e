#include "values.hpp"

#include <ATen/CPUGeneratorImpl.h>

at::Generator values::Draws::generator() const {
  uint64_t mixed = seed + 0x9e3779b97f4a7c15ull * (offset + 1);
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
  return at::detail::createCPUGenerator(mixed ^ (mixed >> 31));
}

values::Draws values::draws_of(const at::Generator& of_device) {
  Plain plain;
  auto state = of_device.get_state();
  const auto* numbers = state.const_data_ptr<uint8_t>();
  Draws draws;
  memcpy(&draws.seed, numbers, 8);
  memcpy(&draws.offset, numbers + 8, 8);
  return draws;
}

at::Tensor values::on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  TORCH_CHECK_NOT_IMPLEMENTED(
      tensor.layout() == at::kStrided && !tensor.is_quantized(), "the software CUDA device cannot compute with ", tensor.layout(),
      " tensors");
  auto host = at::from_blob(
      tensor.numel() ? tensor.mutable_data_ptr() : nullptr, tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
  host._set_conj(tensor.is_conj());
  host._set_neg(tensor.is_neg());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) host.unsafeGetTensorImpl()->set_wrapped_number(true);
  return host;
}
