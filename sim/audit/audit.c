/* An auditor for the dynamic linker (man 7 rtld-audit). With LD_AUDIT=.../libuvmsim_audit.so the
 * linker finds the simulator and its stand-ins, such as those for CUDA's or HIP's runtime library,
 * in this library's own folder, or in UVMSIM_LIBRARY_DIR if that is set. The driver of an older
 * version (UVMSIM_DRIVER_VERSION) is in a subfolder. The linker searches for other libraries as
 * without the auditor. Unlike LD_LIBRARY_PATH, the auditor also overrides an RPATH and a
 * full path given to dlopen. It also replaces CUDA's static runtime in programs and libraries
 * (static_runtime.h). It changes nothing else. The linker calls it with the linker's lock held, in
 * a link namespace of its own, so it uses little of libc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sim/audit/static_runtime.h"

#define EXPORT __attribute__((visibility("default")))

enum { kRuntime }; /* the index of CUDA's runtime library */
static const char* const kRedirected[] = {
    "libcudart.so.13",   "libcuda.so.1",   "libcuda.so",           "libcupti.so.13",
    "libnvidia-ml.so.1", "libuvmsim.so",   "libamdhip64.so.7",     "libamdhip64.so.6",
    "libamdhip64.so.5",  "libamdhip64.so", "libhsa-runtime64.so.1"};
enum { kRedirectedCount = sizeof kRedirected / sizeof kRedirected[0] };

/* Full paths of the stand-ins; empty for a missing one. */
static char targets[kRedirectedCount][PATH_MAX];

static size_t own_folder(char* out, size_t size) {
  const char* folder = secure_getenv("UVMSIM_LIBRARY_DIR");
  if (folder != NULL && *folder != '\0') {
    const size_t length = strlen(folder);
    if (length >= size) return 0;
    memcpy(out, folder, length + 1);
    return length;
  }
  Dl_info self;
  if (dladdr((void*)&targets, &self) == 0 || self.dli_fname == NULL) return 0;
  const char* slash = strrchr(self.dli_fname, '/');
  if (slash == NULL || (size_t)(slash - self.dli_fname) >= size) return 0;
  const size_t length = (size_t)(slash - self.dli_fname);
  memcpy(out, self.dli_fname, length);
  out[length] = '\0';
  return length;
}

static int set_target(char* target, const char* folder, const char* subfolder, const char* name) {
  const int written = snprintf(target, PATH_MAX, "%s/%s%s", folder, subfolder, name);
  if (written < PATH_MAX && access(target, R_OK) == 0) return 1;
  target[0] = '\0';
  return 0;
}

static const struct {
  const char* number;
  const char* folder;
} kDrivers[] = {
#define UVMSIM_DRIVER(number, name) {#number, name "/"},
#include "sim/cuda/driver_versions.def"
};
enum { kOlderDrivers = sizeof kDrivers / sizeof kDrivers[0] - 1 };

/* Returns the subfolder with the driver of the chosen version. */
static const char* driver_subfolder(void) {
  const char* version = secure_getenv("UVMSIM_DRIVER_VERSION");
  for (int i = 0; version != NULL && i < kOlderDrivers; ++i) {
    if (strcmp(version, kDrivers[i].number) == 0) return kDrivers[i].folder;
  }
  return "";
}

EXPORT unsigned int la_version(unsigned int version) {
  char folder[PATH_MAX];
  const size_t length = own_folder(folder, sizeof folder);
  for (int i = 0; length != 0 && i < kRedirectedCount; ++i) {
    const char* name = kRedirected[i];
    const int is_driver = strncmp(name, "libcuda.so", strlen("libcuda.so")) == 0;
    if (is_driver && set_target(targets[i], folder, driver_subfolder(), name)) continue;
    if (set_target(targets[i], folder, "", name)) continue;
    /* A wheel has no link with the bare name. */
    if (strcmp(name, "libamdhip64.so") == 0) set_target(targets[i], folder, "", "libamdhip64.so.7");
  }
  return version;
}

EXPORT char* la_objsearch(const char* name, uintptr_t* cookie, unsigned int flag) {
  (void)cookie;
  (void)flag;
  const char* slash = strrchr(name, '/');
  const char* base = slash == NULL ? name : slash + 1;
  for (int i = 0; i < kRedirectedCount; ++i) {
    if (targets[i][0] != '\0' && strcmp(base, kRedirected[i]) == 0) return targets[i];
  }
  return (char*)name;
}

EXPORT unsigned int la_objopen(struct link_map* map, Lmid_t space, uintptr_t* cookie) {
  (void)cookie;
  if (space == LM_ID_BASE && targets[kRuntime][0] != '\0')
    uvmsim_replace_static_runtime(map, targets[kRuntime]);
  return 0;
}
