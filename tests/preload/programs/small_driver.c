/* Stands for CUDA's driver: one call that libuvmalloc_preload.so serves, and one that it does not.
 */
#include <stddef.h>

int cuMemAlloc_v2(void** out, size_t size_bytes) {
  return out != NULL && size_bytes == 0;
}
int cuTest(void** out, size_t size_bytes) {
  return out == NULL ? (int)size_bytes + 1 : 0;
}
