/* How a C program uses uvmalloc: allocate, fill, move, look, free. An argument is the runtime. */
#include <stdio.h>
#include <string.h>
#include <uvmalloc/uvmalloc.h>

#define CHECK(call, expected)                                                                      \
  do {                                                                                             \
    uvmalloc_status status = (call);                                                               \
    if (status != (expected)) {                                                                    \
      fprintf(stderr, "%s: %s: %s\n", #call, uvmalloc_status_name(status), uvmalloc_last_error()); \
      return 1;                                                                                    \
    }                                                                                              \
  } while (0)

int main(int argc, char** argv) {
  const size_t size_bytes = (size_t)8 << 20;
  uvmalloc_options options = {.struct_bytes = sizeof options,
                              .runtime = argc > 1 ? argv[1] : NULL,
                              .budget_bytes = (uint64_t)64 << 20};
  uvmalloc_statistics statistics = {.struct_bytes = sizeof statistics};
  uvmalloc_allocator* allocator = NULL;
  void* block = NULL;
  void* too_much = NULL;

  CHECK(uvmalloc_create(&options, &allocator), UVMALLOC_OK);
  CHECK(uvmalloc_allocate(allocator, UVMALLOC_HOST, 0, size_bytes, 0, NULL, &block), UVMALLOC_OK);
  memset(block, 42, size_bytes);
  CHECK(uvmalloc_move(allocator, block, 0, NULL, 0), UVMALLOC_OK);
  CHECK(uvmalloc_move(allocator, block, UVMALLOC_PLACE_HOST, NULL, 1), UVMALLOC_OK);
  if (((char*)block)[size_bytes - 1] != 42) return 1;
  CHECK(uvmalloc_allocate(allocator, UVMALLOC_DEVICE, 0, SIZE_MAX, 0, NULL, &too_much),
        UVMALLOC_ERROR_OUT_OF_MEMORY);
  CHECK(uvmalloc_get_statistics(allocator, &statistics), UVMALLOC_OK);
  CHECK(uvmalloc_free(allocator, block), UVMALLOC_OK);
  CHECK(uvmalloc_free(allocator, block), UVMALLOC_ERROR_DOUBLE_FREE);
  CHECK(uvmalloc_destroy(allocator), UVMALLOC_OK);
  printf("%s moved=%llu prefetched=%d\n", uvmalloc_version(),
         (unsigned long long)statistics.moved_bytes, statistics.prefetches > 0);
  return 0;
}
