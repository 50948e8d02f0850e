// LeakSanitizer's tracer crashes now and then on the thread-local storage of libraries that were
// opened at run time, as stand-ins and runtimes under test are. Leaks in ordinary memory are still
// found.
extern "C" const char* __lsan_default_options();
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_options() {
  return "use_tls=0";
}

// What dlerror() keeps for a thread lies in thread-local storage only. What dlopen() keeps for an
// object lies in memory that the dynamic linker maps itself. A thread-local object that
// is made while its thread ends, after such objects were destroyed, leaves glibc's note of it
// behind.
extern "C" const char* __lsan_default_suppressions();
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:_dlerror_run\nleak:_dl_map_object_deps\nleak:__cxa_thread_atexit_impl\n";
}
