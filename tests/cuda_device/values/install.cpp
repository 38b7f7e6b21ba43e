// Stands before every operator's CUDA kernel, in every thread, below autograd, autocast, modes and subclasses of tensors:
// the kernel runs on the device as it would, and computes nothing; then the CPU computes, and writes to the device.
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "operators.hpp"
#include "values.hpp"

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::OperatorHandle;
using torch::jit::Stack;
using values::Plain;

namespace {
const values::Equivalents& equivalents() {
  static auto* known = [] {
    auto* made = new values::Equivalents;
    values::add_layers(*made);
    values::add_attention(*made);
    return made;
  }();
  return *known;
}

// -------------------------------------------------------------------------------------------------- the device

// Kernels may be launched only while an operator runs whose values are computed (source/values.cpp).
int inside(int change) {
  static auto function = (int (*)(int))dlsym(RTLD_DEFAULT, "software_gpu_operator");
  return function(change);
}
struct Inside {
  Inside() { inside(1); }
  ~Inside() { inside(-1); }
};

thread_local bool muted = false;  // the parts of an operator that is computed as a whole
struct Muted {
  bool before = muted;
  explicit Muted(bool now) { muted = now; }
  ~Muted() { muted = before; }
};

// ------------------------------------------------------------------------------------------------- the arguments

bool is_half(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_floating_point() && tensor.element_size() < 4;
}

template <typename Change>
IValue with_tensors(const IValue& value, const Change& change) {
  if (value.isTensor()) return IValue(change(value.toTensor()));
  if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const at::Tensor& each : value.toTensorVector()) changed.push_back(change(each));
    return changed;
  }
  if (value.isList()) {
    const auto& list = value.toListRef();
    bool any = false;
    for (const auto& each : list) any = any || each.isTensor();
    if (!any) return value;
    c10::List<std::optional<at::Tensor>> changed;
    for (const auto& each : list) changed.push_back(each.isTensor() ? std::optional(change(each.toTensor())) : std::nullopt);
    return changed;
  }
  return value;
}

std::vector<at::Tensor> tensors_in(const IValue& value) {
  std::vector<at::Tensor> found;
  with_tensors(value, [&](const at::Tensor& tensor) {
    found.push_back(tensor);
    return tensor;
  });
  return found;
}

bool is_written(const c10::Argument& argument) { return argument.alias_info() && argument.alias_info()->isWrite(); }
bool writes(const c10::FunctionSchema& schema) {
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), is_written);
}

IValue as_host(const IValue& value, const values::Draws& draws) {
  if (value.isDevice() && value.toDevice().is_cuda()) return at::Device(at::kCPU);
  if (value.isGenerator() && value.toGenerator().device().is_cuda()) return draws.generator();
  return with_tensors(value, values::on_host);
}

at::Generator generator_of(const values::Values& given) {
  c10::DeviceIndex device = -1;
  for (const auto& value : given) {
    if (value.isGenerator() && value.toGenerator().device().is_cuda()) return value.toGenerator();
    if (value.isDevice() && value.toDevice().is_cuda()) device = value.toDevice().index();
    for (const auto& tensor : tensors_in(value))
      if (device < 0 && tensor.defined() && tensor.is_cuda()) device = tensor.device().index();
  }
  if (device < 0) device = c10::impl::VirtualGuardImpl(at::kCUDA).getDevice().index();
  return at::globalContext().defaultGenerator(at::Device(at::kCUDA, device));
}

// -------------------------------------------------------------------------------------------------- the operator

class Computed : public c10::OperatorKernel {
 public:
  Computed(const OperatorHandle& op, c10::SafeKernelFunction kernel) : kernel_(std::move(kernel)) {
    const auto& schema = op.schema();
    name_ = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
    short_ = schema.name().substr(schema.name().find("::") + 2);
    auto found = equivalents().find(name_.substr(name_.find("::") + 2));
    equivalent_ = found == equivalents().end() ? nullptr : found->second;
    alone_ = operators::on_a_cpu_alone(short_) && !writes(schema);
    in_32_bits_ = operators::in_32_bits(short_);
    for (const auto& argument : schema.arguments())
      if (argument.type()->str().find("Generator") != std::string::npos) takes_generator_ = true;
    draws_ = takes_generator_ || op.hasTag(at::Tag::nondeterministic_seeded) || short_.find("attention") != std::string::npos;
  }

  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack);

 private:
  values::Values on_device(const OperatorHandle& op, DispatchKeySet keys, const values::Values& given) const;
  values::Values on_cpu(const OperatorHandle& op, values::Values host, const values::Draws& draws) const;
  values::Values called(const OperatorHandle& op, const values::Values& host, const values::Draws& draws) const;
  values::Values called_in_32_bits(const OperatorHandle& op, const values::Values& host, const values::Draws& draws) const;
  void write(const values::Values& computed, const values::Values& results, const c10::FunctionSchema& schema) const;

  c10::SafeKernelFunction kernel_;
  std::string name_, short_;
  values::Equivalent equivalent_;
  bool alone_, in_32_bits_, takes_generator_ = false, draws_;
};

values::Values Computed::on_device(const OperatorHandle& op, DispatchKeySet keys, const values::Values& given) const {
  // Parts of a kernel that are operators compute too. What they change in place is put back, for the whole to be computed.
  std::vector<std::pair<at::Tensor, at::Tensor>> before;
  if (short_ != "copy_" && short_ != "zero_" && short_ != "fill_") {
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < given.size(); i++)
      if (is_written(arguments[i]) && !arguments[i].kwarg_only())
        for (const auto& tensor : tensors_in(given[i]))
          if (tensor.defined() && tensor.is_cuda()) {
            Plain plain;
            before.emplace_back(tensor, values::on_host(tensor).clone());
          }
  }
  Stack stack = given;
  {
    Inside inside;
    Muted only_the_whole(equivalent_ || short_.find("batch_norm") != std::string::npos);
    kernel_.callBoxed(op, keys, &stack);
  }
  Plain plain;
  for (auto& [tensor, contents] : before) values::on_host(tensor).copy_(contents);
  return stack;
}

values::Values Computed::called(const OperatorHandle& op, const values::Values& host, const values::Draws& draws) const {
  if (equivalent_) return equivalent_(host, draws);
  Stack stack = host;
  op.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), &stack);
  return stack;
}

values::Values Computed::called_in_32_bits(const OperatorHandle& op, const values::Values& host, const values::Draws& draws) const {
  values::Values wide;
  for (const auto& value : host)
    wide.push_back(with_tensors(value, [](const at::Tensor& tensor) { return is_half(tensor) ? tensor.to(at::kFloat) : tensor; }));
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < host.size(); i++) {
    if (arguments[i].name() == "half_to_float") wide[i] = false;
    if (arguments[i].name() == "input_dtype") wide[i] = (int64_t)at::kFloat;
  }
  auto computed = called(op, wide, draws);
  for (size_t i = 0; i < host.size(); i++) {
    if (!is_written(arguments[i])) continue;
    auto narrow = tensors_in(host[i]), changed = tensors_in(wide[i]);
    for (size_t j = 0; j < narrow.size(); j++)
      if (!narrow[j].is_same(changed[j])) narrow[j].copy_(changed[j]);
  }
  return computed;
}

values::Values Computed::on_cpu(const OperatorHandle& op, values::Values host, const values::Draws& draws) const {
  bool half = false, whole = false;
  for (const auto& value : host)
    for (const auto& tensor : tensors_in(value)) {
      half = half || is_half(tensor);
      whole = whole || (tensor.defined() && tensor.is_floating_point() && !is_half(tensor));
    }
  std::optional<values::SeededDefault> seeded;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < host.size(); i++)
    if (arguments[i].name() == "generator" && host[i].isNone()) host[i] = draws.generator();
  if (draws_ && !takes_generator_ && !equivalent_) seeded.emplace(draws);
  if (half && in_32_bits_) return called_in_32_bits(op, host, draws);
  try {
    return called(op, host, draws);
  } catch (const c10::Error&) {
    if (!half) throw;  // else the CPU may lack it for these numbers
  }
  return called_in_32_bits(op, host, draws);
}

void Computed::write(const values::Values& computed, const values::Values& results, const c10::FunctionSchema& schema) const {
  for (size_t i = 0; i < results.size(); i++) {
    if (is_written(schema.returns()[i])) continue;  // in place: it is there
    if (computed[i].isNone()) continue;             // the device's alone is right
    auto from = tensors_in(computed[i]), to = tensors_in(results[i]);
    TORCH_CHECK(from.size() == to.size(), "the software CUDA device cannot compute ", name_, ": its results are others on a CPU");
    for (size_t j = 0; j < to.size(); j++) {
      if (!to[j].defined() || !from[j].defined()) continue;
      // What batch normalization keeps for its backward pass is nothing where nothing is learned, or cuDNN's own.
      if (short_.find("batch_norm") != std::string::npos && (!to[j].numel() || !from[j].numel())) continue;
      TORCH_CHECK(
          from[j].sizes() == to[j].sizes(), "the software CUDA device cannot compute ", name_, ": result ", i, " is ",
          from[j].sizes(), " on a CPU and ", to[j].sizes(), " on CUDA");
      (to[j].is_cuda() ? values::on_host(to[j]) : to[j]).copy_(from[j]);
    }
  }
}

void wrap_late_comers();

void Computed::operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
  const auto& schema = op.schema();
  wrap_late_comers();
  if (muted) {
    Inside inside;
    kernel_.callBoxed(op, keys, stack);
    return;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      equivalent_ || op.hasComputedKernelForDispatchKey(DispatchKey::CPU), "the software CUDA device cannot compute ", name_,
      ": it has no kernel for a CPU");
  values::Values given(stack->end() - schema.arguments().size(), stack->end());
  torch::jit::drop(*stack, schema.arguments().size());
  values::Draws draws;
  if (draws_) draws = values::draws_of(generator_of(given));

  values::Values results;
  if (!alone_) results = on_device(op, keys, given);
  Plain plain;
  values::Values host;
  for (const auto& value : given) host.push_back(as_host(value, draws));
  values::Values computed;
  if (operators::too_long(short_, given) && !writes(schema)) {
    for (const auto& result : results)
      computed.push_back(with_tensors(result, [](const at::Tensor& tensor) {
        return tensor.defined() && tensor.is_floating_point() ? values::on_host(tensor).fill_(NAN) : tensor;
      }));
    for (auto& result : results) stack->push_back(std::move(result));
    return;
  }
  try {
    computed = on_cpu(op, host, draws);
  } catch (c10::Error& error) {
    error.add_context("while the software CUDA device computed " + name_);
    throw;
  }
  if (alone_) {
    auto device = generator_of(given).device();
    for (const auto& value : computed)
      results.push_back(with_tensors(value, [&](const at::Tensor& tensor) { return at::empty_like(tensor, tensor.options().device(device)); }));
  }
  write(computed, results, schema);
  for (size_t i = 0; i < results.size(); i++) {
    const auto& type = *schema.returns()[i].type();
    bool tensors = type.isSubtypeOf(*c10::TensorType::get()) || !tensors_in(results[i]).empty() || results[i].isTensorList();
    stack->push_back(tensors || computed[i].isNone() ? std::move(results[i]) : std::move(computed[i]));
  }
}

// ---------------------------------------------------------------------------------------------------- installation

// Reads a number, which is there even while an operator around it runs.
class Read : public c10::OperatorKernel {
 public:
  explicit Read(c10::SafeKernelFunction kernel) : kernel_(std::move(kernel)) {}
  void operator()(const OperatorHandle& op, DispatchKeySet keys, Stack* stack) {
    struct Outside {
      int depth = inside(0);
      Outside() { inside(-depth); }
      ~Outside() { inside(depth); }
    } outside;
    kernel_.callBoxed(op, keys, stack);
  }

 private:
  c10::SafeKernelFunction kernel_;
};

void wrap(const OperatorHandle& op) {
  auto kernel = op.getComputedKernelForDispatchKey(DispatchKey::CUDA);
  using Boxed = c10::KernelFunction;
  auto function = op.operator_name().name == operators::READS ? Boxed::makeFromBoxedFunctor(std::make_unique<Read>(std::move(kernel)))
                                                   : Boxed::makeFromBoxedFunctor(std::make_unique<Computed>(op, std::move(kernel)));
  auto handle = c10::Dispatcher::singleton().registerImpl(
      op.operator_name(), DispatchKey::CUDA, std::move(function), std::nullopt, nullptr, "values of the software CUDA device");
  new c10::RegistrationHandleRAII(std::move(handle));  // for ever
}

// Operators of bitsandbytes have kernels of its own for CUDA, which are there some time after the operator.
std::mutex late_lock;
std::vector<OperatorHandle> late;
std::atomic<bool> any_late{false};

struct Listener : c10::OpRegistrationListener {
  void onOperatorRegistered(const OperatorHandle& op) override {
    if (op.operator_name().name.rfind("bitsandbytes::", 0)) return;
    std::lock_guard<std::mutex> guard(late_lock);
    late.push_back(op);
    any_late = true;
  }
  void onOperatorDeregistered(const OperatorHandle&) override {}
};

void wrap_late_comers() {
  if (!any_late) return;
  std::vector<OperatorHandle> ready;
  {
    std::lock_guard<std::mutex> guard(late_lock);
    for (size_t i = late.size(); i-- > 0;)
      if (late[i].hasKernelForDispatchKey(DispatchKey::CUDA)) {
        ready.push_back(late[i]);
        late.erase(late.begin() + i);
      }
    any_late = !late.empty();
  }
  for (const auto& op : ready) wrap(op);
}

struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};
}  // namespace

// Called by the device when the library is loaded (source/values.cpp).
extern "C" __attribute__((visibility("default"))) void software_gpu_install() {
  Silent silent;  // torch warns when a kernel takes another's place
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames())
    if (auto op = dispatcher.findOp(name); op && operators::computes(*op)) wrap(*op);
  new c10::RegistrationHandleRAII(dispatcher.addRegistrationListener(std::make_unique<Listener>()));
}
