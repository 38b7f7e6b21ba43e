#include "operators.hpp"

#include <algorithm>
#include <set>

namespace {
// They give, change or keep memory, and compute nothing; what they read of it is there.
const std::set<std::string> ONLY_MEMORY{
    "resize_", "resize_as_", "set_", "record_stream", "is_set_to", "_pin_memory", "is_pinned",
    "_resize_output_", "_assert_async", "_cudnn_rnn_flatten_weight", "_fused_sdp_choice", "_use_cudnn_ctc_loss", "_use_miopen_ctc_loss", "empty", "empty_strided",
    "_empty_affine_quantized", "_empty_per_channel_affine_quantized", "_efficientzerotensor", "_cudnn_init_dropout_state"};

// They are not run on the device: how large their results are depends on values, or libraries that are not there (cuFFT,
// cuSOLVER) would say how large a workspace is, or what they keep for the backward pass is laid out as on a CPU.
const std::set<std::string> ON_A_CPU_ALONE{
    "nonzero", "_unique2", "unique_dim", "unique_consecutive", "_unique", "masked_select", "geqrf", "ormqr", "cholesky",
    "cholesky_inverse", "_cholesky_solve_helper", "triangular_solve", "lu_solve", "lu_unpack", "_embedding_bag",
    "_embedding_bag_forward_only", "_embedding_bag_dense_backward", "_embedding_bag_per_sample_weights_backward", "_ctc_loss",
    "_ctc_loss_backward"};
// 16 bits are added up in 32, as the device does.
const std::set<std::string> IN_32_BITS{
    "mm", "addmm", "bmm", "baddbmm", "addmv", "dot", "convolution_backward", "cudnn_convolution",
    "cudnn_convolution_transpose", "_conv_depthwise2d", "native_layer_norm", "native_layer_norm_backward",
    "native_group_norm", "native_group_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward", "native_batch_norm",
    "native_batch_norm_backward", "cudnn_batch_norm", "cudnn_batch_norm_backward", "batch_norm_backward",
    "_batch_norm_with_update", "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data",
    "nll_loss_forward", "nll_loss_backward", "embedding_dense_backward"};

// Composite kernels that launch by themselves.
const std::set<std::string> COMPOSITE{"copy_", "ldexp", "ldexp_"};

// Beyond it a product is not waited for, and its result is not a number: who measures the rates of a GPU reads none.
constexpr double MOST_OPERATIONS = 1e10;

double operations(const std::string& name, const values::Values& given) {
  auto numel = [&](size_t i) { return (double)given[i].toTensor().numel(); };
  auto last = [&](size_t i) { return (double)given[i].toTensor().size(-1); };
  auto weights_of_one = [&](size_t i) { return numel(i) / std::max<double>(1, (double)given[i].toTensor().size(0)); };
  if (name == "mm" || name == "bmm" || name == "_scaled_mm") return 2 * numel(0) * last(1);
  if (name == "addmm" || name == "baddbmm") return 2 * numel(1) * last(2);
  if (name == "cudnn_convolution") return 2 * numel(0) * numel(1) / std::max<double>(1, (double)given[1].toTensor().size(1));
  if (name == "convolution_backward") return 4 * numel(0) * weights_of_one(2);
  return 0;
}

bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& each : schema.returns())
    if (each.alias_info() && !each.alias_info()->isWrite()) return true;
  return false;
}
}  // namespace

bool operators::computes(const c10::OperatorHandle& op) {
  if (!op.hasSchema() || is_view(op.schema())) return false;
  const auto& name = op.schema().name();
  if (name.rfind("aten::", 0)) return false;
  auto shorter = name.substr(6);
  return !ONLY_MEMORY.count(shorter) && (op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) || COMPOSITE.count(shorter));
}

bool operators::on_a_cpu_alone(const std::string& name) {
  for (const char* family : {"_fft_", "linalg_", "_linalg_"})
    if (name.rfind(family, 0) == 0) return true;
  return ON_A_CPU_ALONE.count(name);
}

bool operators::in_32_bits(const std::string& name) { return IN_32_BITS.count(name); }

bool operators::too_long(const std::string& name, const values::Values& given) {
  return operations(name, given) > MOST_OPERATIONS;
}
