// Nested tensors. This file implements operators that have their own CUDA kernels by plain
// operators. The other operators are compositions for all devices, and are not replaced.
#include <ATen/ATen.h>
#include <ATen/ops/_nested_from_padded_native.h>
#include <ATen/ops/bmm_native.h>
#include <ATen/ops/to_padded_tensor_native.h>

#include "sim/torch/redirect.hpp"
#include "sim/torch/special_cases.hpp"

namespace uvm::sim_kernels {
namespace {

constexpr std::int64_t kKeyPaddingMask = 1;

// Sequences of different lengths in one padded tensor, and a mask of the padding.
struct Padded {
  at::Tensor values;
  at::Tensor mask;
};

Padded pad(const at::Tensor& nested) {
  const at::Tensor values = nested.to_padded_tensor(0);
  const at::Tensor sizes = nested._nested_tensor_size();
  const at::Tensor positions = at::arange(values.size(1), sizes.options()).unsqueeze(0);
  return {values, positions.ge(sizes.select(1, 0).unsqueeze(1)).to(nested.device())};
}

TensorPair multi_head_attention(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, std::int64_t embed_dim,
                                std::int64_t head_count, const at::Tensor& qkv_weight,
                                const at::Tensor& qkv_bias, const at::Tensor& proj_weight,
                                const at::Tensor& proj_bias, const std::optional<at::Tensor>& mask,
                                bool need_weights, bool average_weights,
                                std::optional<std::int64_t>) {
  TORCH_CHECK(!mask, "NestedTensor with mask is not supported at this point");
  // The dense operator checks whether its arguments are the same tensor, so pad each tensor once.
  const Padded padded = pad(key);
  const auto padded_as_key = [&](const at::Tensor& other) {
    return other.is_same(key) ? padded.values : other.to_padded_tensor(0);
  };
  auto [attended, weights] = at::_native_multi_head_attention(
      padded_as_key(query), padded.values, padded_as_key(value), embed_dim, head_count, qkv_weight,
      qkv_bias, proj_weight, proj_bias, padded.mask, need_weights, average_weights,
      kKeyPaddingMask);
  return {at::_nested_from_padded(attended, query._nested_tensor_size()), weights};
}

at::Tensor transformer_encoder_layer(
    const at::Tensor& source, std::int64_t embed_dim, std::int64_t head_count,
    const at::Tensor& qkv_weight, const at::Tensor& qkv_bias, const at::Tensor& proj_weight,
    const at::Tensor& proj_bias, bool use_gelu, bool norm_first, double epsilon,
    const at::Tensor& norm_weight_1, const at::Tensor& norm_bias_1, const at::Tensor& norm_weight_2,
    const at::Tensor& norm_bias_2, const at::Tensor& ffn_weight_1, const at::Tensor& ffn_bias_1,
    const at::Tensor& ffn_weight_2, const at::Tensor& ffn_bias_2,
    const std::optional<at::Tensor>& mask, std::optional<std::int64_t>) {
  TORCH_CHECK(!mask, "NestedTensor with mask is not supported at this point");
  const Padded padded = pad(source);
  const at::Tensor result = at::_transformer_encoder_layer_fwd(
      padded.values, embed_dim, head_count, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu,
      norm_first, epsilon, norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1,
      ffn_bias_1, ffn_weight_2, ffn_bias_2, padded.mask, kKeyPaddingMask);
  return at::_nested_from_padded(result, source._nested_tensor_size());
}

}  // namespace

at::Tensor nested_from_padded(const at::Tensor& padded, const at::Tensor& sizes, bool transposes) {
  return at::native::nested_from_padded_generic(padded, sizes, transposes);
}

std::vector<SpecialCase> nested_special_cases() {
  std::vector<SpecialCase> cases;
  const auto add = [&](const char* name, auto function) {
    cases.push_back({name, torch::CppFunction(function)});
  };
  add("to_padded_tensor", TORCH_FN(at::native::NestedTensor_to_padded_tensor_generic));
  add("bmm", TORCH_FN(at::native::bmm_nested));
  add("_native_multi_head_attention", TORCH_FN(multi_head_attention));
  add("_transformer_encoder_layer_fwd", TORCH_FN(transformer_encoder_layer));
  add("_fused_sdp_choice", TORCH_FN(math_attention));
  for (const char* name :
       {"_nested_tensor_softmax_with_shape", "_transform_bias_rescale_qkv",
        "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention"}) {
    cases.push_back(
        {name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<UnavailableOperator>())});
  }
  return cases;
}

}  // namespace uvm::sim_kernels
