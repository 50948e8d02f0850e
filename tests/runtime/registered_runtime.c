/* Runtimes in shared objects, most of them unusable. A copy of this object under another name is
 * another object; UVM_TEST_TABLE selects its kind when the table is requested. */
#include <stdlib.h>
#include <string.h>
#include <uvmalloc/uvmalloc_runtime.h>

static int succeed(void* context) {
  return context != 0;
}
static int count_none(void* context, int* out) {
  return *out = 0, context != 0;
}
static int fail_describe(void* context, int device, uvmalloc_runtime_device* out) {
  return context != out && device == 0;
}
static int fail_figures(void* context, int device, uint64_t* free_bytes, uint64_t* total_bytes) {
  return context != free_bytes && total_bytes != 0 && device == 0;
}
static int fail_attributes(void* context, const void* address, uvmalloc_runtime_pointer* out) {
  return context != out && address != 0;
}
static int fail_allocate(void* context, int device, size_t bytes, void** out) {
  return context != out && bytes != 0 && device == 0;
}
static int fail_pointer(void* context, int device, void* pointer) {
  return context != pointer && device == 0;
}
static int fail_pointers(void* context, int device, void* first, void* second) {
  return context != first && second != 0 && device == 0;
}
static int fail_out(void* context, int device, void** out) {
  return context != out && device == 0;
}
static int fail_device(void* context, int device) {
  return context == 0 && device == 0;
}
static int fail_copy(void* context, int device, void* to, const void* from, size_t bytes,
                     void* stream) {
  return context != to && from != stream && bytes != 0 && device == 0;
}
static int kind(void* context, int code) {
  return context == 0 && code != 0 ? UVMALLOC_RUNTIME_OTHER : UVMALLOC_RUNTIME_OK;
}
static const char* name(void* context, int code) {
  return context == 0 && code != 0 ? "TEST_ERROR" : "TEST_SUCCESS";
}

static uvmalloc_runtime_operations operations = {
    .struct_bytes = sizeof operations,
    .version = UVMALLOC_RUNTIME_VERSION,
    .initialize = succeed,
    .device_count = count_none,
    .describe = fail_describe,
    .memory_figures = fail_figures,
    .pointer_attributes = fail_attributes,
    .allocate_managed = fail_allocate,
    .free_managed = fail_pointer,
    .copy = fail_copy,
    .create_stream = fail_out,
    .destroy_stream = fail_pointer,
    .synchronize_stream = fail_pointer,
    .stream_wait_event = fail_pointers,
    .create_event = fail_out,
    .destroy_event = fail_pointer,
    .record_event = fail_pointers,
    .query_event = fail_pointer,
    .synchronize_event = fail_pointer,
    .synchronize_device = fail_device,
    .error_kind = kind,
    .error_name = name,
};

static uvmalloc_runtime_registration registration = {"no devices", &operations, NULL};

UVMALLOC_RUNTIME_EXPORT const uvmalloc_runtime_registration* uvmalloc_runtime(
    uint32_t newest_version) {
  const char* table = getenv("UVM_TEST_TABLE");
  if (table == NULL || newest_version != UVMALLOC_RUNTIME_VERSION) return NULL;
  if (strcmp(table, "name") == 0) registration.name = NULL;
  if (strcmp(table, "taken") == 0) registration.name = "cuda";
  if (strcmp(table, "table") == 0) registration.operations = NULL;
  if (strcmp(table, "newer") == 0) operations.version = newest_version + 1;
  if (strcmp(table, "unreadable version") == 0) return NULL;
  return &registration;
}
