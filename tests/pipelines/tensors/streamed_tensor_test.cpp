#include "pipelines/tensors/streamed_tensor.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "pipelines/tensors/file_source.hpp"

#include "tests/support/host_devices.hpp"
#include "tests/support/message_of.hpp"

namespace uvm {
namespace {

using testing::HostDevices;
using testing::message_of;

// A remote source with short reads, which fail when a test says so.
class Remote final : public TensorSource {
 public:
  explicit Remote(std::size_t size_bytes) : bytes_(size_bytes) {
    for (std::size_t at = 0; at < size_bytes; ++at) bytes_[at] = static_cast<char>(at * 7);
  }
  const std::string& name() const override { return name_; }
  std::uint64_t size_bytes() const override { return bytes_.size(); }
  std::size_t read(std::uint64_t offset, std::span<char> buffer) const override {
    ++reads;
    if (failures_from <= offset && failures > 0) {
      --failures;
      throw SourceError("the connection was reset");
    }
    const std::size_t count = std::min<std::size_t>(buffer.size(), 3);
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), count, buffer.begin());
    return count;
  }
  char at(std::size_t place) const { return bytes_[place]; }

  mutable int reads = 0;
  mutable int failures = 0;
  std::uint64_t failures_from = 0;

 private:
  std::string name_ = "remote";
  std::vector<char> bytes_;
};

TEST(StreamedTensor, WindowsHoldTheSourcesBytesAndGoWhenTheyAreDropped) {
  const Remote remote(100);
  HostDevices devices;
  {
    StreamedTensor tensor("w", remote, 10, 80, 32);
    ASSERT_EQ(tensor.window_count(), 3u);
    for (std::size_t window = 0; window < 3; ++window) {
      ResidentTensor& loaded = tensor.load(window);
      const auto* bytes = static_cast<const char*>(loaded.device_data(devices, 0));
      ASSERT_EQ(loaded.size_bytes(), window == 2 ? 16u : 32u);
      for (std::size_t at = 0; at < loaded.size_bytes(); ++at)
        ASSERT_EQ(bytes[at], remote.at(10 + window * 32 + at));
      if (window > 0) tensor.drop(window - 1);
      EXPECT_EQ(tensor.loaded_windows(), 1u);
    }
    EXPECT_EQ(devices.peak_bytes, 64u) << "two windows of the three";
    EXPECT_EQ(tensor.bytes_read(), 80u) << "each byte once";
    tensor.load(2);
    EXPECT_EQ(tensor.bytes_read(), 80u) << "it is there";
  }
  EXPECT_EQ(devices.live_bytes, 0u);
}

TEST(StreamedTensor, AReadThatFailsIsRepeatedFromWhereItFailed) {
  Remote remote(90);
  remote.failures_from = 40;
  remote.failures = StreamedTensor::kAttempts - 1;
  StreamedTensor tensor("w", remote, 0, 90, 90);
  const auto* bytes = static_cast<const char*>(tensor.load(0).host_data());
  for (std::size_t at = 0; at < 90; ++at) ASSERT_EQ(bytes[at], remote.at(at));
  EXPECT_EQ(remote.reads, 30 + StreamedTensor::kAttempts - 1);
  EXPECT_EQ(tensor.bytes_read(), 90u);
}

TEST(StreamedTensor, ASourceThatGoesOnFailingIsAClearErrorAndNothingIsLost) {
  Remote remote(90);
  remote.failures_from = 40;
  remote.failures = 1000;
  StreamedTensor tensor("layer.weight", remote, 0, 90, 30);
  tensor.load(0);
  EXPECT_EQ(message_of([&] { tensor.load(1); }),
            "tensor 'layer.weight': window 1 cannot be loaded: 12 of 30 bytes: the connection was "
            "reset");
  EXPECT_FALSE(tensor.is_loaded(1));
  EXPECT_EQ(static_cast<const char*>(tensor.at(0).host_data())[5], remote.at(5));
  remote.failures = 0;
  EXPECT_EQ(static_cast<const char*>(tensor.load(1).host_data())[5], remote.at(35));
}

TEST(StreamedTensor, WrongWindowsAndRangesAreNamed) {
  const Remote remote(90);
  StreamedTensor tensor("w", remote, 0, 90, 40);
  EXPECT_EQ(message_of([&] { tensor.at(1); }),
            "window 1 of tensor 'w' is not loaded from remote; call load() first");
  EXPECT_EQ(message_of([&] { tensor.load(3); }), "tensor 'w' has no window 3; it has 3");
  EXPECT_EQ(message_of([&] { StreamedTensor("w", remote, 50, 41, 8); }),
            "tensor 'w' ends at byte 91; remote has 90 bytes");
  EXPECT_EQ(message_of([&] { StreamedTensor("w", remote, 0, 1, 0); }),
            "tensor 'w' has windows of 0 bytes");
}

TEST(FileSource, AFileThatShrinksWhileItStreamsIsAClearErrorWithoutRetries) {
  const std::string path = ::testing::TempDir() + "shrinking.bin";
  std::ofstream(path, std::ios::binary) << std::string(100, 'x');
  const FileSource source(path);
  StreamedTensor tensor("w", source, 0, 100, 50);
  EXPECT_EQ(static_cast<const char*>(tensor.load(0).host_data())[49], 'x');
  ASSERT_EQ(truncate(path.c_str(), 70), 0);
  EXPECT_EQ(message_of([&] { tensor.load(1); }),
            "tensor 'w': window 1 cannot be loaded: 20 of 50 bytes: " + path +
                " ends at byte 70 and had 100 bytes when it was opened");
  EXPECT_TRUE(tensor.is_loaded(0));
  unlink(path.c_str());
}

TEST(FileSource, WhatIsNoFileIsNamed) {
  EXPECT_EQ(message_of([] { FileSource("/no/such/file"); }),
            "/no/such/file: No such file or directory");
  EXPECT_EQ(message_of([] { FileSource("/dev/null"); }), "/dev/null is not a regular file");
}

}  // namespace
}  // namespace uvm
