#include "sim/api/sharing.hpp"

#include <cuda.h>
#include <unistd.h>

#include <cstring>

namespace uvmsim::api {
namespace {

// The first bytes of a handle say what kind of handle it is.
using Tag = char[8];
constexpr Tag kMemory = "uvmsim";
constexpr Tag kEvent = "uvmsimE";

template <class Content>
void write_handle(const Tag& tag, const Content& content, char* out) {
  static_assert(sizeof tag + sizeof content <= CU_IPC_HANDLE_SIZE);
  std::memset(out, 0, CU_IPC_HANDLE_SIZE);
  std::memcpy(out, tag, sizeof tag);
  std::memcpy(out + sizeof tag, &content, sizeof content);
}

// Returns false if the bytes are not such a handle.
template <class Content>
bool read_handle(const Tag& tag, const char* handle, Content* out) {
  std::memcpy(out, handle + sizeof tag, sizeof *out);
  return std::memcmp(handle, tag, sizeof tag) == 0;
}

}  // namespace

Status export_memory(const void* address, char* handle) {
  SharedMemory shared{};
  const Status status = Machine::instance().sharing().export_memory(address, &shared);
  if (status == Status::kOk) write_handle(kMemory, shared, handle);
  return status;
}

Status import_memory(int device, const char* handle, unsigned flags, void** out) {
  SharedMemory shared{};
  if (out == nullptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS ||
      !read_handle(kMemory, handle, &shared))
    return Status::kInvalidValue;
  return Machine::instance().sharing().import_memory(device, shared, out);
}

Status export_event(EventHandle event, char* handle) {
  const auto flags = Machine::instance().streams().event_flags(event);
  if (!flags || (*flags & CU_EVENT_INTERPROCESS) == 0) return Status::kInvalidHandle;
  // The handle contains the ID of the process that made the event. Work takes effect at once, in
  // the order of calls, so an event is complete by the time another process gets its handle.
  write_handle(kEvent, getpid(), handle);
  return Status::kOk;
}

Status import_event(int device, const char* handle, EventHandle* out) {
  pid_t process = 0;
  if (out == nullptr || !read_handle(kEvent, handle, &process)) return Status::kInvalidValue;
  if (process == getpid()) return Status::kInvalidContext;
  constexpr unsigned kFlags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  *out = Machine::instance().streams().create_event(device, kFlags, /*timing=*/false);
  return Status::kOk;
}

}  // namespace uvmsim::api
