// The parts of a batch norm over several processes, which exist only on CUDA (SyncBatchNorm).
// Statistics are float for inputs of 16 bits, and otherwise have the type of the input.
#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "sim/torch/special_cases.hpp"

namespace uvm::sim_kernels {
namespace {

using Optional = std::optional<at::Tensor>;

bool is_given(const Optional& tensor) {
  return tensor && tensor->defined();
}
at::Tensor computed(const at::Tensor& tensor) {
  return tensor.to(at::toOpMathType(tensor.scalar_type()));
}
// Returns all dimensions except the channels.
std::vector<std::int64_t> samples_of(const at::Tensor& input) {
  std::vector<std::int64_t> dims;
  for (std::int64_t dim = 0; dim < input.dim(); ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  return dims;
}
TensorPair variance_and_mean(const at::Tensor& input) {
  return at::var_mean(computed(input), samples_of(input), /*correction=*/at::Scalar(0));
}
// Returns one value for each channel, in the shape that broadcasts to the input.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.to(at::toOpMathType(input.scalar_type())).view(shape);
}

void update(const Optional& running, const at::Tensor& value, double momentum) {
  if (is_given(running))
    running->mul_(1 - momentum).add_(value.to(running->scalar_type()), momentum);
}
// `variance` is the biased variance of `count` samples; the running statistics use the unbiased
// variance.
void update_running(const Optional& mean, const Optional& variance, const at::Tensor& batch_mean,
                    const at::Tensor& batch_variance, double count, double momentum) {
  update(mean, batch_mean, momentum);
  update(variance, batch_variance * (count / (count - 1)), momentum);
}

double samples_in(const at::Tensor& input) {
  return static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
}

}  // namespace

TensorPair batch_norm_stats(const at::Tensor& input, double epsilon) {
  const auto [variance, mean] = variance_and_mean(input);
  return {mean, (variance + epsilon).rsqrt()};
}

TensorPair batch_norm_update_stats(const at::Tensor& input, const Optional& running_mean,
                                   const Optional& running_variance, double momentum) {
  const auto [variance, mean] = variance_and_mean(input);
  update_running(running_mean, running_variance, mean, variance, samples_in(input), momentum);
  return {mean, variance};
}

TensorPair batch_norm_gather_stats_with_counts(const at::Tensor&, const at::Tensor& means,
                                               const at::Tensor& inverse_deviations,
                                               const Optional& running_mean,
                                               const Optional& running_variance, double momentum,
                                               double epsilon, const at::Tensor& counts) {
  const at::Tensor weights = counts.to(means.scalar_type()).view({-1, 1});
  const at::Tensor count = weights.sum();
  const at::Tensor mean = (means * weights).sum(0) / count;
  const at::Tensor variances = inverse_deviations.pow(-2) - epsilon;
  const at::Tensor variance = ((variances + (means - mean).square()) * weights).sum(0) / count;
  update_running(running_mean, running_variance, mean, variance, count.item<double>(), momentum);
  return {mean, (variance + epsilon).rsqrt()};
}

TensorPair batch_norm_gather_stats(const at::Tensor& input, const at::Tensor& means,
                                   const at::Tensor& inverse_deviations,
                                   const Optional& running_mean, const Optional& running_variance,
                                   double momentum, double epsilon, std::int64_t count) {
  const at::Tensor counts = at::full({means.size(0)}, count, means.options());
  return at::batch_norm_gather_stats_with_counts(input, means, inverse_deviations, running_mean,
                                                 running_variance, momentum, epsilon, counts);
}

at::Tensor batch_norm_elemt(const at::Tensor& input, const Optional& weight, const Optional& bias,
                            const at::Tensor& mean, const at::Tensor& inverse_deviation, double) {
  at::Tensor output =
      (computed(input) - by_channel(mean, input)) * by_channel(inverse_deviation, input);
  if (is_given(weight)) output = output * by_channel(*weight, input);
  if (is_given(bias)) output = output + by_channel(*bias, input);
  return output.to(input.scalar_type());
}

at::Tensor& batch_norm_elemt_out(const at::Tensor& input, const Optional& weight,
                                 const Optional& bias, const at::Tensor& mean,
                                 const at::Tensor& inverse_deviation, double epsilon,
                                 at::Tensor& out) {
  return out.copy_(at::batch_norm_elemt(input, weight, bias, mean, inverse_deviation, epsilon));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batch_norm_backward_reduce(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
    const at::Tensor& inverse_deviation, const Optional& weight, bool for_input, bool for_weight,
    bool for_bias) {
  const at::Tensor given = computed(gradient);
  const at::Tensor sum = given.sum(samples_of(input));
  const at::Tensor product =
      (given * (computed(input) - by_channel(mean, input))).sum(samples_of(input));
  const auto type = is_given(weight) ? weight->scalar_type() : sum.scalar_type();
  return {for_input ? sum : at::Tensor(), for_input ? product : at::Tensor(),
          for_weight ? (product * inverse_deviation).to(type) : at::Tensor(),
          for_bias ? sum.to(type) : at::Tensor()};
}

at::Tensor batch_norm_backward_elemt(const at::Tensor& gradient, const at::Tensor& input,
                                     const at::Tensor& mean, const at::Tensor& inverse_deviation,
                                     const Optional& weight, const at::Tensor& sum,
                                     const at::Tensor& product, const at::Tensor& counts) {
  const at::Tensor count = counts.sum().to(sum.scalar_type());
  const at::Tensor scale = by_channel(inverse_deviation, input);
  at::Tensor output = computed(gradient) - by_channel(sum / count, input) -
                      (computed(input) - by_channel(mean, input)) * scale.square() *
                          by_channel(product / count, input);
  output = output * scale;
  if (is_given(weight)) output = output * by_channel(*weight, input);
  return output.to(input.scalar_type());
}

}  // namespace uvm::sim_kernels
