// Stream-ordered allocation in its simplest form: the call itself allocates and frees. That is
// correct because all work takes effect in the order of its calls.
#include "sim/api/pool.hpp"

#include "sim/cuda/common/visible_devices.hpp"
#include "sim/cuda/runtime/entry.hpp"

using namespace uvmsim;
using namespace uvmsim::cuda;

namespace {

cudaError_t allocate(CallRecord& call, int device, cudaStream_t stream, cudaMemPool_t pool,
                     void** out, size_t bytes) {
  if (out == nullptr) return fail(cudaErrorInvalidValue);
  const auto target = machine().streams().find_stream(device, stream);
  const Status status = admit_pool_call(call, target);
  if (status != Status::kOk) return finish(status);
  if (bytes == 0) {
    *out = nullptr;
    return cudaSuccess;
  }
  const PoolHandle source = pool != nullptr ? pool : machine().pools().current_of(target->device);
  return finish(machine().pools().allocate(source, bytes, out));
}

cudaError_t deliver(PoolHandle pool, cudaMemPool_t* out) {
  if (out == nullptr) return fail(cudaErrorInvalidValue);
  *out = static_cast<cudaMemPool_t>(pool);
  return cudaSuccess;
}

}  // namespace

RT_API cudaMallocAsync(void** out, size_t bytes, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  return allocate(call_record, device, stream, nullptr, out, bytes);
}

RT_API cudaMallocFromPoolAsync(void** out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  if (pool == nullptr) return fail(cudaErrorInvalidValue);
  return allocate(call_record, device, stream, pool, out, bytes);
}

RT_API cudaFreeAsync(void* address, cudaStream_t stream) {
  RT_ENTER_DEVICE;
  const Status status =
      admit_pool_call(call_record, machine().streams().find_stream(device, stream));
  if (status != Status::kOk) return finish(status);
  return address == nullptr ? cudaSuccess : finish(machine().memory().free(address, Wait::kNo));
}

RT_API cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  RT_ENTER;
  if (!is_visible(device)) return fail(cudaErrorInvalidDevice);
  return deliver(machine().pools().default_of(device), pool);
}

RT_API cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  RT_ENTER;
  if (!is_visible(device)) return fail(cudaErrorInvalidDevice);
  return deliver(machine().pools().current_of(device), pool);
}

RT_API cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  RT_ENTER;
  if (!is_visible(device)) return fail(cudaErrorInvalidDevice);
  return finish(machine().pools().set_current(device, pool));
}

RT_API cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  RT_ENTER;
  if (properties == nullptr) return fail(cudaErrorInvalidValue);
  const bool is_plain = properties->allocType == cudaMemAllocationTypePinned &&
                        properties->handleTypes == cudaMemHandleTypeNone &&
                        properties->location.type == cudaMemLocationTypeDevice;
  if (!is_plain) return fail(cudaErrorNotSupported);
  if (!is_visible(properties->location.id)) return fail(cudaErrorInvalidDevice);
  return deliver(machine().pools().create(properties->location.id, properties->maxSize), pool);
}

RT_API cudaMemPoolDestroy(cudaMemPool_t pool) {
  RT_ENTER;
  return finish(machine().pools().destroy(pool));
}

RT_API cudaMemPoolTrimTo(cudaMemPool_t pool, size_t) {
  RT_ENTER;
  return machine().pools().find(pool) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

RT_API cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  RT_ENTER;
  return finish(get_pool_attribute(pool, attribute, value));
}

RT_API cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  RT_ENTER;
  return finish(set_pool_attribute(pool, attribute, value));
}

// Access to pools of other devices follows peer access.
RT_API cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access, size_t count) {
  RT_ENTER;
  const auto found = machine().pools().find(pool);
  if (!found || (access == nullptr && count != 0)) return fail(cudaErrorInvalidValue);
  for (size_t i = 0; i < count; ++i) {
    if (access[i].location.type != cudaMemLocationTypeDevice ||
        !is_visible(access[i].location.id)) {
      return fail(cudaErrorInvalidDevice);
    }
    const int peer = access[i].location.id;
    if (peer == found->device) continue;
    if (access[i].flags == cudaMemAccessFlagsProtNone) {
      machine().memory().disable_peer_access(peer, found->device);
    } else {
      machine().memory().enable_peer_access(peer, found->device);
    }
  }
  return cudaSuccess;
}
