// Handlers, for every interface, of calls that are forwarded unchanged and reported to this
// process's allocator. `call` is an Intercepted (define_calls.hpp). Thread-safe; none throws.
#pragma once

#include "preload/captures.hpp"
#include "preload/context_ends.hpp"
#include "preload/define_calls.hpp"
#include "preload/device_answers.hpp"
#include "preload/kernel_arguments.hpp"
#include "preload/symbol_lookup.hpp"

namespace uvm::preload {

auto destroy_stream(const auto& call, auto stream) {
  note_stream_gone(stream);
  return call.forward(stream);
}

auto begin_capture(const auto& call, auto stream, auto... how) {
  return begin_capture_of(call.name(), call.device_of(stream), call.order(stream),
                          [&] { return call.forward(stream, how...); });
}

// A call that fails may have ended the capture too.
template <class Stream>
auto end_capture(const auto& call, Stream stream, auto* graph) {
  const auto result = call.forward(stream, graph);
  const StreamHandle order = call.order(stream);
  if (result == call.success() || !call.is_capturing(static_cast<Stream>(order))) {
    OpenCaptures::instance().remove(DeviceStream::named(0, order));
  }
  return result;
}

// Forgets the layouts of kernels, because code that is loaded later may reuse the kernels' handles.
auto unload_code(const auto& call, auto handle) {
  forget_layouts(call.name());
  return call.forward(handle);
}

// `argument` is the device, or empty for the current device.
auto reset_device(const auto& call, auto... argument) {
  const int device = call.device_to_reset(argument...);
  return pass_reset_on(
      call.name(), device, [&] { return call.forward(argument...); },
      [&] { return call.is_reset(device); });
}

// Handles cuGetProcAddress and its variants.
auto find_function(const auto& call, const char* name, void** out, auto... rest) {
  const auto result = call.forward(name, out, rest...);
  put_ours_for(call.caller, result, out);
  return result;
}

}  // namespace uvm::preload
