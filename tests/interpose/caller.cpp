// A library that calls functions of the main program, one of them through a table.
extern "C" int uvmalloc_test_answer();
extern "C" int uvmalloc_test_listed();
extern "C" __attribute__((visibility("default"))) int uvmalloc_test_ask();
extern "C" int uvmalloc_test_ask() {
  return uvmalloc_test_answer();
}

extern "C" __attribute__((visibility("default"))) int uvmalloc_test_ask_table();
namespace {
int (*const volatile table[])() = {&uvmalloc_test_listed};
}  // namespace
extern "C" int uvmalloc_test_ask_table() {
  return table[0]();
}
