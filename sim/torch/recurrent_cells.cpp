// The fused LSTM and GRU cells, composed of plain operators on CUDA tensors. Only the cells' own
// backward functions read the workspaces, so any layout is allowed. The workspaces contain the
// activated gates and, for GRU, further values for the derivative.
#include <ATen/ATen.h>

#include "sim/torch/special_cases.hpp"

namespace uvm::sim_kernels {
namespace {

at::Tensor with_bias(const at::Tensor& gates, const std::optional<at::Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

at::Tensor bias_gradient(const at::Tensor& grad_gates, bool has_bias) {
  return has_bias ? grad_gates.sum(0) : at::Tensor();
}

at::Tensor value_or_zeros(const std::optional<at::Tensor>& tensor, const at::Tensor& like) {
  return tensor && tensor->defined() ? *tensor : at::zeros_like(like);
}

}  // namespace

TensorTriple fused_lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                             const at::Tensor& cx, const std::optional<at::Tensor>& input_bias,
                             const std::optional<at::Tensor>& hidden_bias) {
  const at::Tensor gates =
      with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  const auto chunks = gates.chunk(4, 1);
  const at::Tensor input = chunks[0].sigmoid();
  const at::Tensor forget = chunks[1].sigmoid();
  const at::Tensor cell = chunks[2].tanh();
  const at::Tensor output = chunks[3].sigmoid();
  const at::Tensor cy = forget * cx + input * cell;
  return {output * cy.tanh(), cy, at::cat({input, forget, cell, output}, 1)};
}

TensorTriple fused_lstm_cell_backward(const std::optional<at::Tensor>& grad_hy,
                                      const std::optional<at::Tensor>& grad_cy,
                                      const at::Tensor& cx, const at::Tensor& cy,
                                      const at::Tensor& workspace, bool has_bias) {
  const bool any_gradient = (grad_hy && grad_hy->defined()) || (grad_cy && grad_cy->defined());
  if (!any_gradient) return {};
  const auto chunks = workspace.chunk(4, 1);
  const at::Tensor &input = chunks[0], &forget = chunks[1], &cell = chunks[2], &output = chunks[3];
  const at::Tensor grad_output = value_or_zeros(grad_hy, cy);
  const at::Tensor cy_tanh = cy.tanh();
  const at::Tensor grad_cell_state =
      at::tanh_backward(grad_output * output, cy_tanh) + value_or_zeros(grad_cy, cy);
  const at::Tensor grad_gates = at::cat({at::sigmoid_backward(grad_cell_state * cell, input),
                                         at::sigmoid_backward(grad_cell_state * cx, forget),
                                         at::tanh_backward(grad_cell_state * input, cell),
                                         at::sigmoid_backward(grad_output * cy_tanh, output)},
                                        1);
  return {grad_gates, grad_cell_state * forget, bias_gradient(grad_gates, has_bias)};
}

TensorPair fused_gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                          const at::Tensor& hx, const std::optional<at::Tensor>& input_bias,
                          const std::optional<at::Tensor>& hidden_bias) {
  const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor reset = (from_input[0] + from_hidden[0]).sigmoid();
  const at::Tensor update = (from_input[1] + from_hidden[1]).sigmoid();
  const at::Tensor candidate = (from_input[2] + reset * from_hidden[2]).tanh();
  const at::Tensor hy = candidate + update * (hx - candidate);
  return {hy, at::cat({reset, update, candidate, hx, from_hidden[2]}, 1)};
}

TensorQuintuple fused_gru_cell_backward(const at::Tensor& grad_hy, const at::Tensor& workspace,
                                        bool has_bias) {
  const auto chunks = workspace.chunk(5, 1);
  const at::Tensor &reset = chunks[0], &update = chunks[1], &candidate = chunks[2], &hx = chunks[3];
  const at::Tensor& hidden_candidate = chunks[4];
  const at::Tensor grad_update = at::sigmoid_backward(grad_hy * (hx - candidate), update);
  const at::Tensor grad_candidate = at::tanh_backward(grad_hy * (1 - update), candidate);
  const at::Tensor grad_reset = at::sigmoid_backward(grad_candidate * hidden_candidate, reset);
  const at::Tensor grad_input_gates = at::cat({grad_reset, grad_update, grad_candidate}, 1);
  const at::Tensor grad_hidden_gates =
      at::cat({grad_reset, grad_update, grad_candidate * reset}, 1);
  return {grad_input_gates, grad_hidden_gates, grad_hy * update,
          bias_gradient(grad_input_gates, has_bias), bias_gradient(grad_hidden_gates, has_bias)};
}

}  // namespace uvm::sim_kernels
