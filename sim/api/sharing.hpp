// Handles that other processes open. The interfaces only specify that a handle has 64 bytes.
#pragma once

#include <cstddef>
#include <cstring>

#include "sim/engine/machine.hpp"

namespace uvmsim::api {

inline constexpr std::size_t kIpcHandleBytes = 64;

// An event's handle names the process that has the event. Work takes effect at once, in the order
// of calls, so an event is complete by the time another process gets its handle.
struct SharedEvent {
  int process;
};

namespace detail {

template <class Content>
inline constexpr char kMagic[8] = "uvmsim";
template <>
inline constexpr char kMagic<SharedEvent>[8] = "uvmsimE";

}  // namespace detail

template <class Content>
void write_handle(const Content& content, char* out) {
  static_assert(sizeof detail::kMagic<Content> + sizeof content <= kIpcHandleBytes);
  std::memset(out, 0, kIpcHandleBytes);
  std::memcpy(out, detail::kMagic<Content>, sizeof detail::kMagic<Content>);
  std::memcpy(out + sizeof detail::kMagic<Content>, &content, sizeof content);
}

// Returns false if the bytes are not such a handle.
template <class Content>
bool read_handle(const char* handle, Content* out) {
  if (std::memcmp(handle, detail::kMagic<Content>, sizeof detail::kMagic<Content>) != 0)
    return false;
  std::memcpy(out, handle + sizeof detail::kMagic<Content>, sizeof *out);
  return true;
}

}  // namespace uvmsim::api
