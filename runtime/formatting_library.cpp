// Compiles the functions of {fmt} that its headers only declare, once for the whole library.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto decimal_point_impl(locale_ref) -> char;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
namespace dragonbox {
template auto to_decimal(float) noexcept -> decimal_fp<float>;
template auto to_decimal(double) noexcept -> decimal_fp<double>;
}  // namespace dragonbox
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, string_view, basic_format_args<format_context>, locale_ref);
}  // namespace detail
FMT_END_NAMESPACE
