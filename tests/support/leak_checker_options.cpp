// LeakSanitizer's tracer sometimes crashes on the thread-local storage of libraries opened at run
// time, like stand-ins and runtimes under test. Leaks in ordinary memory are still found.
extern "C" const char* __lsan_default_options();
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_options() {
  return "use_tls=0";
}

// Only thread-local storage points to dlerror()'s memory for a thread, and only memory that the
// dynamic linker maps points to dlopen()'s memory for an object. A thread-local object made while
// its thread ends, after such objects were destroyed, leaves a record of glibc behind.
extern "C" const char* __lsan_default_suppressions();
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:_dlerror_run\nleak:_dl_map_object_deps\nleak:__cxa_thread_atexit_impl\n";
}
