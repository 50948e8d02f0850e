/* Shows programs the host memory of a simulated machine with UVMSIM_HOST_MEMORY: in /proc/meminfo,
 * sysinfo() and sysconf(). Preloaded by `uvmalloc sim --host-memory`. Available memory is the
 * simulated memory minus the managed and pinned memory of the simulated drivers and the allocations
 * of this process, and at most the available memory of the real machine. Without the variable all
 * figures are the real machine's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { kMostText = 16384 };

/* Returns UVMSIM_HOST_MEMORY in bytes; it may have a suffix K, M, G, T, KiB and so on. 0: no
 * limit. */
static unsigned long long capacity_bytes(void) {
  const char* text = secure_getenv("UVMSIM_HOST_MEMORY");
  if (text == NULL) return 0;
  char* end = NULL;
  const double number = strtod(text, &end);
  const char* suffix = *end != '\0' ? strchr("KMGT", *end & ~0x20) : NULL;
  const int shift = suffix != NULL ? 10 * (int)(suffix - "KMGT" + 1) : 0;
  return number > 0 ? (unsigned long long)(number * (double)(1ULL << shift)) : 0;
}

static size_t read_file(const char* path, char* text) {
  const int file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  size_t size = 0;
  for (ssize_t count; size < kMostText - 1; size += (size_t)count) {
    count = read(file, text + size, kMostText - 1 - size);
    if (count <= 0) break;
  }
  syscall(SYS_close, file);
  text[size] = '\0';
  return size;
}

/* Returns the number of KiB after a line's name. */
static unsigned long long kib_of(const char* text, const char* name) {
  const char* line = strstr(text, name);
  return line != NULL ? strtoull(line + strlen(name), NULL, 10) : 0;
}

/* Returns the host memory that the simulated machine uses, if this process has one. */
static unsigned long long taken_bytes(void) {
  void* engine = dlopen("libuvmsim.so", RTLD_NOLOAD | RTLD_LAZY);
  if (engine == NULL) return 0;
  int (*used)(size_t*) = NULL;
  *(void**)&used = dlsym(engine, "uvmsim_host_taken");
  size_t bytes = 0;
  if (used == NULL || used(&bytes) != 0) bytes = 0;
  dlclose(engine);
  return bytes;
}

struct memory {
  unsigned long long total_kib;
  unsigned long long available_kib;
};

/* Gets the simulated figures. Returns 0 if nothing is simulated. `real` is the text of the real
 * /proc/meminfo. */
static int look(const char* real, struct memory* out) {
  const unsigned long long capacity = capacity_bytes() >> 10;
  if (capacity == 0) return 0;
  char status[kMostText];
  read_file("/proc/self/status", status);
  const unsigned long long used = (taken_bytes() >> 10) + kib_of(status, "RssAnon:");
  const unsigned long long left = capacity > used ? capacity - used : 0;
  const unsigned long long total = kib_of(real, "MemTotal:");
  const unsigned long long available = kib_of(real, "MemAvailable:");
  out->total_kib = capacity < total ? capacity : total;
  out->available_kib = left < available ? left : available;
  return 1;
}

static void replace_line(char* text, const char* name, unsigned long long kib) {
  char* line = strstr(text, name);
  if (line == NULL) return;
  char* end = strchr(line, '\n');
  if (end == NULL) return;
  char made[64];
  const int size = snprintf(made, sizeof made, "%-15s %10llu kB", name, kib);
  memmove(line + size, end, strlen(end) + 1);
  memcpy(line, made, (size_t)size);
}

/* Opens a file with the simulated machine's /proc/meminfo. Returns -1 on failure. */
static int simulated_meminfo(void) {
  char text[kMostText + 256];
  struct memory memory;
  if (read_file("/proc/meminfo", text) == 0 || !look(text, &memory)) return -1;
  replace_line(text, "MemTotal:", memory.total_kib);
  replace_line(text, "MemFree:", memory.available_kib);
  replace_line(text, "MemAvailable:", memory.available_kib);
  const int file = memfd_create("meminfo", MFD_CLOEXEC);
  const size_t size = strlen(text);
  if (file < 0) return -1;
  if (write(file, text, size) == (ssize_t)size && lseek(file, 0, SEEK_SET) == 0) return file;
  close(file);
  return -1;
}

static int is_meminfo(const char* path) {
  return path != NULL && strcmp(path, "/proc/meminfo") == 0;
}

static void* next(const char* name) {
  return dlsym(RTLD_NEXT, name);
}

static int open_simulated(const char* path, int flags) {
  if (!is_meminfo(path) || (flags & O_ACCMODE) != O_RDONLY) return -1;
  const int file = simulated_meminfo();
  if (file >= 0 && (flags & O_CLOEXEC) == 0) fcntl(file, F_SETFD, 0);
  return file;
}

static mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

#define OPEN(name)                                    \
  EXPORT int name(const char* path, int flags, ...) { \
    va_list arguments;                                \
    va_start(arguments, flags);                       \
    const mode_t mode = mode_of(flags, arguments);    \
    va_end(arguments);                                \
    const int file = open_simulated(path, flags);     \
    if (file >= 0) return file;                       \
    int (*real)(const char*, int, ...) = NULL;        \
    *(void**)&real = next(#name);                     \
    return real(path, flags, mode);                   \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                              \
  EXPORT int name(int folder, const char* path, int flags, ...) { \
    va_list arguments;                                            \
    va_start(arguments, flags);                                   \
    const mode_t mode = mode_of(flags, arguments);                \
    va_end(arguments);                                            \
    const int file = open_simulated(path, flags);                 \
    if (file >= 0) return file;                                   \
    int (*real)(int, const char*, int, ...) = NULL;               \
    *(void**)&real = next(#name);                                 \
    return real(folder, path, flags, mode);                       \
  }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                 \
  EXPORT FILE* name(const char* path, const char* mode) {                           \
    const int file = is_meminfo(path) && mode[0] == 'r' ? simulated_meminfo() : -1; \
    if (file >= 0) return fdopen(file, "r");                                        \
    FILE* (*real)(const char*, const char*) = NULL;                                 \
    *(void**)&real = next(#name);                                                   \
    return real(path, mode);                                                        \
  }
FOPEN(fopen)
FOPEN(fopen64)

static int look_now(struct memory* out) {
  char text[kMostText];
  return read_file("/proc/meminfo", text) != 0 && look(text, out);
}

EXPORT int sysinfo(struct sysinfo* info) {
  int (*real)(struct sysinfo*) = NULL;
  *(void**)&real = next("sysinfo");
  const int result = real(info);
  struct memory memory;
  if (result != 0 || !look_now(&memory)) return result;
  info->totalram = (memory.total_kib << 10) / info->mem_unit;
  info->freeram = (memory.available_kib << 10) / info->mem_unit;
  info->bufferram = 0;
  return result;
}

EXPORT long sysconf(int name) {
  long (*real)(int) = NULL;
  *(void**)&real = next("sysconf");
  struct memory memory;
  if ((name != _SC_PHYS_PAGES && name != _SC_AVPHYS_PAGES) || !look_now(&memory)) return real(name);
  const unsigned long long kib = name == _SC_PHYS_PAGES ? memory.total_kib : memory.available_kib;
  return (long)((kib << 10) / (unsigned long long)real(_SC_PAGESIZE));
}
