// A machine of two devices with 64 MiB each. Every test starts with nothing allocated and all
// counters at zero, in whichever order the tests run.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <uvmalloc/sim/uvmsim.h>
#include "sim/engine/machine.hpp"

namespace uvmsim::test {

inline constexpr std::size_t kKiB = std::size_t{1} << 10;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kPage = 4 * kKiB;
inline constexpr std::size_t kBlock = 2 * kMiB;
inline constexpr std::size_t kCapacity = 64 * kMiB;

class MachineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(machine().device_count(), 2);
    for (int device = 0; device < 2; ++device)
      ASSERT_EQ(uvmsim_set_capacity(device, kCapacity), UVMSIM_OK);
    for (int device = 0; device < 2; ++device) machine().streams().wait_for_device(device);
    stream_ = machine().streams().create_stream(0, 0, false, 0);
    uvmsim_reset_counters();
  }

  void TearDown() override {
    for (void* address : live_) machine().memory().free(address, Wait::kYes);
    machine().streams().destroy_stream(stream_);
    machine().memory().disable_peer_access(0, 1);
    machine().memory().disable_peer_access(1, 0);
    EXPECT_EQ(machine().broken_invariant(), "");
    for (int device = 0; device < 2; ++device) EXPECT_EQ(used(device), 0U);
  }

  static Machine& machine() { return Machine::instance(); }

  std::byte* managed(std::size_t bytes) {
    void* address = nullptr;
    EXPECT_EQ(machine().memory().allocate_managed(0, bytes, 1, &address), Status::kOk);
    live_.push_back(address);
    return static_cast<std::byte*>(address);
  }

  std::byte* device_memory(int device, std::size_t bytes) {
    void* address = nullptr;
    EXPECT_EQ(machine().memory().allocate_device(device, bytes, &address), Status::kOk);
    live_.push_back(address);
    return static_cast<std::byte*>(address);
  }

  void free(void* address) {
    EXPECT_EQ(machine().memory().free(address, Wait::kYes), Status::kOk);
    std::erase(live_, address);
  }

  int touch(int device, const void* address, std::size_t bytes, int access) {
    const uvmsim_access accesses[] = {{address, bytes, access}};
    return uvmsim_kernel(device, nullptr, accesses, 1, 0);
  }

  Status prefetch(const void* address, std::size_t bytes, int location) {
    return machine().placements().prefetch(0, stream_, {address, bytes}, location);
  }

  Status advise(const void* address, std::size_t bytes, Advice advice, int location) {
    return machine().placements().advise({address, bytes}, advice, location);
  }

  static std::size_t resident(const void* address, std::size_t bytes, int location) {
    std::size_t found = 0;
    EXPECT_EQ(uvmsim_residency(address, bytes, location, &found), UVMSIM_OK);
    return found;
  }

  static std::size_t managed_use(int device) {
    std::size_t bytes = 0;
    EXPECT_EQ(uvmsim_used(device, nullptr, &bytes), UVMSIM_OK);
    return bytes;
  }

  static std::size_t unevictable_use(int device) {
    std::size_t bytes = 0;
    EXPECT_EQ(uvmsim_used(device, &bytes, nullptr), UVMSIM_OK);
    return bytes;
  }

  static std::size_t used(int device) { return managed_use(device) + unevictable_use(device); }

  static uvmsim_counters counters() {
    uvmsim_counters counters{};
    uvmsim_get_counters(&counters);
    return counters;
  }

  StreamHandle stream_ = nullptr;

 private:
  std::vector<void*> live_;
};

}  // namespace uvmsim::test
