/* A kind of device for uvmalloc, in one file: "host_threads". Its memory is the host's, its streams
 * are threads. It shows what a runtime has to promise, and serves where no GPU is.
 *
 * One mutex guards everything here. It is not held while a stream works. Every change is announced
 * by one condition variable, since waits are rare.
 *
 * HOST_THREADS_MIB is the size of the device's memory, 1024 by default. Managed memory may exceed
 * it by the memory of the host. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <uvmalloc/uvmalloc_runtime.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 1, INVALID = 2, NOT_READY = 3, FORKED = 4, BAD_SIZE = 5 };

#define PAGE_BYTES ((size_t)2 << 20) /* where large managed memory begins */

/* ---- what the device knows, all of it under `mutex` */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* How far a stream's work has come. Events outlive streams, so they share this with them. */
struct progress {
  unsigned long long submitted, completed; /* tasks */
  int users;
};

struct moment { /* in the work of a stream; without progress: long past */
  struct progress* progress;
  unsigned long long task;
};

struct task {
  enum { COPY, DISCARD, WAIT } kind;
  void* address;
  const void* source;
  size_t size_bytes;
  struct moment until; /* of WAIT */
  struct task* next;
};

struct stream {
  struct progress* progress;
  struct task *first, *last;
  bool destroyed; /* its thread ends when its work is over */
  struct stream* next;
};

struct event {
  struct moment recorded;
};

struct block {
  char* address;
  size_t size_bytes;
  struct block* next;
};

static struct {
  pid_t process;
  size_t device_bytes, most_bytes, used_bytes;
  struct block* blocks;
  struct stream* streams; /* destroyed ones too, until their work is over */
  struct stream* default_stream;
  pthread_key_t thread_stream; /* the per-thread default stream */
} device;

static void release(struct progress* progress) {
  if (progress != NULL && --progress->users == 0) free(progress);
}

static bool is_over(struct moment moment) {
  return moment.progress == NULL || moment.progress->completed >= moment.task;
}

/* Returns whether it had to wait, and others could change things meanwhile. */
static bool wait_for(struct moment moment) {
  if (is_over(moment)) return false;
  ++moment.progress->users;
  while (!is_over(moment)) pthread_cond_wait(&changed, &mutex);
  release(moment.progress);
  return true;
}

/* All of the stream's work so far. */
static struct moment now(const struct stream* stream) {
  struct moment moment = {stream->progress, stream->progress->submitted};
  return moment;
}

/* ---- streams */

static void* run_stream(void* argument) {
  struct stream* stream = argument;
  pthread_mutex_lock(&mutex);
  for (;;) {
    while (stream->first == NULL && !stream->destroyed) pthread_cond_wait(&changed, &mutex);
    struct task* task = stream->first;
    if (task == NULL) break;
    if (task->kind == WAIT) {
      wait_for(task->until);
    } else {
      pthread_mutex_unlock(&mutex);
      if (task->kind == COPY) memmove(task->address, task->source, task->size_bytes);
      if (task->kind == DISCARD) madvise(task->address, task->size_bytes, MADV_DONTNEED);
      pthread_mutex_lock(&mutex);
    }
    stream->first = task->next;
    if (task->kind == WAIT) release(task->until.progress);
    free(task);
    ++stream->progress->completed;
    pthread_cond_broadcast(&changed);
  }
  struct stream** link = &device.streams;
  while (*link != stream) link = &(*link)->next;
  *link = stream->next;
  release(stream->progress);
  free(stream);
  pthread_mutex_unlock(&mutex);
  return NULL;
}

static struct stream* make_stream(void) {
  struct stream* stream = calloc(1, sizeof *stream);
  struct progress* progress = calloc(1, sizeof *progress);
  pthread_t thread;
  if (stream != NULL && progress != NULL) {
    stream->progress = progress;
    progress->users = 1;
    if (pthread_create(&thread, NULL, run_stream, stream) == 0) {
      pthread_detach(thread);
      stream->next = device.streams;
      device.streams = stream;
      return stream;
    }
  }
  free(progress);
  free(stream);
  return NULL;
}

static void drop_stream(struct stream* stream) {
  stream->destroyed = true;
  pthread_cond_broadcast(&changed);
}

static void drop_stream_of_thread(void* stream) {
  if (getpid() != device.process) return;
  pthread_mutex_lock(&mutex);
  drop_stream(stream);
  pthread_mutex_unlock(&mutex);
}

/* The stream of a handle; NULL for a handle that is none. */
static struct stream* stream_of(void* handle) {
  if (handle == NULL) return device.default_stream;
  if (handle == UVMALLOC_RUNTIME_STREAM_PER_THREAD) {
    struct stream* own = pthread_getspecific(device.thread_stream);
    if (own == NULL && (own = make_stream()) != NULL) {
      pthread_setspecific(device.thread_stream, own);
    }
    return own;
  }
  for (struct stream* stream = device.streams; stream != NULL; stream = stream->next) {
    if (stream == handle && !stream->destroyed) return stream;
  }
  return NULL;
}

static int submit(void* handle, struct task wanted) {
  struct stream* stream = stream_of(handle);
  struct task* task = malloc(sizeof *task);
  if (stream == NULL || task == NULL) {
    free(task);
    return stream == NULL ? INVALID : OUT_OF_MEMORY;
  }
  *task = wanted;
  task->next = NULL;
  if (task->kind == WAIT && task->until.progress != NULL) ++task->until.progress->users;
  if (stream->first == NULL) {
    stream->first = task;
  } else {
    stream->last->next = task;
  }
  stream->last = task;
  ++stream->progress->submitted;
  pthread_cond_broadcast(&changed);
  return SUCCESS;
}

static void wait_for_all(void) {
  for (struct stream* stream = device.streams; stream != NULL;) {
    stream = wait_for(now(stream)) ? device.streams : stream->next;
  }
}

/* ---- memory */

/* The block that holds the whole range, and the link to it. */
static struct block** find(const void* address, size_t size_bytes) {
  for (struct block** link = &device.blocks; *link != NULL; link = &(*link)->next) {
    const size_t offset = (size_t)((const char*)address - (*link)->address);
    if ((const char*)address >= (*link)->address && offset < (*link)->size_bytes &&
        size_bytes <= (*link)->size_bytes - offset) {
      return link;
    }
  }
  return NULL;
}

/* Memory at a multiple of 2 MiB. No forked child has it, as with a driver. */
static char* map(size_t size_bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  char* all = mmap(NULL, size_bytes + PAGE_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (all == MAP_FAILED) return NULL;
  char* address = (char*)(((size_t)all + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
  const size_t before = (size_t)(address - all);
  if (before > 0) munmap(all, before);
  munmap(address + size_bytes, PAGE_BYTES - before);
  madvise(address, size_bytes, MADV_DONTFORK);
  return address;
}

/* ---- the operations. `context` is not used: there is one machine. */

/* Most begin so. In a forked child nothing works: the streams' threads are not there. */
#define ENTER()                                  \
  (void)context, (void)number;                   \
  if (getpid() != device.process) return FORKED; \
  pthread_mutex_lock(&mutex)
#define LEAVE(code)               \
  do {                            \
    const int result = (code);    \
    pthread_mutex_unlock(&mutex); \
    return result;                \
  } while (0)

static int started = BAD_SIZE;

static void start(void) {
  const char* text = getenv("HOST_THREADS_MIB");
  char* end = NULL;
  const unsigned long long mib = text != NULL ? strtoull(text, &end, 10) : 1024;
  if (mib == 0 || mib > (1 << 20) || (text != NULL && *end != '\0')) return;
  device.process = getpid();
  device.device_bytes = (size_t)mib << 20;
  device.most_bytes =
      device.device_bytes + (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
  started = OUT_OF_MEMORY;
  if (pthread_key_create(&device.thread_stream, drop_stream_of_thread) != 0) return;
  pthread_mutex_lock(&mutex);
  device.default_stream = make_stream();
  pthread_mutex_unlock(&mutex);
  if (device.default_stream != NULL) started = SUCCESS;
}

static int initialize(void* context) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)context;
  pthread_once(&once, start);
  return started == SUCCESS && getpid() != device.process ? FORKED : started;
}

static int device_count(void* context, int* out) {
  (void)context;
  *out = 1;
  return SUCCESS;
}

static int describe(void* context, int number, uvmalloc_runtime_device* out) {
  ENTER();
  strcpy(out->name, "Threads of the host");
  out->total_bytes = device.device_bytes;
  out->managed_memory = 1;
  out->concurrent_managed_access = 1;
  out->migrates_on_fault = 1;
  out->discard = 1;
  LEAVE(SUCCESS);
}

static int memory_figures(void* context, int number, uint64_t* free_bytes, uint64_t* total_bytes) {
  ENTER();
  *total_bytes = device.device_bytes;
  *free_bytes =
      device.used_bytes < device.device_bytes ? device.device_bytes - device.used_bytes : 0;
  LEAVE(SUCCESS);
}

static int pointer_attributes(void* context, const void* address, uvmalloc_runtime_pointer* out) {
  const int number = 0;
  ENTER();
  const bool known = find(address, 1) != NULL;
  out->kind = known ? UVMALLOC_RUNTIME_POINTER_MANAGED : UVMALLOC_RUNTIME_POINTER_UNKNOWN;
  out->device = known ? 0 : -1;
  LEAVE(SUCCESS);
}

static int allocate_managed(void* context, int number, size_t size_bytes, void** out) {
  ENTER();
  *out = NULL;
  if (size_bytes == 0) LEAVE(INVALID);
  if (size_bytes > device.most_bytes) LEAVE(OUT_OF_MEMORY);
  const size_t whole_bytes = (size_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
  if (device.used_bytes + whole_bytes > device.most_bytes) LEAVE(OUT_OF_MEMORY);
  struct block* block = malloc(sizeof *block);
  char* address = block != NULL ? map(whole_bytes) : NULL;
  if (address == NULL) {
    free(block);
    LEAVE(OUT_OF_MEMORY);
  }
  *block = (struct block){address, whole_bytes, device.blocks};
  device.blocks = block;
  device.used_bytes += whole_bytes;
  *out = address;
  LEAVE(SUCCESS);
}

static int free_managed(void* context, int number, void* address) {
  ENTER();
  struct block** link = find(address, 1);
  if (link == NULL || (*link)->address != address) LEAVE(INVALID);
  struct block* block = *link;
  *link = block->next;
  wait_for_all(); /* any stream may still use it */
  munmap(block->address, block->size_bytes);
  device.used_bytes -= block->size_bytes;
  free(block);
  LEAVE(SUCCESS);
}

static int copy(void* context, int number, void* to, const void* from, size_t size_bytes,
                void* stream) {
  ENTER();
  LEAVE(submit(stream, (struct task){COPY, to, from, size_bytes, {NULL, 0}, NULL}));
}

static int create_stream(void* context, int number, void** out) {
  ENTER();
  *out = make_stream();
  LEAVE(*out != NULL ? SUCCESS : OUT_OF_MEMORY);
}

static int destroy_stream(void* context, int number, void* handle) {
  ENTER();
  if (handle == NULL || handle == UVMALLOC_RUNTIME_STREAM_PER_THREAD) LEAVE(INVALID);
  struct stream* stream = stream_of(handle);
  if (stream == NULL) LEAVE(INVALID);
  drop_stream(stream);
  LEAVE(SUCCESS);
}

static int synchronize_stream(void* context, int number, void* handle) {
  ENTER();
  struct stream* stream = stream_of(handle);
  if (stream == NULL) LEAVE(INVALID);
  wait_for(now(stream));
  LEAVE(SUCCESS);
}

static int stream_wait_event(void* context, int number, void* stream, void* event) {
  ENTER();
  const struct moment until = ((struct event*)event)->recorded;
  LEAVE(submit(stream, (struct task){WAIT, NULL, NULL, 0, until, NULL}));
}

static int create_event(void* context, int number, void** out) {
  ENTER();
  *out = calloc(1, sizeof(struct event));
  LEAVE(*out != NULL ? SUCCESS : OUT_OF_MEMORY);
}

static int destroy_event(void* context, int number, void* event) {
  ENTER();
  release(((struct event*)event)->recorded.progress);
  free(event);
  LEAVE(SUCCESS);
}

static int record_event(void* context, int number, void* event, void* handle) {
  ENTER();
  struct stream* stream = stream_of(handle);
  if (stream == NULL) LEAVE(INVALID);
  struct moment* recorded = &((struct event*)event)->recorded;
  struct progress* before = recorded->progress;
  *recorded = now(stream);
  ++recorded->progress->users;
  release(before);
  LEAVE(SUCCESS);
}

static int query_event(void* context, int number, void* event) {
  ENTER();
  LEAVE(is_over(((struct event*)event)->recorded) ? SUCCESS : NOT_READY);
}

static int synchronize_event(void* context, int number, void* event) {
  ENTER();
  wait_for(((struct event*)event)->recorded);
  LEAVE(SUCCESS);
}

static int synchronize_device(void* context, int number) {
  ENTER();
  wait_for_all();
  LEAVE(SUCCESS);
}

static const struct {
  int kind;
  const char* name;
} errors[] = {
    [SUCCESS] = {UVMALLOC_RUNTIME_OK, "HOST_THREADS_SUCCESS"},
    [OUT_OF_MEMORY] = {UVMALLOC_RUNTIME_OUT_OF_MEMORY, "HOST_THREADS_OUT_OF_MEMORY"},
    [INVALID] = {UVMALLOC_RUNTIME_INVALID_VALUE, "HOST_THREADS_INVALID_VALUE"},
    [NOT_READY] = {UVMALLOC_RUNTIME_NOT_READY, "HOST_THREADS_NOT_READY"},
    [FORKED] = {UVMALLOC_RUNTIME_NOT_USABLE, "HOST_THREADS_FORKED_CHILD"},
    [BAD_SIZE] = {UVMALLOC_RUNTIME_OTHER, "HOST_THREADS_MIB is not a number from 1 to 1048576"},
};

static int error_kind(void* context, int code) {
  (void)context;
  return code >= SUCCESS && code <= BAD_SIZE ? errors[code].kind : UVMALLOC_RUNTIME_OTHER;
}

static const char* error_name(void* context, int code) {
  (void)context;
  return code >= SUCCESS && code <= BAD_SIZE ? errors[code].name : NULL;
}

/* Optional: hints. All memory is the host's, so they move nothing; a wrong range is an error. */

static int advise(void* context, int number, void* address, size_t size_bytes, int advice,
                  int place) {
  ENTER();
  const bool known = advice >= UVMALLOC_RUNTIME_SET_READ_MOSTLY &&
                     advice <= UVMALLOC_RUNTIME_UNSET_ACCESSED_BY && place <= 0 &&
                     place >= UVMALLOC_RUNTIME_HOST;
  LEAVE(known && find(address, size_bytes) != NULL ? SUCCESS : INVALID);
}

static int prefetch(void* context, int number, void* address, size_t size_bytes, int destination,
                    void* stream) {
  ENTER();
  const bool known = destination <= 0 && destination >= UVMALLOC_RUNTIME_HOST;
  LEAVE(known && find(address, size_bytes) != NULL && stream_of(stream) != NULL ? SUCCESS
                                                                                : INVALID);
}

/* Optional: discard. The memory goes back to the system, and comes again when it is touched. */

static int discard(void* context, int number, void* address, size_t size_bytes, void* stream) {
  ENTER();
  if (find(address, size_bytes) == NULL) LEAVE(INVALID);
  const size_t host_page = (size_t)sysconf(_SC_PAGESIZE); /* whole pages inside the range alone */
  const size_t begin = ((size_t)address + host_page - 1) / host_page * host_page;
  const size_t end = ((size_t)address + size_bytes) / host_page * host_page;
  if (begin >= end) LEAVE(SUCCESS);
  LEAVE(submit(stream, (struct task){DISCARD, (void*)begin, NULL, end - begin, {NULL, 0}, NULL}));
}

/* ---- what uvmalloc asks for. The groups capture, contexts and presence are not there. */

static const uvmalloc_runtime_operations operations = {
    .struct_bytes = sizeof operations,
    .version = UVMALLOC_RUNTIME_VERSION,
    .initialize = initialize,
    .device_count = device_count,
    .describe = describe,
    .memory_figures = memory_figures,
    .pointer_attributes = pointer_attributes,
    .allocate_managed = allocate_managed,
    .free_managed = free_managed,
    .copy = copy,
    .create_stream = create_stream,
    .destroy_stream = destroy_stream,
    .synchronize_stream = synchronize_stream,
    .stream_wait_event = stream_wait_event,
    .create_event = create_event,
    .destroy_event = destroy_event,
    .record_event = record_event,
    .query_event = query_event,
    .synchronize_event = synchronize_event,
    .synchronize_device = synchronize_device,
    .error_kind = error_kind,
    .error_name = error_name,
    .advise = advise,
    .prefetch = prefetch,
    .discard = discard,
};

UVMALLOC_RUNTIME_EXPORT const uvmalloc_runtime_registration* uvmalloc_runtime(
    uint32_t newest_version) {
  static const uvmalloc_runtime_registration registration = {"host_threads", &operations, NULL};
  return newest_version >= UVMALLOC_RUNTIME_VERSION ? &registration : NULL;
}
