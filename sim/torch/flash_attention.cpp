// The operators of flash attention, and of cuDNN's attention over packed sequences, as plain
// operators on padded sequences. The tokens of several sequences lie one after another, and
// `cum_seq_q` and `cum_seq_k` hold the sequences' offsets. Without offsets all sequences have the
// same length, and the tensors have a dimension for the sequences. The operators read no offset on
// the host, so they can be captured. Scores and sums are in float; results are rounded once.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "sim/torch/special_cases.hpp"

namespace uvm::sim_kernels {
namespace {

using Optional = std::optional<at::Tensor>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Finds the arguments of a call by name, because new versions of torch add arguments.
class Arguments {
 public:
  Arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
      : schema_(op.schema()), values_(torch::jit::last(stack, schema_.arguments().size())) {}

  // Returns None if this version has no such argument.
  c10::IValue operator[](std::string_view name) const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (schema_.arguments()[i].name() == name) return values_[i];
    }
    return {};
  }
  at::Tensor tensor(std::string_view name) const { return (*this)[name].toTensor(); }
  Optional optional_tensor(std::string_view name) const {
    const c10::IValue value = (*this)[name];
    return value.isTensor() && value.toTensor().defined() ? Optional(value.toTensor())
                                                          : std::nullopt;
  }
  std::int64_t integer_or(std::string_view name, std::int64_t fallback) const {
    const c10::IValue value = (*this)[name];
    return value.isNone() ? fallback : value.toInt();
  }
  void refuse(std::string_view name, bool is_used) const {
    TORCH_CHECK_NOT_IMPLEMENTED(!is_used, schema_.name(), " with ", name,
                                " is not available on the simulated device");
  }

 private:
  const c10::FunctionSchema& schema_;
  c10::ArrayRef<c10::IValue> values_;
};

// The sequences of queries or of keys, and the positions of their tokens in a padded tensor.
class Sequences {
 public:
  // `offsets` has one element more than there are sequences. `used`: the number of
  // valid tokens at the beginning of each sequence; if absent, all tokens are valid.
  Sequences(const at::Tensor& offsets, std::int64_t longest, std::int64_t total,
            const Optional& used = std::nullopt)
      : count_(offsets.numel() - 1), longest_(longest) {
    TORCH_CHECK(offsets.scalar_type() == at::kInt, "offsets of sequences must have type int32");
    const at::Tensor starts = offsets.narrow(0, 0, count_);
    lengths_ = used.value_or(offsets.narrow(0, 1, count_) - starts);
    places_ = at::arange(longest, offsets.options());
    tokens_ = (starts.unsqueeze(1) + places_).clamp(0, std::max<std::int64_t>(total - 1, 0));
    const at::Tensor all = at::arange(total, offsets.options());
    const at::Tensor sequence =
        (at::searchsorted(offsets, all, /*out_int32=*/false, /*right=*/true) - 1)
            .clamp(0, std::max<std::int64_t>(count_ - 1, 0));
    const at::Tensor place = all - offsets.index_select(0, sequence);
    padded_places_ = sequence * longest + place.clamp(0, std::max<std::int64_t>(longest - 1, 0));
    is_unused_ = place.ge(lengths_.index_select(0, sequence));
  }

  const at::Tensor& lengths() const { return lengths_; }
  const at::Tensor& places() const { return places_; }
  at::Tensor are_valid() const { return places_.lt(lengths_.unsqueeze(1)); }

  // Pads a tensor [token, head, value] to [sequence, head, position, value].
  at::Tensor pad(const at::Tensor& packed) const {
    if (packed.size(0) == 0)
      return at::zeros({count_, packed.size(1), longest_, packed.size(2)},
                       packed.options().dtype(at::kFloat));
    return packed.index_select(0, tokens_.flatten())
        .view({count_, longest_, packed.size(1), packed.size(2)})
        .to(at::kFloat)
        .masked_fill(are_valid().logical_not().unsqueeze(-1).unsqueeze(-1), 0)
        .transpose(1, 2);
  }

  at::Tensor pack(const at::Tensor& padded) const {
    return padded.transpose(1, 2)
        .reshape({count_ * longest_, padded.size(1), padded.size(3)})
        .index_select(0, padded_places_)
        .masked_fill(is_unused_.unsqueeze(-1).unsqueeze(-1), 0);
  }

 private:
  std::int64_t count_;
  std::int64_t longest_;
  at::Tensor lengths_;        // length of each sequence
  at::Tensor places_;         // 0 to longest_ - 1
  at::Tensor tokens_;         // token index of each sequence and position
  at::Tensor padded_places_;  // position of each token in the padded tensor
  at::Tensor is_unused_;      // whether each token is unused
};

Sequences sequences_of(const Arguments& arguments, std::string_view offsets_name,
                       std::string_view longest_name, const at::Tensor& tokens,
                       const Optional& used = std::nullopt) {
  if (const Optional offsets = arguments.optional_tensor(offsets_name))
    return {*offsets, arguments[longest_name].toInt(), tokens.size(0), used};
  const std::int64_t length = tokens.size(1);
  const auto options = tokens.options().dtype(at::kInt);
  return {at::arange(tokens.size(0) + 1, options) * length, length, tokens.size(0) * length, used};
}

// Makes the same checks as the real operators.
void check(const Arguments& arguments, const at::Tensor& query, const at::Tensor& key) {
  const at::ScalarType type = query.scalar_type();
  TORCH_CHECK(type == at::kHalf || type == at::kBFloat16,
              "attention of packed sequences accepts the dtypes fp16 and bf16, not ", type);
  TORCH_CHECK(key.scalar_type() == type && arguments.tensor("value").scalar_type() == type,
              "query, key and value must have the same dtype");
  TORCH_CHECK(query.size(-1) <= 256 && query.size(-1) % 8 == 0,
              "head_size must be a multiple of 8 and at most 256, got ", query.size(-1));
  TORCH_CHECK(query.size(-2) % key.size(-2) == 0,
              "Number of heads in key/value must divide number of heads in query");
  const c10::IValue dropout = arguments["dropout_p"];
  arguments.refuse("dropout", !dropout.isNone() && dropout.toDouble() != 0);
  for (const std::string_view name : {"alibi_slopes", "attn_bias", "block_table"})
    arguments.refuse(name, arguments.optional_tensor(name).has_value());
}

at::Tensor packed(const at::Tensor& tokens) {
  return tokens.dim() == 4 ? tokens.flatten(0, 1) : tokens;
}

// The part that forward and backward share. Padded tensors have the dimensions [sequence, head of
// queries, position, value].
class Attention {
 public:
  // If `aligns_ends`, the last query is aligned with the last key, else the first query with the
  // first key.
  Attention(const Arguments& arguments, bool aligns_ends)
      : query_(arguments.tensor("query")),
        key_(arguments.tensor("key")),
        queries_(sequences_of(arguments, "cum_seq_q", "max_q", query_)),
        keys_(sequences_of(arguments, "cum_seq_k", "max_k", key_,
                           arguments.optional_tensor("seqused_k"))) {
    check(arguments, query_, key_);
    const c10::IValue scale = arguments["scale"];
    scale_ =
        scale.isNone() ? 1 / std::sqrt(static_cast<double>(query_.size(-1))) : scale.toDouble();
    const at::Tensor hidden = attends(arguments, aligns_ends).logical_not().unsqueeze(1);
    scores_ = (pad_query(query_).matmul(pad_key(key_).transpose(-2, -1)) * scale_)
                  .masked_fill(hidden, -kInfinity);
  }

  double scale() const { return scale_; }

  // Queries that attend to no key have the sum infinity, and therefore zero weights.
  at::Tensor logarithms_of_sums() const {
    const at::Tensor sums = scores_.logsumexp(-1);
    return sums.masked_fill(sums.eq(-kInfinity), kInfinity);
  }
  at::Tensor weights(const at::Tensor& logarithms_of_sums) const {
    return (scores_ - logarithms_of_sums.unsqueeze(-1)).exp();
  }

  at::Tensor pad_query(const at::Tensor& tokens) const { return queries_.pad(packed(tokens)); }
  // Several heads of queries may share one head of keys.
  at::Tensor pad_key(const at::Tensor& tokens) const {
    return keys_.pad(packed(tokens)).repeat_interleave(query_.size(-2) / key_.size(-2), 1);
  }
  at::Tensor query_result(const at::Tensor& padded) const {
    std::vector<std::int64_t> sizes = query_.sizes().vec();
    sizes.back() = padded.size(-1);
    return queries_.pack(padded).to(query_.scalar_type()).view(sizes);
  }
  // `like` are the keys or the values.
  at::Tensor key_result(const at::Tensor& padded, const at::Tensor& like) const {
    const at::Tensor summed = padded.unflatten(1, {like.size(-2), -1}).sum(2);
    return keys_.pack(summed).to(like.scalar_type()).view_as(like);
  }

  // With offsets, the caller's sums have the dimensions [head, token].
  at::Tensor sums_result(const at::Tensor& padded) const {
    if (query_.dim() == 4) return padded;
    return queries_.pack(padded.unsqueeze(-1)).squeeze(-1).t().contiguous();
  }
  at::Tensor pad_sums(const at::Tensor& sums) const {
    return query_.dim() == 4 ? sums : queries_.pad(sums.t().unsqueeze(-1)).squeeze(-1);
  }

 private:
  // Returns, for each sequence, query and key, whether the query attends to the key.
  at::Tensor attends(const Arguments& arguments, bool aligns_ends) const {
    at::Tensor distance = keys_.places().unsqueeze(0) - queries_.places().unsqueeze(1);
    if (aligns_ends)
      distance = distance - (keys_.lengths() - queries_.lengths()).unsqueeze(-1).unsqueeze(-1);
    at::Tensor result =
        queries_.are_valid().unsqueeze(2).logical_and(keys_.are_valid().unsqueeze(1));
    const std::int64_t left = arguments.integer_or("window_size_left", -1);
    const std::int64_t right =
        arguments["is_causal"].toBool() ? 0 : arguments.integer_or("window_size_right", -1);
    if (left >= 0) result = result.logical_and(distance.ge(-left));
    if (right >= 0) result = result.logical_and(distance.le(right));
    return result;
  }

  at::Tensor query_;
  at::Tensor key_;
  Sequences queries_;
  Sequences keys_;
  double scale_ = 1;
  at::Tensor scores_;  // minus infinity for a pair that does not attend
};

struct Attended {
  at::Tensor output;
  at::Tensor sums;
};

Attended attend(const Arguments& arguments, bool aligns_ends) {
  const Attention attention(arguments, aligns_ends);
  const at::Tensor sums = attention.logarithms_of_sums();
  const at::Tensor values = attention.pad_key(arguments.tensor("value"));
  return {attention.query_result(attention.weights(sums).matmul(values)),
          attention.sums_result(sums)};
}

torch::jit::Stack gradients(const Arguments& arguments, bool aligns_ends) {
  const Attention attention(arguments, aligns_ends);
  const at::Tensor key = arguments.tensor("key");
  const at::Tensor value = arguments.tensor("value");
  const at::Tensor gradient = attention.pad_query(arguments.tensor("grad_out"));
  const at::Tensor output = attention.pad_query(arguments.tensor("out"));
  const at::Tensor weights = attention.weights(attention.pad_sums(arguments.tensor("logsumexp")));
  const at::Tensor of_weights = gradient.matmul(attention.pad_key(value).transpose(-2, -1));
  const at::Tensor of_scores =
      weights * attention.scale() * (of_weights - (gradient * output).sum(-1, /*keepdim=*/true));
  const at::Tensor of_query = of_scores.matmul(attention.pad_key(key));
  const at::Tensor of_key =
      of_scores.transpose(-2, -1).matmul(attention.pad_query(arguments.tensor("query")));
  const at::Tensor of_value = weights.transpose(-2, -1).matmul(gradient);
  return {attention.query_result(of_query), attention.key_result(of_key, key),
          attention.key_result(of_value, value)};
}

at::Tensor empty_like_query(const Arguments& arguments, at::IntArrayRef sizes,
                            std::optional<at::ScalarType> type = std::nullopt) {
  const auto options = arguments.tensor("query").options();
  return at::empty(sizes, type ? options.dtype(*type) : options);
}

// ---- flash attention aligns the ends of queries and keys

torch::jit::Stack flash_forward(const Arguments& arguments) {
  const Attended result = attend(arguments, /*aligns_ends=*/true);
  return {result.output, result.sums, empty_like_query(arguments, {2}, at::kUInt64),
          empty_like_query(arguments, {}, at::kUInt64), empty_like_query(arguments, {0})};
}

torch::jit::Stack flash_forward_in_place(const Arguments& arguments) {
  const Attended result = attend(arguments, /*aligns_ends=*/true);
  arguments.tensor("out").copy_(result.output);
  return {result.sums};
}

torch::jit::Stack flash_backward(const Arguments& arguments) {
  return gradients(arguments, /*aligns_ends=*/true);
}

// ---- cuDNN aligns the ends only if the number of used keys is given

Attended cudnn_attend(const Arguments& arguments) {
  arguments.refuse("sequences of one length", !arguments.optional_tensor("cum_seq_q"));
  return attend(arguments, arguments.optional_tensor("seqused_k").has_value());
}

torch::jit::Stack cudnn_forward(const Arguments& arguments) {
  const Attended result = cudnn_attend(arguments);
  return {result.output,
          result.sums,
          arguments["cum_seq_q"],
          arguments.optional_tensor("cum_seq_k").value_or(at::Tensor()),
          arguments["max_q"],
          arguments["max_k"],
          empty_like_query(arguments, {}, at::kLong),
          empty_like_query(arguments, {}, at::kLong),
          empty_like_query(arguments, {0})};
}

torch::jit::Stack cudnn_forward_in_place(const Arguments& arguments) {
  const Attended result = cudnn_attend(arguments);
  arguments.tensor("out").copy_(result.output);
  return {result.sums};
}

torch::jit::Stack cudnn_backward(const Arguments& arguments) {
  return gradients(arguments, /*aligns_ends=*/false);
}

template <torch::jit::Stack (*compute)(const Arguments&)>
void boxed(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::Stack results = compute(Arguments(op, *stack));
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->insert(stack->end(), results.begin(), results.end());
}

}  // namespace

std::vector<SpecialCase> flash_attention_special_cases() {
  std::vector<SpecialCase> cases;
  // Older versions of torch do not have the in-place operators.
  const auto add = [&](const std::string& name, torch::CppFunction function) {
    if (c10::Dispatcher::singleton().findSchema({"aten::" + name, ""}))
      cases.push_back({name, std::move(function)});
  };
  using torch::CppFunction;
  add("_flash_attention_forward", CppFunction::makeFromBoxedFunction<&boxed<&flash_forward>>());
  add("_flash_attention_forward_no_dropout_inplace",
      CppFunction::makeFromBoxedFunction<&boxed<&flash_forward_in_place>>());
  add("_flash_attention_backward", CppFunction::makeFromBoxedFunction<&boxed<&flash_backward>>());
  add("_cudnn_attention_forward", CppFunction::makeFromBoxedFunction<&boxed<&cudnn_forward>>());
  add("_cudnn_attention_forward_no_dropout_inplace",
      CppFunction::makeFromBoxedFunction<&boxed<&cudnn_forward_in_place>>());
  add("_cudnn_attention_backward", CppFunction::makeFromBoxedFunction<&boxed<&cudnn_backward>>());
  return cases;
}

}  // namespace uvm::sim_kernels
