// A library that calls a function of the main program.
extern "C" int uvmalloc_test_answer();
extern "C" __attribute__((visibility("default"))) int uvmalloc_test_ask();
extern "C" int uvmalloc_test_ask() {
  return uvmalloc_test_answer();
}
