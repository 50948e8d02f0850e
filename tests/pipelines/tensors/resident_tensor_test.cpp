#include "pipelines/tensors/resident_tensor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>

#include "pipelines/tensors/tensor_bindings.hpp"

#include "tests/support/host_devices.hpp"
#include "tests/support/message_of.hpp"

namespace uvm {
namespace {

using testing::HostDevices;
using testing::message_of;

const TensorType kBytes{1, {4}};

void fill(void* data, const char* text) {
  std::memcpy(data, text, 4);
}
std::string text_of(const void* data) {
  return {static_cast<const char*>(data), 4};
}

TEST(ResidentTensor, DataGoesToTheDeviceOnceAndComesBackOnce) {
  HostDevices devices;
  ResidentTensor tensor("w", kBytes, HostAccess::kTransfer);
  fill(tensor.mutable_host_data(), "abcd");
  EXPECT_EQ(devices.live_bytes, 0u) << "nothing moves before it is used";
  for (int use = 0; use < 3; ++use) EXPECT_EQ(text_of(tensor.device_data(devices, 0)), "abcd");
  EXPECT_FALSE(tensor.is_device_resident()) << "the host's copy is as new";
  fill(tensor.mutable_device_data(devices, 0), "wxyz");
  EXPECT_TRUE(tensor.is_device_resident());
  for (int use = 0; use < 3; ++use) EXPECT_EQ(text_of(tensor.host_data()), "wxyz");
  EXPECT_EQ(tensor.transfers(), (TransferCounts{1, 1, 0}));
  EXPECT_EQ(devices.copies_to_device, 1);
  EXPECT_EQ(devices.copies_to_host, 1);
}

TEST(ResidentTensor, AWriteOnTheHostMakesTheDevicesCopyOld) {
  HostDevices devices;
  ResidentTensor tensor("w", kBytes);
  tensor.transfer_to_device(devices, 0);
  const void* const address = tensor.residency().context;
  fill(tensor.mutable_host_data(), "abcd");
  EXPECT_EQ(tensor.residency(), DeviceResidencyInfo{});
  EXPECT_EQ(text_of(tensor.device_data(devices, 0)), "abcd");
  EXPECT_EQ(tensor.residency().context, address) << "its memory there is used again";
  EXPECT_EQ(tensor.transfers().to_device, 2u);
}

TEST(ResidentTensor, TouchingDataThatIsOnADeviceIsAnErrorThatNamesItAndItsPlace) {
  HostDevices devices(3);
  ResidentTensor tensor("activation 7", kBytes);
  tensor.device_output(devices, 2);
  EXPECT_EQ(message_of([&] { tensor.host_data(); }),
            "the data of tensor 'activation 7' is on test device 2, not on the host; "
            "call transfer_from_device() first");
  EXPECT_THROW(tensor.mutable_host_data(), NotResidentError);
  EXPECT_TRUE(tensor.transfer_from_device());
  EXPECT_NO_THROW(tensor.host_data());
  EXPECT_FALSE(tensor.transfer_from_device()) << "no device has it";
  EXPECT_EQ(devices.live_bytes, 0u);
}

TEST(ResidentTensor, AnOutputIsNotTransferredBeforeItIsWritten) {
  HostDevices devices;
  ResidentTensor tensor("out", kBytes);
  fill(tensor.device_output(devices, 0), "abcd");
  EXPECT_EQ(tensor.transfers(), TransferCounts{});
  tensor.transfer_from_device(false);
  EXPECT_EQ(devices.live_bytes, 4u) << "without release the device keeps its memory";
  EXPECT_EQ(text_of(tensor.host_data()), "abcd");
  EXPECT_EQ(text_of(tensor.device_data(devices, 0)), "abcd");
  EXPECT_EQ(tensor.transfers(), (TransferCounts{0, 1, 0}));
}

TEST(ResidentTensor, PeersCopyDirectlyAndOthersByWayOfTheHost) {
  for (const bool are_peers : {true, false}) {
    HostDevices devices(2);
    devices.are_peers = are_peers;
    ResidentTensor tensor("a", kBytes);
    fill(tensor.device_output(devices, 0), "abcd");
    EXPECT_EQ(text_of(tensor.device_data(devices, 1)), "abcd");
    EXPECT_EQ(tensor.residency().device, 1);
    EXPECT_EQ(devices.live_bytes, 4u) << "the first device's memory is free";
    EXPECT_EQ(tensor.transfers(),
              are_peers ? (TransferCounts{0, 0, 1}) : (TransferCounts{1, 1, 0}));
  }
}

TEST(ResidentTensor, BetweenTwoRuntimesDataGoesByWayOfTheHost) {
  HostDevices one(1, "one"), other(1, "other");
  ResidentTensor tensor("a", kBytes);
  fill(tensor.device_output(one, 0), "abcd");
  EXPECT_EQ(text_of(tensor.device_data(other, 0)), "abcd");
  EXPECT_EQ(one.live_bytes, 0u);
  EXPECT_EQ(tensor.transfers(), (TransferCounts{1, 1, 0}));
}

TEST(ResidentTensor, DataOnTheHostGoesToASecondDeviceFromThere) {
  HostDevices devices(2);
  ResidentTensor tensor("a", kBytes);
  fill(tensor.mutable_host_data(), "abcd");
  tensor.transfer_to_device(devices, 0);
  tensor.transfer_to_device(devices, 1);
  EXPECT_EQ(tensor.transfers(), (TransferCounts{2, 0, 0}));
}

TEST(ResidentTensor, ALocationOfTheCallersIsUsedAndNotFreed) {
  HostDevices devices;
  void* const location = devices.allocate(0, 4);
  {
    ResidentTensor tensor("a", kBytes);
    fill(tensor.mutable_host_data(), "abcd");
    tensor.transfer_to_device(devices, 0, location);
    EXPECT_EQ(tensor.residency(), (DeviceResidencyInfo{&devices, 0, location}));
    EXPECT_EQ(text_of(location), "abcd");
    tensor.transfer_from_device(true);
  }
  EXPECT_EQ(devices.live_bytes, 4u);
  devices.free(0, location);
}

TEST(ResidentTensor, ReleaseGivesUpWhatOnlyTheDeviceHad) {
  HostDevices devices;
  ResidentTensor tensor("a", kBytes);
  fill(tensor.mutable_host_data(), "abcd");
  fill(tensor.mutable_device_data(devices, 0), "wxyz");
  tensor.release();
  EXPECT_EQ(devices.live_bytes, 0u);
  EXPECT_EQ(text_of(tensor.host_data()), "abcd") << "what it was before, not garbage";
  EXPECT_EQ(tensor.transfers().to_host, 0u);
}

TEST(ResidentTensor, ATransferThatFailsLosesNothing) {
  HostDevices devices(2);
  ResidentTensor tensor("a", kBytes, HostAccess::kTransfer);
  fill(tensor.mutable_host_data(), "abcd");
  devices.refuses_copies = true;
  EXPECT_THROW(tensor.transfer_to_device(devices, 0), TransferError);
  EXPECT_EQ(text_of(tensor.host_data()), "abcd");
  devices.refuses_copies = false;
  fill(tensor.mutable_device_data(devices, 0), "wxyz");
  devices.refuses_copies = true;
  EXPECT_THROW(tensor.host_data(), TransferError);
  EXPECT_THROW(tensor.transfer_to_device(devices, 1), TransferError);
  devices.refuses_copies = false;
  devices.refuses_memory = true;
  EXPECT_THROW(tensor.transfer_to_device(devices, 1), std::bad_alloc);
  EXPECT_EQ(text_of(tensor.host_data()), "wxyz");
  EXPECT_EQ(devices.live_bytes, 4u);
}

TEST(ResidentTensor, PinnedMemoryHasTheDevicesFormatAndTheData) {
  HostDevices devices;
  ResidentTensor tensor("a", kBytes);
  fill(tensor.mutable_host_data(), "abcd");
  EXPECT_FALSE(tensor.is_pinned_for(devices, 0));
  tensor.allocate_pinned(devices, 0);
  EXPECT_TRUE(tensor.is_pinned_for(devices, 0));
  EXPECT_EQ(text_of(tensor.host_data()), "abcd");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.host_data()) % 256, 0u);
  tensor.allocate_pinned(devices, 0);
  EXPECT_EQ(devices.pinned, 1) << "once is enough";
}

TEST(ResidentTensor, SizesAreCheckedForOverflowAndSign) {
  EXPECT_EQ((TensorType{4, {2, 3}}.size_bytes()), 24u);
  EXPECT_EQ((TensorType{4, {2, 0, INT64_MAX}}.size_bytes()), 0u);
  EXPECT_EQ((TensorType{1, {}}.size_bytes()), 1u) << "a scalar";
  EXPECT_THROW((TensorType{4, {INT64_MAX, 2}}.size_bytes()), std::overflow_error);
  EXPECT_EQ(message_of([] {
              TensorType{4, {2, -3}}.size_bytes();
            }),
            "a dimension is -3; accepted: 0 or more");
}

// Random use from host and devices, compared with a model that keeps only the text.
TEST(ResidentTensor, RandomUseAlwaysSeesTheLastWrite) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    HostDevices one(3, "one"), two(1, "two");
    one.are_peers = seed % 2 == 0;
    ResidentTensor tensor("t", kBytes, HostAccess::kTransfer);
    std::string model(4, '\0');
    for (int step = 0; step < 60; ++step) {
      const HostDevices& devices = random() % 3 == 0 ? two : one;
      const int device = static_cast<int>(random() % devices.device_count());
      const std::string fresh = {static_cast<char>('a' + step % 26), 'x', 'y',
                                 static_cast<char>('a' + seed % 26)};
      switch (random() % 7) {
        case 0:
          ASSERT_EQ(text_of(tensor.host_data()), model);
          break;
        case 1:
          fill(tensor.mutable_host_data(), fresh.c_str());
          model = fresh;
          break;
        case 2:
          ASSERT_EQ(text_of(tensor.device_data(devices, device)), model);
          break;
        case 3: {
          void* const data = tensor.mutable_device_data(devices, device);
          ASSERT_EQ(text_of(data), model);
          fill(data, fresh.c_str());
          model = fresh;
          break;
        }
        case 4:
          fill(tensor.device_output(devices, device), fresh.c_str());
          model = fresh;
          break;
        case 5:
          tensor.transfer_from_device(random() % 2 == 0);
          break;
        default:
          tensor.allocate_pinned(devices, device);
      }
      ASSERT_LE(one.live_bytes + two.live_bytes, 4u) << "one device has memory at a time";
    }
  }
}

TEST(TensorBindings, OutputsComeToTheHostWhenTheyAreWantedAndOnlyThose) {
  HostDevices devices;
  TensorBindings bindings;
  bindings.add("weight", kBytes);
  bindings.add("output", kBytes);
  bindings.at("weight").device_data(devices, 0);
  fill(bindings.at("output").device_output(devices, 0), "abcd");
  bindings.ensure_outputs_available();
  bindings.ensure_outputs_available();
  EXPECT_EQ(text_of(bindings.at("output").host_data()), "abcd");
  EXPECT_EQ(bindings.transfers(), (TransferCounts{1, 1, 0}));
}

TEST(TensorBindings, AllOfAProgramsTensorsAreAllocatedPinned) {
  HostDevices devices;
  TensorBindings bindings;
  for (const char* name : {"a", "b", "c"}) bindings.add(name, kBytes);
  bindings.allocate_pinned(devices, 0);
  EXPECT_EQ(devices.pinned, 3);
  EXPECT_TRUE(bindings.at("b").is_pinned_for(devices, 0));
}

TEST(TensorBindings, UnknownAndTakenNamesAreNamed) {
  TensorBindings bindings;
  bindings.add("a", kBytes);
  EXPECT_EQ(message_of([&] { bindings.add("a", kBytes); }), "a tensor 'a' is bound already");
  EXPECT_EQ(message_of([&] { bindings.at("b"); }), "no tensor 'b' is bound");
}

}  // namespace
}  // namespace uvm
