// Makes the kernel refuse a system call, as the filter of a container may do.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>

namespace uvm::testing {

struct ArgumentValue {
  std::size_t argument;  // 0 for the first one
  std::uint32_t value;
};

// From now on, system call `number` fails with `error` on this thread, and on threads and in
// processes that this thread starts. With `only`, it fails if the argument has that value. Returns
// whether the kernel accepts the filter.
inline bool refuse_system_call(std::uint32_t number, std::uint32_t error,
                               std::optional<ArgumentValue> only = std::nullopt) {
  constexpr std::uint16_t kLoad = BPF_LD | BPF_W | BPF_ABS;
  constexpr std::uint16_t kEqual = BPF_JMP | BPF_JEQ | BPF_K;
  constexpr std::uint16_t kReturn = BPF_RET | BPF_K;
  const ArgumentValue wanted = only.value_or(ArgumentValue{0, 0});
  const auto argument = static_cast<std::uint32_t>(offsetof(seccomp_data, args) +
                                                   wanted.argument * sizeof(std::uint64_t));
  const std::uint8_t if_other_value = only ? 1 : 0;  // instructions to skip
  sock_filter filter[] = {
      {kLoad, 0, 0, offsetof(seccomp_data, nr)},
      {kEqual, 0, 3, number},
      {kLoad, 0, 0, argument},
      {kEqual, 0, if_other_value, wanted.value},
      {kReturn, 0, 0, SECCOMP_RET_ERRNO | error},
      {kReturn, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog program = {std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace uvm::testing
