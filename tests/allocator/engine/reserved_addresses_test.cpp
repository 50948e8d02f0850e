// Blocks at addresses that their owner chooses.
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "allocator/engine/engine.hpp"
#include "allocator/engine/reserved_addresses.hpp"

#include "tests/support/allocator_fixture.hpp"

namespace uvm {
namespace {

using testing::kMiB;
using testing::stream;

class ReservedAddressesTest : public testing::AllocatorTest {
 protected:
  ReservedAddresses addresses() { return ReservedAddresses(allocator->engine()); }
  void place(char* address, std::size_t size_bytes) {
    addresses().promise(0, size_bytes);
    addresses().place(0, address, size_bytes);
  }
  std::size_t touched_bytes() { return allocator->statistics().touched_bytes.current; }
};

TEST_F(ReservedAddressesTest, AddressesCostNothingUntilMemoryIsPlacedThere) {
  char* base = addresses().reserve(0, 1024 * kMiB);
  EXPECT_EQ(touched_bytes(), 0u);
  place(base + 100 * kMiB, 6 * kMiB);
  EXPECT_EQ(touched_bytes(), 6 * kMiB);
  const auto block = allocator->find(base + 103 * kMiB);
  ASSERT_TRUE(block && block->live);
  EXPECT_EQ(block->base, base + 100 * kMiB);
  EXPECT_EQ(block->location, Place::device(0));
  addresses().remove(base + 100 * kMiB);
  EXPECT_EQ(touched_bytes(), 0u);
  EXPECT_EQ(allocator->statistics().discarded_bytes, 6 * kMiB);
  addresses().release(base);
  EXPECT_EQ(machine->allocated_bytes, 0u);
}

TEST_F(ReservedAddressesTest, OtherRequestsNeverUseThem) {
  char* base = addresses().reserve(0, 64 * kMiB);
  place(base, 2 * kMiB);
  addresses().remove(base);
  std::vector<char*> others;
  for (int i = 0; i < 20; ++i) others.push_back(device((1 + i % 5) * kMiB, stream(1 + i % 3)));
  for (char* other : others) {
    EXPECT_TRUE(other + 5 * kMiB < base || other >= base + 64 * kMiB);
    allocator->free(other);
  }
  allocator->release_cached();
  place(base, 64 * kMiB);
  addresses().remove(base);
  addresses().release(base);
}

TEST_F(ReservedAddressesTest, APromiseCountsAgainstTheBudgetUntilItIsWithdrawn) {
  addresses().promise(0, 200 * kMiB);
  EXPECT_THROW(addresses().promise(0, 58 * kMiB), OutOfMemoryError);
  EXPECT_NE(refusal(58 * kMiB), "it was allocated");
  EXPECT_EQ(allocator->limits().free_bytes(0, {512 * kMiB, 512 * kMiB}), 56 * kMiB);
  char* base = addresses().reserve(0, 256 * kMiB);
  addresses().place(0, base, 150 * kMiB);
  EXPECT_THROW(addresses().promise(0, 58 * kMiB), OutOfMemoryError) << "placed or promised";
  addresses().withdraw(0, 50 * kMiB);
  addresses().promise(0, 58 * kMiB);
  addresses().withdraw(0, 58 * kMiB);
  addresses().remove(base);
  addresses().release(base);
}

TEST_F(ReservedAddressesTest, APromiseMakesRoom) {
  allocator->free(device(200 * kMiB));
  addresses().promise(0, 200 * kMiB);
  EXPECT_EQ(touched_bytes(), 0u) << "the cached block was given back";
  void* kept = device(30 * kMiB);
  allocator->limits().add_pressure_callback([&] {
    if (kept == nullptr) return false;
    allocator->free(std::exchange(kept, nullptr));
    return true;
  });
  addresses().promise(0, 50 * kMiB);
  EXPECT_EQ(kept, nullptr);
  addresses().withdraw(0, 250 * kMiB);
}

TEST_F(ReservedAddressesTest, ADevicesLimitCountsPromises) {
  allocator->limits().set_device_limit(0, 64 * kMiB);
  addresses().promise(0, 60 * kMiB);
  EXPECT_THROW(addresses().promise(0, 6 * kMiB), OutOfMemoryError);
  EXPECT_NE(refusal(6 * kMiB).find("limit of device 0"), std::string::npos);
  addresses().withdraw(0, 60 * kMiB);
}

TEST_F(ReservedAddressesTest, AddressesInUseAreRefused) {
  char* base = addresses().reserve(0, 32 * kMiB);
  place(base + 4 * kMiB, 4 * kMiB);
  addresses().promise(0, 8 * kMiB);
  EXPECT_THROW(addresses().place(0, base, 8 * kMiB), std::logic_error);
  EXPECT_THROW(addresses().place(0, base + 28 * kMiB, 8 * kMiB), std::logic_error);
  addresses().place(0, base + 8 * kMiB, 8 * kMiB);
  for (char* block : {base + 4 * kMiB, base + 8 * kMiB}) addresses().remove(block);
  addresses().release(base);
}

TEST_F(ReservedAddressesTest, PagesLeaveAfterTheStreamsThatUseThem) {
  char* base = addresses().reserve(0, 32 * kMiB);
  place(base, 4 * kMiB);
  allocator->record_use(base, 0, stream(3));
  machine->busy = {stream(3)};
  addresses().remove(base);
  EXPECT_EQ(machine->busy.size(), 0u) << "the removal waits, as cuMemUnmap does";
  EXPECT_EQ(touched_bytes(), 0u);
  addresses().release(base);
}

TEST_F(ReservedAddressesTest, ARemovalDuringACaptureTakesEffectLater) {
  char* base = addresses().reserve(0, 32 * kMiB);
  place(base, 4 * kMiB);
  allocator->private_pools().begin(
      0, 7, [](StreamHandle asks) { return asks == stream(8); }, true);
  machine->capturing = {stream(8)};
  addresses().remove(base);
  EXPECT_EQ(touched_bytes(), 4 * kMiB);
  machine->capturing.clear();
  allocator->private_pools().end(0, 7);
  place(base, 4 * kMiB);
  addresses().remove(base);
  EXPECT_EQ(touched_bytes(), 0u);
  addresses().release(base);
}

TEST_F(ReservedAddressesTest, ADeviceThatCannotDiscardKeepsPagesInTheRange) {
  DeviceCapabilities capabilities = testing::FakeMachine{}.capabilities;
  capabilities.discard = false;
  start(small_configuration(), 1, capabilities);
  char* base = addresses().reserve(0, 32 * kMiB);
  for (int i = 0; i < 5; ++i) {
    place(base, 4 * kMiB);
    addresses().remove(base);
    EXPECT_EQ(touched_bytes(), 4 * kMiB);
  }
  addresses().release(base);
  EXPECT_EQ(touched_bytes(), 0u);
}

TEST_F(ReservedAddressesTest, DevicesShareARange) {
  start(small_configuration(), 2);
  char* base = addresses().reserve(0, 32 * kMiB);
  addresses().promise(1, 4 * kMiB);
  addresses().place(1, base, 4 * kMiB);
  EXPECT_EQ(allocator->find(base)->location, Place::device(1));
  EXPECT_THROW(addresses().reserve(2, 4 * kMiB), std::out_of_range);
  EXPECT_THROW(addresses().promise(2, 4 * kMiB), std::out_of_range);
  addresses().remove(base);
  addresses().release(base);
}

}  // namespace
}  // namespace uvm
