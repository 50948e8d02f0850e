#include "sim/torch/special_cases.hpp"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>

#include "sim/torch/redirect.hpp"

namespace uvm::sim_kernels {
namespace {

// ---- softmax: half input with float output exists only on CUDA

at::Tensor softmax(const at::Tensor& self, std::int64_t dim, bool half_to_float) {
  static const DirectCall on_cpu("aten::_softmax");
  return on_cpu.call<at::Tensor>(half_to_float ? self.to(at::kFloat) : self, dim, false);
}

at::Tensor log_softmax(const at::Tensor& self, std::int64_t dim, bool half_to_float) {
  static const DirectCall on_cpu("aten::_log_softmax");
  return on_cpu.call<at::Tensor>(half_to_float ? self.to(at::kFloat) : self, dim, false);
}

at::Tensor softmax_backward(const at::Tensor& grad, const at::Tensor& output, std::int64_t dim,
                            at::ScalarType input_dtype) {
  static const DirectCall on_cpu("aten::_softmax_backward_data");
  return on_cpu.call<at::Tensor>(grad, output, dim, grad.scalar_type()).to(input_dtype);
}

at::Tensor log_softmax_backward(const at::Tensor& grad, const at::Tensor& output, std::int64_t dim,
                                at::ScalarType input_dtype) {
  static const DirectCall on_cpu("aten::_log_softmax_backward_data");
  return on_cpu.call<at::Tensor>(grad, output, dim, grad.scalar_type()).to(input_dtype);
}

// ---- dropout: the one random operator without a generator argument

TensorPair native_dropout(const at::Tensor& input, double probability, std::optional<bool> train) {
  const auto mask_options = input.options().dtype(at::kBool);
  if (input.numel() == 0 || !train.value_or(true)) {
    return {input.clone(), at::ones_like(input, mask_options)};
  }
  if (probability == 1) return {at::zeros_like(input), at::zeros_like(input, mask_options)};
  const double keep = 1 - probability;
  const at::Tensor mask = at::empty_like(input, mask_options).bernoulli_(keep);
  return {input.mul(mask).mul_(1 / keep), mask};
}

// ---- cuDNN: plain operators replace its operators, and its libraries are never used

at::Tensor cudnn_convolution(const at::Tensor& self, const at::Tensor& weight,
                             at::IntArrayRef padding, at::IntArrayRef stride,
                             at::IntArrayRef dilation, std::int64_t groups, bool, bool, bool) {
  const std::vector<std::int64_t> no_output_padding(padding.size(), 0);
  return at::convolution(self, weight, {}, stride, padding, dilation, false, no_output_padding,
                         groups);
}

at::Tensor cudnn_convolution_transpose(const at::Tensor& self, const at::Tensor& weight,
                                       at::IntArrayRef padding, at::IntArrayRef output_padding,
                                       at::IntArrayRef stride, at::IntArrayRef dilation,
                                       std::int64_t groups, bool, bool, bool) {
  return at::convolution(self, weight, {}, stride, padding, dilation, true, output_padding, groups);
}

at::Tensor cudnn_convolution_relu(const at::Tensor& self, const at::Tensor& weight,
                                  const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                  at::IntArrayRef padding, at::IntArrayRef dilation,
                                  std::int64_t groups) {
  const std::vector<std::int64_t> no_output_padding(padding.size(), 0);
  return at::convolution(self, weight, bias, stride, padding, dilation, false, no_output_padding,
                         groups)
      .relu_();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> cudnn_batch_norm(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var,
    bool training, double exponential_average_factor, double epsilon) {
  auto [output, save_mean, save_invstd] =
      at::native_batch_norm(input, weight, bias, running_mean, running_var, training,
                            exponential_average_factor, epsilon);
  return {output, save_mean, save_invstd, at::empty({0}, input.options().dtype(at::kByte))};
}

TensorTriple cudnn_batch_norm_backward(const at::Tensor& input, const at::Tensor& grad_output,
                                       const at::Tensor& weight,
                                       const std::optional<at::Tensor>& running_mean,
                                       const std::optional<at::Tensor>& running_var,
                                       const std::optional<at::Tensor>& save_mean,
                                       const std::optional<at::Tensor>& save_var, double epsilon,
                                       const at::Tensor&) {
  return at::native_batch_norm_backward(grad_output, input, weight, running_mean, running_var,
                                        save_mean, save_var,
                                        /*train=*/true, epsilon, {true, true, true});
}

// cuDNN samples bilinearly, uses zeros outside the input, and aligns corners.
constexpr std::int64_t kBilinear = 0;
constexpr std::int64_t kZeros = 0;

at::Tensor cudnn_grid_sampler(const at::Tensor& self, const at::Tensor& grid) {
  return at::grid_sampler_2d(self, grid, kBilinear, kZeros, /*align_corners=*/true);
}

TensorPair cudnn_grid_sampler_backward(const at::Tensor& self, const at::Tensor& grid,
                                       const at::Tensor& grad_output) {
  return at::grid_sampler_2d_backward(grad_output, self, grid, kBilinear, kZeros,
                                      /*align_corners=*/true, {true, true});
}

bool cudnn_is_acceptable(const at::Tensor&) {
  return false;
}

bool use_cudnn_ctc_loss(const at::Tensor&, const at::Tensor&, at::IntArrayRef, at::IntArrayRef,
                        std::int64_t) {
  return false;
}

bool use_cudnn_ctc_loss_tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                               const at::Tensor&, std::int64_t) {
  return false;
}

// Returns without a change, because only cuDNN needs the weights in one buffer.
at::Tensor cudnn_rnn_flatten_weight(at::TensorList weights, std::int64_t, std::int64_t,
                                    std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool,
                                    bool) {
  TORCH_CHECK(!weights.empty(), "_cudnn_rnn_flatten_weight: cannot flatten empty weight list");
  return at::empty({0}, weights[0].options());
}

// ---- root mean square norm: the backward of the fused operator has only a CUDA kernel

TensorPair fused_rms_norm_backward(const at::Tensor& grad_output, const at::Tensor& input,
                                   at::IntArrayRef normalized_shape, const at::Tensor& rstd,
                                   const std::optional<at::Tensor>& weight,
                                   std::array<bool, 2> output_mask) {
  const at::ScalarType compute_type = at::toOpMathType(input.scalar_type());
  const auto normalized_dims = static_cast<std::int64_t>(normalized_shape.size());
  std::vector<std::int64_t> inner;
  std::vector<std::int64_t> outer;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim) {
    (dim < input.dim() - normalized_dims ? outer : inner).push_back(dim);
  }
  const at::Tensor grad = grad_output.to(compute_type);
  const at::Tensor scale = rstd.to(compute_type);
  const at::Tensor normalized = input.to(compute_type) * scale;
  TensorPair gradients;
  if (output_mask[0]) {
    const at::Tensor weighted =
        weight && weight->defined() ? grad * weight->to(compute_type) : grad;
    const at::Tensor projection = (weighted * normalized).mean(inner, /*keepdim=*/true);
    std::get<0>(gradients) = (scale * (weighted - normalized * projection)).to(input.scalar_type());
  }
  if (output_mask[1] && weight && weight->defined()) {
    const at::Tensor product = grad * normalized;
    std::get<1>(gradients) =
        (outer.empty() ? product : product.sum(outer)).to(weight->scalar_type());
  }
  return gradients;
}

// ---- types that only CUDA's kernels support: computed in a larger type

template <class... Arguments>
at::Tensor transform(const DirectCall& on_cpu, at::ScalarType half_result, const at::Tensor& self,
                     Arguments... arguments) {
  const at::ScalarType type = self.scalar_type();
  if (type != at::kHalf && type != at::kComplexHalf)
    return on_cpu.call<at::Tensor>(self, arguments...);
  const at::Tensor in_float = self.to(type == at::kHalf ? at::kFloat : at::kComplexFloat);
  return on_cpu.call<at::Tensor>(in_float, arguments...).to(half_result);
}

at::Tensor fft_r2c(const at::Tensor& self, at::IntArrayRef dims, std::int64_t normalization,
                   bool one_sided) {
  static const DirectCall on_cpu("aten::_fft_r2c");
  return transform(on_cpu, at::kComplexHalf, self, dims, normalization, one_sided);
}

at::Tensor fft_c2r(const at::Tensor& self, at::IntArrayRef dims, std::int64_t normalization,
                   std::int64_t last_size) {
  static const DirectCall on_cpu("aten::_fft_c2r");
  return transform(on_cpu, at::kHalf, self, dims, normalization, last_size);
}

at::Tensor fft_c2c(const at::Tensor& self, at::IntArrayRef dims, std::int64_t normalization,
                   bool forward) {
  static const DirectCall on_cpu("aten::_fft_c2c");
  return transform(on_cpu, at::kComplexHalf, self, dims, normalization, forward);
}

at::Tensor histc(const at::Tensor& self, std::int64_t bins, const at::Scalar& least,
                 const at::Scalar& most) {
  static const DirectCall on_cpu("aten::histc");
  const bool is_integral = at::isIntegralType(self.scalar_type(), /*includeBool=*/false);
  const at::Tensor counted =
      on_cpu.call<at::Tensor>(is_integral ? self.to(at::kDouble) : self, bins, least, most);
  return counted.to(self.scalar_type());
}

// ---- matrix products with a separate output type

// Accepts the same output types as cuBLAS: the type of the operands, or float for products of 16
// bits.
void check_output_type(const at::Tensor& operand, at::ScalarType output_type) {
  const at::ScalarType type = operand.scalar_type();
  const bool is_short = type == at::kHalf || type == at::kBFloat16;
  TORCH_CHECK(output_type == type || (is_short && output_type == at::kFloat),
              "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
}

at::Tensor mm_dtype(const at::Tensor& self, const at::Tensor& other, at::ScalarType output_type) {
  check_output_type(self, output_type);
  return at::mm(self.to(output_type), other.to(output_type));
}

at::Tensor& mm_dtype_out(const at::Tensor& self, const at::Tensor& other,
                         at::ScalarType output_type, at::Tensor& out) {
  check_output_type(self, output_type);
  return at::mm_out(out, self.to(output_type), other.to(output_type));
}

at::Tensor bmm_dtype(const at::Tensor& self, const at::Tensor& other, at::ScalarType output_type) {
  check_output_type(self, output_type);
  return at::bmm(self.to(output_type), other.to(output_type));
}

at::Tensor& bmm_dtype_out(const at::Tensor& self, const at::Tensor& other,
                          at::ScalarType output_type, at::Tensor& out) {
  check_output_type(self, output_type);
  return at::bmm_out(out, self.to(output_type), other.to(output_type));
}

at::Tensor addmm_dtype(const at::Tensor& self, const at::Tensor& left, const at::Tensor& right,
                       at::ScalarType output_type, const at::Scalar& beta,
                       const at::Scalar& alpha) {
  check_output_type(left, output_type);
  return at::addmm(self.to(output_type), left.to(output_type), right.to(output_type), beta, alpha);
}

at::Tensor& addmm_dtype_out(const at::Tensor& self, const at::Tensor& left, const at::Tensor& right,
                            at::ScalarType output_type, const at::Scalar& beta,
                            const at::Scalar& alpha, at::Tensor& out) {
  check_output_type(left, output_type);
  return at::addmm_out(out, self.to(output_type), left.to(output_type), right.to(output_type), beta,
                       alpha);
}

at::Tensor baddbmm_dtype(const at::Tensor& self, const at::Tensor& left, const at::Tensor& right,
                         at::ScalarType output_type, const at::Scalar& beta,
                         const at::Scalar& alpha) {
  check_output_type(left, output_type);
  return at::baddbmm(self.to(output_type), left.to(output_type), right.to(output_type), beta,
                     alpha);
}

at::Tensor& baddbmm_dtype_out(const at::Tensor& self, const at::Tensor& left,
                              const at::Tensor& right, at::ScalarType output_type,
                              const at::Scalar& beta, const at::Scalar& alpha, at::Tensor& out) {
  check_output_type(left, output_type);
  return at::baddbmm_out(out, self.to(output_type), left.to(output_type), right.to(output_type),
                         beta, alpha);
}

}  // namespace

// ---- attention

std::int64_t math_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                            const std::optional<at::Tensor>&, double, bool, std::optional<double>,
                            bool) {
  return static_cast<std::int64_t>(sdp::SDPBackend::math);
}

void choose_math_attention() {
  // scaled_dot_product_attention calls this stub instead of the operator _fused_sdp_choice.
  at::native::_fused_sdp_choice_stub.set_cuda_dispatch_ptr(&math_attention);
}

std::vector<SpecialCase> special_cases() {
  std::vector<SpecialCase> cases;
  const auto add = [&](const char* name, auto function) {
    cases.push_back({name, torch::CppFunction(function)});
  };
  add("copy_", TORCH_FN(copy_));
  add("_foreach_copy_", TORCH_FN(foreach_copy_));
  add("_softmax", TORCH_FN(softmax));
  add("_log_softmax", TORCH_FN(log_softmax));
  add("_softmax_backward_data", TORCH_FN(softmax_backward));
  add("_log_softmax_backward_data", TORCH_FN(log_softmax_backward));
  add("native_dropout", TORCH_FN(native_dropout));
  add("cudnn_convolution", TORCH_FN(cudnn_convolution));
  add("cudnn_convolution_transpose", TORCH_FN(cudnn_convolution_transpose));
  add("cudnn_convolution_relu", TORCH_FN(cudnn_convolution_relu));
  add("cudnn_batch_norm", TORCH_FN(cudnn_batch_norm));
  add("cudnn_batch_norm_backward", TORCH_FN(cudnn_batch_norm_backward));
  add("cudnn_grid_sampler", TORCH_FN(cudnn_grid_sampler));
  add("cudnn_grid_sampler_backward", TORCH_FN(cudnn_grid_sampler_backward));
  add("cudnn_is_acceptable", TORCH_FN(cudnn_is_acceptable));
  add("_use_cudnn_ctc_loss", TORCH_FN(use_cudnn_ctc_loss));
  add("_use_cudnn_ctc_loss.Tensor", TORCH_FN(use_cudnn_ctc_loss_tensor));
  add("_cudnn_rnn_flatten_weight", TORCH_FN(cudnn_rnn_flatten_weight));
  add("_thnn_fused_lstm_cell", TORCH_FN(fused_lstm_cell));
  add("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(fused_lstm_cell_backward));
  add("_thnn_fused_gru_cell", TORCH_FN(fused_gru_cell));
  add("_thnn_fused_gru_cell_backward", TORCH_FN(fused_gru_cell_backward));
  add("_fused_rms_norm_backward", TORCH_FN(fused_rms_norm_backward));
  add("batch_norm_stats", TORCH_FN(batch_norm_stats));
  add("batch_norm_update_stats", TORCH_FN(batch_norm_update_stats));
  add("batch_norm_gather_stats", TORCH_FN(batch_norm_gather_stats));
  add("batch_norm_gather_stats_with_counts", TORCH_FN(batch_norm_gather_stats_with_counts));
  add("batch_norm_elemt", TORCH_FN(batch_norm_elemt));
  add("batch_norm_elemt.out", TORCH_FN(batch_norm_elemt_out));
  add("batch_norm_backward_reduce", TORCH_FN(batch_norm_backward_reduce));
  add("batch_norm_backward_elemt", TORCH_FN(batch_norm_backward_elemt));
  add("_fft_r2c", TORCH_FN(fft_r2c));
  add("_fft_c2r", TORCH_FN(fft_c2r));
  add("_fft_c2c", TORCH_FN(fft_c2c));
  add("histc", TORCH_FN(histc));
  add("mm.dtype", TORCH_FN(mm_dtype));
  add("mm.dtype_out", TORCH_FN(mm_dtype_out));
  add("bmm.dtype", TORCH_FN(bmm_dtype));
  add("bmm.dtype_out", TORCH_FN(bmm_dtype_out));
  add("addmm.dtype", TORCH_FN(addmm_dtype));
  add("addmm.dtype_out", TORCH_FN(addmm_dtype_out));
  add("baddbmm.dtype", TORCH_FN(baddbmm_dtype));
  add("baddbmm.dtype_out", TORCH_FN(baddbmm_dtype_out));
  add("_fused_sdp_choice", TORCH_FN(math_attention));
  add("_nested_from_padded", TORCH_FN(nested_from_padded));
  for (SpecialCase& special_case : flash_attention_special_cases())
    cases.push_back(std::move(special_case));
  return cases;
}

}  // namespace uvm::sim_kernels
