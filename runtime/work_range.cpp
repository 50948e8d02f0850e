#include "runtime/work_range.hpp"

#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): included before NVTX does

#if __has_include(<nvtx3/nvToolsExt.h>)
// NVTX's header looks up the profiler's library. A program with raised rights must not load it.
#define getenv secure_getenv
#include <nvtx3/nvToolsExt.h>
#undef getenv
#define UVM_HAS_NVTX 1
#else
#define UVM_HAS_NVTX 0
#endif

namespace uvm {

#if UVM_HAS_NVTX

namespace {

std::atomic<nvtxDomainHandle_t> domain = nullptr;

}  // namespace

bool WorkRange::switch_on() noexcept {
  static const nvtxDomainHandle_t kDomain = nvtxDomainCreateA("uvmalloc");
  domain = kDomain;
  is_on_ = true;
  return true;
}

void WorkRange::begin(const char* name, std::size_t size_bytes) noexcept {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  if (size_bytes != 0) {
    attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    attributes.payload.ullValue = size_bytes;
  }
  nvtxDomainRangePushEx(domain, &attributes);
}

void WorkRange::end() noexcept {
  nvtxDomainRangePop(domain);
}

#else

bool WorkRange::switch_on() noexcept {
  return false;
}

void WorkRange::begin(const char* /*name*/, std::size_t /*size_bytes*/) noexcept {}

void WorkRange::end() noexcept {}

#endif

}  // namespace uvm
