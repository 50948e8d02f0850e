/* Looks functions up in every way, under a preloaded libuvmalloc_preload.so. The first argument is
 * a library of two functions that stands for CUDA's driver. The second argument is "ours" or
 * "theirs": look-ups of CUDA's names must find the functions of uvmalloc or of that library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* Returns the name of the file that a function is in. */
static const char* library_of(void* function) {
  Dl_info found;
  if (function == NULL || dladdr(function, &found) == 0) return "none";
  const char* slash = strrchr(found.dli_fname, '/');
  return slash != NULL ? slash + 1 : found.dli_fname;
}

static int expect(const char* what, void* function, const char* library) {
  const char* found = library_of(function);
  if (strncmp(found, library, strlen(library)) == 0) return 0;
  fprintf(stderr, "%s is in %s, not in %s\n", what, found, library);
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  void* driver = dlopen(argv[1], RTLD_NOW);
  if (driver == NULL) return fprintf(stderr, "%s\n", dlerror()), 2;
  const char* whose = strcmp(argv[2], "ours") == 0 ? "libuvmalloc_preload.so" : "libcuda.so.1";
  int failed = 0;
  failed += expect("dlsym of a driver's call", dlsym(driver, "cuMemAlloc_v2"), whose);
  failed += expect("dlsym of a call that is not served", dlsym(driver, "cuTest"), "libcuda.so.1");
  failed += expect("dlsym of a call that is not there", dlsym(driver, "cuMemFree_v2"), "none");
  /* The real dlsym looks at the address of its caller. */
  failed += expect("dlsym of the next", dlsym(RTLD_NEXT, "fopen"), "libc.so");
  failed += expect("dlsym of the default", dlsym(RTLD_DEFAULT, "fopen"), "libc.so");
  failed += expect("dlsym of nothing", dlsym(RTLD_DEFAULT, "custom_function"), "none");
  if (dlerror() == NULL) failed += fprintf(stderr, "dlerror does not know of it\n") > 0;
#ifdef __aarch64__
  const char* version = "GLIBC_2.17";
#else
  const char* version = "GLIBC_2.2.5";
#endif
  failed += expect("dlvsym", dlvsym(RTLD_DEFAULT, "fopen", version), "libc.so");
  int (*call)(void**, size_t) = NULL;
  void* found = dlsym(driver, "cuTest");
  memcpy(&call, &found, sizeof call);
  if (call == NULL || call(NULL, 41) != 42) failed += fprintf(stderr, "cuTest is another\n") > 0;
  puts(failed == 0 ? "all found" : "failed");
  return failed != 0;
}
