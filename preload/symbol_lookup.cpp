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

#include "preload/call_coverage.hpp"
#include "preload/interpose.hpp"
#include "preload/library_copies.hpp"
#include "preload/served_memory.hpp"
#include "preload/symbol_lookup.hpp"
#include "preload/symbol_table.hpp"

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

struct InterposedCall {
  const char* name;
  bool is_of_driver;
  NextDefinition real;
  std::atomic<void*> ours = nullptr;
};

constexpr bool kRuntime = false;
constexpr bool kDriver = true;

constinit InterposedCall interposed_calls[] = {
#define SERVED(symbol, library, table) {#symbol, table, {#symbol, library}},
#include "preload/served_calls.inc"
#undef SERVED
#define LEFT(symbol, library, table) {#symbol, table, {#symbol, library}},
#include "preload/left_calls.inc"
#undef LEFT
#define NOTED(symbol, library, table) {#symbol, table, {#symbol, library}},
#include "preload/noted_calls.inc"
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

// Our function of a name; nullptr: this library has been unloaded, or has none.
void* ours_of(InterposedCall& call) noexcept {
  if (void* known = call.ours.load(std::memory_order_acquire)) return known;
  if (uvmalloc_real_dlsym == nullptr) uvmalloc_find_real_lookups();
  const auto look_up = reinterpret_cast<Dlsym>(uvmalloc_real_dlsym);
  void* self = dlopen(own_library().dli_fname, RTLD_NOLOAD | RTLD_LAZY);
  void* found = self != nullptr && look_up != nullptr ? look_up(self, call.name) : nullptr;
  call.ours.store(found, std::memory_order_release);
  return found;
}

bool is_of_own_library(const void* address) noexcept {
  // This library may have any file name.
  static const void* const kOwnBase = own_library().dli_fbase;
  Dl_info found{};
  return dladdr(address, &found) != 0 && found.dli_fbase == kOwnBase;
}

// Libraries of CUDA and HIP call each other's functions, and ours call the real ones.
bool is_left_alone(const void* caller) noexcept {
  if (is_of_own_library(caller)) return true;
  Dl_info found{};
  if (dladdr(caller, &found) == 0) return false;
  const std::string_view name = file_name(found.dli_fname);
  return name.starts_with("libcuda") || name.starts_with("libamdhip64") ||
         name.starts_with("libuvm");
}

InterposedCall* call_of(const char* name) noexcept {
  auto* const found = std::ranges::find_if(interposed_calls, [&](const InterposedCall& call) {
    return std::strcmp(call.name, name) == 0;
  });
  return found != std::end(interposed_calls) ? found : nullptr;
}

// What a look-up answers that finds nothing; dlerror() says why.
void* const kNothing = reinterpret_cast<void*>(1);

// Ours where a look-up by a handle, `look_up`, finds a function of this name. Pseudo-handles are
// about the caller's place among the libraries.
template <class LookUp>
void* ours_for_handle(const char* name, const void* caller, LookUp look_up) noexcept {
  InterposedCall* call = call_of(name);
  if (call == nullptr || !wants_to_serve() || is_left_alone(caller)) return nullptr;
  void* real = look_up();
  void* ours = real != nullptr ? ours_of(*call) : nullptr;
  return ours != nullptr ? ours : real;
}

// Programs ask the global scope whether CUDA is there. Ours alone is no answer: it has nothing to
// pass calls on to.
template <class LookUp>
void* nothing_where_ours_is_alone(const char* name, LookUp look_up) noexcept {
  void* found = look_up(RTLD_DEFAULT);
  if (found == nullptr || !is_of_own_library(found)) return nullptr;
  if (next_definition(name, nullptr) != nullptr) return nullptr;
  look_up(RTLD_NEXT);  // sets the text of dlerror()
  return kNothing;
}

template <class LookUp>
void* answer(void* handle, const char* name, const void* caller, LookUp look_up) noexcept {
  if (handle == RTLD_NEXT) return nullptr;
  if (handle == RTLD_DEFAULT) return nothing_where_ours_is_alone(name, look_up);
  return ours_for_handle(name, caller, [&] { return look_up(handle); });
}

// Puts ours in the place of a function of the driver that a look-up has found. Results of both
// interfaces are 0 for success.
void put_ours(int result, void** found) noexcept {
  if (result != 0 || found == nullptr || !wants_to_serve()) return;
  for (InterposedCall& call : interposed_calls) {
    if (!call.is_of_driver || call.real.get() != *found) continue;
    if (void* ours = ours_of(call)) *found = ours;
    return;
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

// What dlsym and dlvsym answer to `caller`; nullptr: the real one is to answer; 1: they answer
// nullptr. Names that start with "cu" or "hi" alone come here.
__attribute__((visibility("hidden"), used)) void* uvmalloc_served_symbol(
    void* handle, const char* name, const void* caller) noexcept {
  return answer(handle, name, caller,
                [&](void* in) { return reinterpret_cast<Dlsym>(uvmalloc_real_dlsym)(in, name); });
}

__attribute__((visibility("hidden"), used)) void* uvmalloc_served_version(
    void* handle, const char* name, const char* version, const void* caller) noexcept {
  return answer(handle, name, caller, [&](void* in) {
    return reinterpret_cast<Dlvsym>(uvmalloc_real_dlvsym)(in, name, version);
  });
}
}

// The real dlsym looks at its caller's address, so everything else goes on to it by a jump. A
// debugger or profiler unwinds through them by their call-frame information. These are not there in
// sanitized builds, whose runtimes look functions up before they are initialised.
#if !defined(UVMALLOC_SANITIZED) && defined(__x86_64__)
#define UVMALLOC_PUSH(registers) "  pushq " registers "\n  .cfi_adjust_cfa_offset 8\n"
#define UVMALLOC_POP(registers) "  popq " registers "\n  .cfi_adjust_cfa_offset -8\n"
#define UVMALLOC_SAVE UVMALLOC_PUSH("%rdi") UVMALLOC_PUSH("%rsi") UVMALLOC_PUSH("%rdx")
#define UVMALLOC_RESTORE UVMALLOC_POP("%rdx") UVMALLOC_POP("%rsi") UVMALLOC_POP("%rdi")
#define UVMALLOC_LOOKUP(name, real, served, caller)                                      \
  asm(".text\n.globl " name "\n.type " name ",@function\n" name                          \
      ":\n"                                                                              \
      "  .cfi_startproc\n"                                                               \
      "  endbr64\n"                                                                      \
      "  cmpq $0, " real                                                                 \
      "(%rip)\n"                                                                         \
      "  jne 1f\n" UVMALLOC_SAVE "  call uvmalloc_find_real_lookups\n" UVMALLOC_RESTORE  \
      "1:\n"                                                                             \
      "  testq %rsi, %rsi\n  je 2f\n"                                                    \
      "  cmpb $'h', (%rsi)\n  je 4f\n"                                                   \
      "  cmpb $'c', (%rsi)\n  jne 2f\n"                                                  \
      "  cmpb $'u', 1(%rsi)\n  jne 2f\n"                                                 \
      "  jmp 5f\n"                                                                       \
      "4:\n"                                                                             \
      "  cmpb $'i', 1(%rsi)\n  jne 2f\n"                                                 \
      "5:\n"                                                                             \
      "  movq (%rsp), " caller "\n" UVMALLOC_SAVE "  call " served "\n" UVMALLOC_RESTORE \
      "  testq %rax, %rax\n  jne 3f\n"                                                   \
      "2:\n"                                                                             \
      "  jmpq *" real                                                                    \
      "(%rip)\n"                                                                         \
      "3:\n"                                                                             \
      "  cmpq $1, %rax\n  jne 6f\n"                                                      \
      "  xorl %eax, %eax\n"                                                              \
      "6:\n  ret\n  .cfi_endproc\n.size " name ", .-" name "\n")
UVMALLOC_LOOKUP("dlsym", "uvmalloc_real_dlsym", "uvmalloc_served_symbol", "%rdx");
UVMALLOC_LOOKUP("dlvsym", "uvmalloc_real_dlvsym", "uvmalloc_served_version", "%rcx");
#elif !defined(UVMALLOC_SANITIZED) && defined(__aarch64__)
// "hint #34" is the landing pad of an indirect call (bti c), by a name that all assemblers know. A
// jump by x16 may end at another function's landing pad.
#define UVMALLOC_LEAVE_FRAME    \
  "  ldp x29, x30, [sp], #48\n" \
  "  .cfi_restore 29\n  .cfi_restore 30\n  .cfi_def_cfa_offset 0\n"
#define UVMALLOC_LOOKUP(name, real, served, caller)                      \
  asm(".text\n.globl " name "\n.type " name ",%function\n" name          \
      ":\n"                                                              \
      "  .cfi_startproc\n"                                               \
      "  hint #34\n"                                                     \
      "  stp x29, x30, [sp, #-48]!\n"                                    \
      "  .cfi_def_cfa_offset 48\n"                                       \
      "  .cfi_offset 29, -48\n  .cfi_offset 30, -40\n"                   \
      "  mov x29, sp\n"                                                  \
      "  stp x0, x1, [sp, #16]\n  str x2, [sp, #32]\n"                   \
      "  adrp x9, " real "\n  ldr x9, [x9, :lo12:" real                  \
      "]\n"                                                              \
      "  cbnz x9, 1f\n"                                                  \
      "  bl uvmalloc_find_real_lookups\n"                                \
      "1:\n"                                                             \
      "  ldp x0, x1, [sp, #16]\n  ldr x2, [sp, #32]\n"                   \
      "  cbz x1, 2f\n"                                                   \
      "  ldrb w9, [x1]\n  cmp w9, #'h'\n  b.eq 4f\n"                     \
      "  cmp w9, #'c'\n  b.ne 2f\n"                                      \
      "  ldrb w9, [x1, #1]\n  cmp w9, #'u'\n  b.ne 2f\n"                 \
      "  b 5f\n"                                                         \
      "4:\n"                                                             \
      "  ldrb w9, [x1, #1]\n  cmp w9, #'i'\n  b.ne 2f\n"                 \
      "5:\n"                                                             \
      "  ldr " caller                                                    \
      ", [sp, #8]\n"                                                     \
      "  bl " served                                                     \
      "\n"                                                               \
      "  cbnz x0, 3f\n"                                                  \
      "  ldp x0, x1, [sp, #16]\n  ldr x2, [sp, #32]\n"                   \
      "2:\n"                                                             \
      "  .cfi_remember_state\n" UVMALLOC_LEAVE_FRAME "  adrp x16, " real \
      "\n  ldr x16, [x16, :lo12:" real                                   \
      "]\n"                                                              \
      "  br x16\n"                                                       \
      "3:\n"                                                             \
      "  .cfi_restore_state\n"                                           \
      "  cmp x0, #1\n  csel x0, xzr, x0, eq\n" UVMALLOC_LEAVE_FRAME      \
      "  ret\n  .cfi_endproc\n.size " name ", .-" name "\n")
UVMALLOC_LOOKUP("dlsym", "uvmalloc_real_dlsym", "uvmalloc_served_symbol", "x2");
UVMALLOC_LOOKUP("dlvsym", "uvmalloc_real_dlvsym", "uvmalloc_served_version", "x3");
#endif

// NOLINTBEGIN(readability-identifier-naming)

UVMALLOC_INTERPOSE CUresult cuGetProcAddress_v2(const char* name, void** out, int version,
                                                cuuint64_t flags,
                                                CUdriverProcAddressQueryResult* status) {
  const CUresult result =
      pass_on(UVMALLOC_NEXT(cuGetProcAddress_v2, "libcuda.so"), name, out, version, flags, status);
  put_ours_for(__builtin_return_address(0), result, out);
  return result;
}

// The form of drivers before CUDA 12.
#undef cuGetProcAddress
UVMALLOC_INTERPOSE CUresult cuGetProcAddress(const char* name, void** out, int version,
                                             cuuint64_t flags) {
  const CUresult result =
      pass_on(UVMALLOC_NEXT(cuGetProcAddress, "libcuda.so"), name, out, version, flags);
  put_ours_for(__builtin_return_address(0), result, out);
  return result;
}

// Results are cudaError_t; the last argument is a place for the reason. A default stream per thread
// has names of its own, whose flags mean other functions of the driver.
#define UVMALLOC_DRIVER_ENTRY_POINT(function)                                                      \
  UVMALLOC_INTERPOSE int function(const char* name, void** out, unsigned long long flags,          \
                                  void* status) {                                                  \
    const int result = pass_on(UVMALLOC_NEXT(function, "libcudart.so"), name, out, flags, status); \
    put_ours(result, out);                                                                         \
    return result;                                                                                 \
  }
#define UVMALLOC_DRIVER_ENTRY_POINT_BY_VERSION(function)                                     \
  UVMALLOC_INTERPOSE int function(const char* name, void** out, unsigned version,            \
                                  unsigned long long flags, void* status) {                  \
    const int result =                                                                       \
        pass_on(UVMALLOC_NEXT(function, "libcudart.so"), name, out, version, flags, status); \
    put_ours(result, out);                                                                   \
    return result;                                                                           \
  }
UVMALLOC_DRIVER_ENTRY_POINT(cudaGetDriverEntryPoint)
UVMALLOC_DRIVER_ENTRY_POINT(cudaGetDriverEntryPoint_ptsz)
UVMALLOC_DRIVER_ENTRY_POINT_BY_VERSION(cudaGetDriverEntryPointByVersion)
UVMALLOC_DRIVER_ENTRY_POINT_BY_VERSION(cudaGetDriverEntryPointByVersion_ptsz)

// NOLINTEND(readability-identifier-naming)
