// The ways around linking by which a program reaches CUDA's functions: dlsym and dlvsym on a
// handle, and the driver's own look-ups by name. Where such a look-up finds a function that ours
// stands before, the program gets ours. Without UVMALLOC_CUDA every look-up is passed on untouched.
#include <cuda.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include <uvmalloc/preload/call_coverage.hpp>
#include <uvmalloc/preload/interpose.hpp>
#include <uvmalloc/preload/library_copies.hpp>
#include <uvmalloc/preload/served_memory.hpp>
#include <uvmalloc/preload/symbol_lookup.hpp>
#include <uvmalloc/preload/symbol_table.hpp>

namespace uvm::preload {
namespace {

using Dlsym = void* (*)(void*, const char*);
using Dlvsym = void* (*)(void*, const char*, const char*);

// The code down to RealLookups runs inside the first look-up of the process, which may be that of a
// sanitizer's runtime before it is initialised. It calls no function that such a runtime replaces.
// Whether the file of a path has a name that begins so.
UVMALLOC_CALLS_NOTHING bool is_file_named(const char* path, const char* beginning) noexcept {
  const char* name = path;
  for (const char* letter = path; *letter != '\0'; ++letter) {
    if (*letter == '/') name = letter + 1;
  }
  while (*beginning != '\0' && *name == *beginning) ++name, ++beginning;
  return *beginning == '\0';
}

// The real look-ups, of libc or, in older versions of it, of libdl.
struct RealLookups {
  void* dlsym_found = nullptr;
  void* dlvsym_found = nullptr;

  UVMALLOC_CALLS_NOTHING void find() noexcept {
    for (const link_map* library = _r_debug.r_map; library != nullptr; library = library->l_next) {
      if (!is_file_named(library->l_name, "libc.so") &&
          !is_file_named(library->l_name, "libdl.so")) {
        continue;
      }
      if (dlsym_found == nullptr) dlsym_found = symbol_in(library->l_addr, library->l_ld, "dlsym");
      if (dlvsym_found == nullptr)
        dlvsym_found = symbol_in(library->l_addr, library->l_ld, "dlvsym");
    }
  }
};

struct ServedCall {
  const char* name;
  const char* library;
  bool is_of_driver;
  void* ours = nullptr;
  void* real = nullptr;  // of the driver's calls
};

constexpr bool kRuntime = false;
constexpr bool kDriver = true;

std::array served_calls = {
#define SERVED(symbol, library, table) ServedCall{#symbol, library, table},
#include <uvmalloc/preload/served_calls.inc>
#undef SERVED
#define LEFT(symbol, library, table) ServedCall{#symbol, library, table},
#include <uvmalloc/preload/left_calls.inc>
#undef LEFT
#define NOTED(symbol, library, table) ServedCall{#symbol, library, table},
#include <uvmalloc/preload/noted_calls.inc>
#undef NOTED
};

}  // namespace
}  // namespace uvm::preload

extern "C" {
// Used by the code below. nullptr until the first look-up.
__attribute__((visibility("hidden"))) void* uvmalloc_real_dlsym = nullptr;
__attribute__((visibility("hidden"))) void* uvmalloc_real_dlvsym = nullptr;

__attribute__((visibility("hidden"), used)) void uvmalloc_find_real_lookups() noexcept {
  uvm::preload::RealLookups found;
  found.find();
  uvmalloc_real_dlvsym = found.dlvsym_found;
  uvmalloc_real_dlsym = found.dlsym_found;
}
}

namespace uvm::preload {
namespace {

// Fills in the addresses, once.
std::array<ServedCall, served_calls.size()>& all_served_calls() noexcept {
  static const bool kFilled = [] {
    if (uvmalloc_real_dlsym == nullptr) uvmalloc_find_real_lookups();
    const auto look_up = reinterpret_cast<Dlsym>(uvmalloc_real_dlsym);
    void* self = dlopen(own_library().dli_fname, RTLD_NOLOAD | RTLD_LAZY);
    for (ServedCall& call : served_calls) {
      if (self != nullptr && look_up != nullptr) call.ours = look_up(self, call.name);
      if (call.is_of_driver) call.real = next_definition(call.name, call.library);
    }
    return true;
  }();
  static_cast<void>(kFilled);
  return served_calls;
}

// Libraries of CUDA and HIP call each other's functions, and ours call the real ones.
bool is_left_alone(const void* caller) noexcept {
  Dl_info found{};
  if (dladdr(caller, &found) == 0) return false;
  // This library may have any file name.
  static const void* const kOwnBase = own_library().dli_fbase;
  if (found.dli_fbase == kOwnBase) return true;
  const std::string_view name = file_name(found.dli_fname);
  return name.starts_with("libcuda") || name.starts_with("libamdhip64") ||
         name.starts_with("libuvm");
}

bool is_served(const char* name) noexcept {
  return std::any_of(served_calls.begin(), served_calls.end(),
                     [&](const ServedCall& call) { return std::strcmp(call.name, name) == 0; });
}

// Whether a look-up by handle is to give ours where it finds the function. Pseudo-handles are about
// the caller's place among the libraries.
bool gives_ours(void* handle, const char* name, const void* caller) noexcept {
  return handle != RTLD_NEXT && handle != RTLD_DEFAULT && is_served(name) && wants_to_serve() &&
         !is_left_alone(caller);
}

// Ours in the place of a function of this name; `real` where there is none.
void* ours_for_name(const char* name, void* real) noexcept {
  if (real == nullptr) return nullptr;
  for (const ServedCall& call : all_served_calls()) {
    if (call.ours != nullptr && std::strcmp(call.name, name) == 0) return call.ours;
  }
  return real;
}

// Puts ours in the place of a function of the driver that a look-up has found. Results of both
// interfaces are 0 for success.
void put_ours(int result, void** found) noexcept {
  if (result != 0 || found == nullptr || !wants_to_serve()) return;
  for (const ServedCall& call : all_served_calls()) {
    if (call.is_of_driver && call.ours != nullptr && call.real == *found) {
      *found = call.ours;
      return;
    }
  }
}

}  // namespace

void put_ours_for(const void* caller, int result, void** found) noexcept {
  if (!wants_to_serve() || is_left_alone(caller)) return;
  note_lookup(caller);
  put_ours(result, found);
}

}  // namespace uvm::preload

using namespace uvm::preload;

extern "C" {

// What dlsym and dlvsym answer to `caller`; nullptr: the real one is to answer. Names that start
// with "cu" or "hi" alone come here.
__attribute__((visibility("hidden"), used)) void* uvmalloc_served_symbol(
    void* handle, const char* name, const void* caller) noexcept {
  if (!gives_ours(handle, name, caller)) return nullptr;
  void* real = reinterpret_cast<Dlsym>(uvmalloc_real_dlsym)(handle, name);
  return ours_for_name(name, real);
}

__attribute__((visibility("hidden"), used)) void* uvmalloc_served_version(
    void* handle, const char* name, const char* version, const void* caller) noexcept {
  if (!gives_ours(handle, name, caller)) return nullptr;
  void* real = reinterpret_cast<Dlvsym>(uvmalloc_real_dlvsym)(handle, name, version);
  return ours_for_name(name, real);
}
}

// The real dlsym looks at its caller's address, so everything else goes on to it by a jump. These
// are not there in sanitized builds, whose runtimes look functions up before they are initialised.
#if !defined(UVMALLOC_SANITIZED) && defined(__x86_64__)
#define UVMALLOC_LOOKUP(name, real, served, caller)             \
  asm(".text\n.globl " name "\n.type " name ",@function\n" name \
      ":\n"                                                     \
      "  endbr64\n"                                             \
      "  cmpq $0, " real                                        \
      "(%rip)\n"                                                \
      "  jne 1f\n"                                              \
      "  pushq %rdi\n  pushq %rsi\n  pushq %rdx\n"              \
      "  call uvmalloc_find_real_lookups\n"                     \
      "  popq %rdx\n  popq %rsi\n  popq %rdi\n"                 \
      "1:\n"                                                    \
      "  testq %rsi, %rsi\n  je 2f\n"                           \
      "  cmpb $'h', (%rsi)\n  je 4f\n"                          \
      "  cmpb $'c', (%rsi)\n  jne 2f\n"                         \
      "  cmpb $'u', 1(%rsi)\n  jne 2f\n"                        \
      "  jmp 5f\n"                                              \
      "4:\n"                                                    \
      "  cmpb $'i', 1(%rsi)\n  jne 2f\n"                        \
      "5:\n"                                                    \
      "  movq (%rsp), " caller                                  \
      "\n"                                                      \
      "  pushq %rdi\n  pushq %rsi\n  pushq %rdx\n"              \
      "  call " served                                          \
      "\n"                                                      \
      "  popq %rdx\n  popq %rsi\n  popq %rdi\n"                 \
      "  testq %rax, %rax\n  jne 3f\n"                          \
      "2:\n"                                                    \
      "  jmpq *" real                                           \
      "(%rip)\n"                                                \
      "3:\n  ret\n.size " name ", .-" name "\n")
UVMALLOC_LOOKUP("dlsym", "uvmalloc_real_dlsym", "uvmalloc_served_symbol", "%rdx");
UVMALLOC_LOOKUP("dlvsym", "uvmalloc_real_dlvsym", "uvmalloc_served_version", "%rcx");
#elif !defined(UVMALLOC_SANITIZED) && defined(__aarch64__)
#define UVMALLOC_LOOKUP(name, real, served, caller)             \
  asm(".text\n.globl " name "\n.type " name ",%function\n" name \
      ":\n"                                                     \
      "  stp x29, x30, [sp, #-48]!\n  mov x29, sp\n"            \
      "  stp x0, x1, [sp, #16]\n  str x2, [sp, #32]\n"          \
      "  adrp x9, " real "\n  ldr x9, [x9, :lo12:" real         \
      "]\n"                                                     \
      "  cbnz x9, 1f\n"                                         \
      "  bl uvmalloc_find_real_lookups\n"                       \
      "1:\n"                                                    \
      "  ldp x0, x1, [sp, #16]\n  ldr x2, [sp, #32]\n"          \
      "  cbz x1, 2f\n"                                          \
      "  ldrb w9, [x1]\n  cmp w9, #'h'\n  b.eq 4f\n"            \
      "  cmp w9, #'c'\n  b.ne 2f\n"                             \
      "  ldrb w9, [x1, #1]\n  cmp w9, #'u'\n  b.ne 2f\n"        \
      "  b 5f\n"                                                \
      "4:\n"                                                    \
      "  ldrb w9, [x1, #1]\n  cmp w9, #'i'\n  b.ne 2f\n"        \
      "5:\n"                                                    \
      "  ldr " caller                                           \
      ", [sp, #8]\n"                                            \
      "  bl " served                                            \
      "\n"                                                      \
      "  cbnz x0, 3f\n"                                         \
      "  ldp x0, x1, [sp, #16]\n  ldr x2, [sp, #32]\n"          \
      "2:\n"                                                    \
      "  ldp x29, x30, [sp], #48\n"                             \
      "  adrp x9, " real "\n  ldr x9, [x9, :lo12:" real         \
      "]\n"                                                     \
      "  br x9\n"                                               \
      "3:\n  ldp x29, x30, [sp], #48\n  ret\n.size " name ", .-" name "\n")
UVMALLOC_LOOKUP("dlsym", "uvmalloc_real_dlsym", "uvmalloc_served_symbol", "x2");
UVMALLOC_LOOKUP("dlvsym", "uvmalloc_real_dlvsym", "uvmalloc_served_version", "x3");
#endif

// NOLINTBEGIN(readability-identifier-naming)

UVMALLOC_INTERPOSE CUresult cuGetProcAddress_v2(const char* name, void** out, int version,
                                                cuuint64_t flags,
                                                CUdriverProcAddressQueryResult* status) {
  static const auto next =
      next_function<decltype(&cuGetProcAddress_v2)>("cuGetProcAddress_v2", "libcuda.so");
  const CUresult result = pass_on(next, name, out, version, flags, status);
  put_ours_for(__builtin_return_address(0), result, out);
  return result;
}

// The form of drivers before CUDA 12.
#undef cuGetProcAddress
UVMALLOC_INTERPOSE CUresult cuGetProcAddress(const char* name, void** out, int version,
                                             cuuint64_t flags) {
  static const auto next =
      next_function<decltype(&cuGetProcAddress)>("cuGetProcAddress", "libcuda.so");
  const CUresult result = pass_on(next, name, out, version, flags);
  put_ours_for(__builtin_return_address(0), result, out);
  return result;
}

// Results are cudaError_t; the fourth argument of the first is a place for the reason.
UVMALLOC_INTERPOSE int cudaGetDriverEntryPoint(const char* name, void** out,
                                               unsigned long long flags, void* status) {
  static const auto next =
      next_function<decltype(&cudaGetDriverEntryPoint)>("cudaGetDriverEntryPoint", "libcudart.so");
  const int result = pass_on(next, name, out, flags, status);
  put_ours(result, out);
  return result;
}

UVMALLOC_INTERPOSE int cudaGetDriverEntryPointByVersion(const char* name, void** out,
                                                        unsigned version, unsigned long long flags,
                                                        void* status) {
  static const auto next = next_function<decltype(&cudaGetDriverEntryPointByVersion)>(
      "cudaGetDriverEntryPointByVersion", "libcudart.so");
  const int result = pass_on(next, name, out, version, flags, status);
  put_ours(result, out);
  return result;
}

// NOLINTEND(readability-identifier-naming)
