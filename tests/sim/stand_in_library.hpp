// Opens a stand-in at run time, like a program not linked to it, and finds its functions by name.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace uvmsim::test {

class StandIn {
 public:
  explicit StandIn(const char* file)
      : library_(dlopen((std::string(UVMSIM_TEST_LIBRARY_DIR "/") + file).c_str(),
                        RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) ADD_FAILURE() << dlerror();
  }

  static const StandIn& driver() {
    static const StandIn instance("libcuda.so.1");
    return instance;
  }

  static const StandIn& runtime() {
    static const StandIn instance("libcudart.so.13");
    return instance;
  }

  void* find(const char* name) const { return dlsym(library_, name); }
  void* find(const char* name, const char* version) const {
    return dlvsym(library_, name, version);
  }

  template <class Function>
  Function* function(const char* name) const {
    void* address = find(name);
    if (address == nullptr) {
      ADD_FAILURE() << name << " is not exported";
      std::abort();
    }
    return reinterpret_cast<Function*>(address);
  }

 private:
  void* library_;
};

}  // namespace uvmsim::test

// The function with that name, with the type that the header declares.
#define CU(name) (uvmsim::test::StandIn::driver().function<decltype(name)>(#name))
#define RT(name) (uvmsim::test::StandIn::runtime().function<decltype(name)>(#name))
