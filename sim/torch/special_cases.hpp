// Operators that need more than their CPU kernel on the same bytes. To add an operator, write a
// function with the operator's C++ signature and add the function to the table in
// special_cases.cpp, which registers it for the key CUDA instead of the redirect. The function may
// call other operators on its CUDA tensors, or the redirect itself through DirectCall.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <string>
#include <tuple>
#include <vector>

namespace uvm::sim_kernels {

struct SpecialCase {
  std::string name;  // without the namespace: "copy_", "_use_cudnn_ctc_loss.Tensor"
  torch::CppFunction function;
};

std::vector<SpecialCase> special_cases();

// nested.cpp: special cases for nested tensors, under the key NestedTensorCUDA.
std::vector<SpecialCase> nested_special_cases();
at::Tensor nested_from_padded(const at::Tensor& padded, const at::Tensor& sizes, bool transposes);

// Makes scaled_dot_product_attention use its composition of plain operators, whatever backends the
// program enables.
void choose_math_attention();
std::int64_t math_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const std::optional<at::Tensor>& mask, double dropout, bool causal,
                            std::optional<double> scale, bool grouped);

// flash_attention.cpp
std::vector<SpecialCase> flash_attention_special_cases();

// copy.cpp
at::Tensor& copy_(at::Tensor& self, const at::Tensor& source, bool non_blocking);
void foreach_copy_(at::TensorList self, at::TensorList source, bool non_blocking);

// recurrent_cells.cpp: the fused cells that LSTM and GRU use on CUDA if cuDNN is not acceptable.
using TensorPair = std::tuple<at::Tensor, at::Tensor>;
using TensorTriple = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using TensorQuintuple = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

TensorTriple fused_lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                             const at::Tensor& cx, const std::optional<at::Tensor>& input_bias,
                             const std::optional<at::Tensor>& hidden_bias);
TensorTriple fused_lstm_cell_backward(const std::optional<at::Tensor>& grad_hy,
                                      const std::optional<at::Tensor>& grad_cy,
                                      const at::Tensor& cx, const at::Tensor& cy,
                                      const at::Tensor& workspace, bool has_bias);
TensorPair fused_gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                          const at::Tensor& hx, const std::optional<at::Tensor>& input_bias,
                          const std::optional<at::Tensor>& hidden_bias);
TensorQuintuple fused_gru_cell_backward(const at::Tensor& grad_hy, const at::Tensor& workspace,
                                        bool has_bias);

// batch_norm_parts.cpp
TensorPair batch_norm_stats(const at::Tensor& input, double epsilon);
TensorPair batch_norm_update_stats(const at::Tensor& input,
                                   const std::optional<at::Tensor>& running_mean,
                                   const std::optional<at::Tensor>& running_variance,
                                   double momentum);
TensorPair batch_norm_gather_stats(const at::Tensor& input, const at::Tensor& means,
                                   const at::Tensor& inverse_deviations,
                                   const std::optional<at::Tensor>& running_mean,
                                   const std::optional<at::Tensor>& running_variance,
                                   double momentum, double epsilon, std::int64_t count);
TensorPair batch_norm_gather_stats_with_counts(const at::Tensor& input, const at::Tensor& means,
                                               const at::Tensor& inverse_deviations,
                                               const std::optional<at::Tensor>& running_mean,
                                               const std::optional<at::Tensor>& running_variance,
                                               double momentum, double epsilon,
                                               const at::Tensor& counts);
at::Tensor batch_norm_elemt(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                            const std::optional<at::Tensor>& bias, const at::Tensor& mean,
                            const at::Tensor& inverse_deviation, double epsilon);
at::Tensor& batch_norm_elemt_out(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                                 const std::optional<at::Tensor>& bias, const at::Tensor& mean,
                                 const at::Tensor& inverse_deviation, double epsilon,
                                 at::Tensor& out);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_backward_reduce(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
    const at::Tensor& inverse_deviation, const std::optional<at::Tensor>& weight, bool for_input,
    bool for_weight, bool for_bias);
at::Tensor batch_norm_backward_elemt(const at::Tensor& gradient, const at::Tensor& input,
                                     const at::Tensor& mean, const at::Tensor& inverse_deviation,
                                     const std::optional<at::Tensor>& weight, const at::Tensor& sum,
                                     const at::Tensor& product, const at::Tensor& counts);

}  // namespace uvm::sim_kernels
