// Intercepts look-ups by name, by which programs get functions without linking: dlsym and dlvsym on
// a handle, and the driver's cuGetProcAddress. If a look-up finds a function that uvmalloc
// intercepts, the program gets uvmalloc's function. If UVMALLOC_CUDA is off, every look-up of CUDA
// and HIP is forwarded unchanged. Look-ups of NVML do not depend on UVMALLOC_CUDA, because NVML
// allocates nothing.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "preload/call_coverage.hpp"
#include "preload/calls.hpp"
#include "preload/interpose.hpp"
#include "preload/library_copies.hpp"
#include "preload/served_memory.hpp"
#include "preload/symbol_lookup.hpp"
#include "preload/symbol_table.hpp"

namespace uvm::preload {
namespace {

using Dlsym = void* (*)(void*, const char*);
using Dlvsym = void* (*)(void*, const char*, const char*);

// The code down to RealLookups runs inside the process's first look-up. A sanitizer may make that
// look-up before it is initialised, so this code calls no function that a sanitizer replaces.

// Returns whether the file name in `path` starts with `beginning`.
UVMALLOC_CALLS_NOTHING bool is_file_named(const char* path, const char* beginning) noexcept {
  const char* name = path;
  for (const char* letter = path; *letter != '\0'; ++letter) {
    if (*letter == '/') name = letter + 1;
  }
  while (*beginning != '\0' && *name == *beginning) ++name, ++beginning;
  return *beginning == '\0';
}

// Finds the real dlsym and dlvsym: in libc, or in libdl of older versions.
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

}  // namespace
}  // namespace uvm::preload

extern "C" {
// The assembly below reads these pointers. They are nullptr until the first look-up.
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

// Returns uvmalloc's function of this name, or nullptr if this library was unloaded or does not
// define the function.
void* ours_of(InterceptedCall& call) noexcept {
  if (void* known = call.ours.load(std::memory_order_acquire)) return known;
  if (uvmalloc_real_dlsym == nullptr) uvmalloc_find_real_lookups();
  const auto look_up = reinterpret_cast<Dlsym>(uvmalloc_real_dlsym);
  void* self = dlopen(own_library().dli_fname, RTLD_NOLOAD | RTLD_LAZY);
  void* found = self != nullptr && look_up != nullptr ? look_up(self, call.name) : nullptr;
  call.ours.store(found, std::memory_order_release);
  return found;
}

// Returns whether the caller gets the real functions. Libraries of CUDA, HIP and uvmalloc get them.
bool is_left_alone(const void* caller) noexcept {
  if (is_of_own_library(caller)) return true;
  Dl_info found{};
  if (dladdr(caller, &found) == 0) return false;
  const std::string_view name = file_name(found.dli_fname);
  return name.starts_with("libcuda") || name.starts_with("libamdhip64") ||
         name.starts_with("libuvm");
}

InterceptedCall* call_of(const char* name) noexcept {
  auto* const found = std::ranges::find_if(intercepted_calls, [&](const InterceptedCall& call) {
    return std::strcmp(call.name, name) == 0;
  });
  return found != std::end(intercepted_calls) ? found : nullptr;
}

// uvmalloc also intercepts NVML's functions in processes whose memory the PyTorch plugin serves.
bool wants_ours(const InterceptedCall& call) noexcept {
  return wants_to_serve() || std::string_view(call.name).starts_with("nvml");
}

// Makes the assembly return nullptr: the function was not found, and dlerror() says why.
void* const kNothing = reinterpret_cast<void*>(1);

// Returns uvmalloc's function if `look_up` finds the real one by its handle, or nullptr to forward
// the look-up. Never called for pseudo-handles such as RTLD_NEXT, which depend on the caller.
template <class LookUp>
void* ours_for_handle(const char* name, const void* caller, LookUp look_up) noexcept {
  InterceptedCall* call = call_of(name);
  if (call == nullptr || !wants_ours(*call) || is_left_alone(caller)) return nullptr;
  void* real = look_up();
  void* ours = real != nullptr ? ours_of(*call) : nullptr;
  return ours != nullptr ? ours : real;
}

// Programs search the global scope to find out whether CUDA is present. If only uvmalloc's function
// exists, it has no function to forward to, so the result is "not found".
template <class LookUp>
void* nothing_where_ours_is_alone(const char* name, LookUp look_up) noexcept {
  void* found = look_up(RTLD_DEFAULT);
  if (found == nullptr || !is_of_own_library(found)) return nullptr;
  if (next_definition(name, nullptr) != nullptr) return nullptr;
  look_up(RTLD_NEXT);  // sets the message of dlerror()
  return kNothing;
}

template <class LookUp>
void* answer(void* handle, const char* name, const void* caller, LookUp look_up) noexcept {
  if (handle == RTLD_NEXT) return nullptr;
  if (handle == RTLD_DEFAULT) return nothing_where_ours_is_alone(name, look_up);
  return ours_for_handle(name, caller, [&] { return look_up(handle); });
}

}  // namespace

// If a look-up succeeded (`result` is 0), replaces the driver's function in `*found` by uvmalloc's.
void put_ours(int result, void** found) noexcept {
  if (result != 0 || found == nullptr || !wants_to_serve()) return;
  for (InterceptedCall& call : intercepted_calls) {
    if (!call.has_own_look_up || call.real.get() != *found) continue;
    if (void* ours = ours_of(call)) *found = ours;
    return;
  }
}

void put_ours_for(const void* caller, int result, void** found) noexcept {
  if (!wants_to_serve() || is_left_alone(caller)) return;
  note_lookup(caller);
  put_ours(result, found);
}

}  // namespace uvm::preload

using namespace uvm::preload;

extern "C" {

// Return what dlsym and dlvsym have to return to `caller`. If the result is nullptr, the assembly
// jumps to the real function; if it is 1, the assembly returns nullptr. Called only for names that
// start with "cu", "hi" or "nv".
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

// The real dlsym inspects its return address. So for all other look-ups the assembly jumps to dlsym
// instead of calling it. The call-frame information lets debuggers unwind. Sanitized builds omit
// these functions, because a sanitizer's runtime looks functions up before it is initialised.
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
      "  cmpb $'n', (%rsi)\n  je 7f\n"                                                   \
      "  cmpb $'c', (%rsi)\n  jne 2f\n"                                                  \
      "  cmpb $'u', 1(%rsi)\n  jne 2f\n"                                                 \
      "  jmp 5f\n"                                                                       \
      "4:\n"                                                                             \
      "  cmpb $'i', 1(%rsi)\n  jne 2f\n"                                                 \
      "  jmp 5f\n"                                                                       \
      "7:\n"                                                                             \
      "  cmpb $'v', 1(%rsi)\n  jne 2f\n"                                                 \
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
// "hint #34" is bti c, the landing pad of an indirect call, in a form that every assembler accepts.
// The jump uses x16, because bti c accepts jumps through x16.
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
      "  cmp w9, #'n'\n  b.eq 7f\n"                                      \
      "  cmp w9, #'c'\n  b.ne 2f\n"                                      \
      "  ldrb w9, [x1, #1]\n  cmp w9, #'u'\n  b.ne 2f\n"                 \
      "  b 5f\n"                                                         \
      "4:\n"                                                             \
      "  ldrb w9, [x1, #1]\n  cmp w9, #'i'\n  b.ne 2f\n"                 \
      "  b 5f\n"                                                         \
      "7:\n"                                                             \
      "  ldrb w9, [x1, #1]\n  cmp w9, #'v'\n  b.ne 2f\n"                 \
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
