// Profile files. The profiles of the tree can be read. A malformed file is refused with the file,
// the key and the accepted values.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "sim/engine/machine_profile.hpp"

namespace uvmsim::test {
namespace {

const std::string kProfiles = UVMALLOC_SOURCE_DIR "/sim/profiles/";

class ProfileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(kProfiles + "h100-pcie5.toml");
    text_.assign(std::istreambuf_iterator<char>(file), {});
    ASSERT_FALSE(text_.empty());
  }
  void TearDown() override { std::filesystem::remove(path_); }

  // Returns the message of the error that reading `text` raises, or an empty string.
  std::string error_of(const std::string& text) {
    std::ofstream(path_) << text;
    try {
      read_profile(path_);
      return {};
    } catch (const ProfileError& error) {
      return error.what();
    }
  }

  std::string with(const std::string& key, const std::string& line) {
    std::string text = text_;
    const std::size_t at = text.find("\n" + key + " =");
    EXPECT_NE(at, std::string::npos) << key;
    return text.replace(at + 1, text.find('\n', at + 1) - at - 1, line);
  }

  std::string text_;
  std::string path_ = ::testing::TempDir() + "uvmsim-profile-" + std::to_string(getpid()) + ".toml";
};

TEST_F(ProfileTest, EveryProfileOfTheTreeIsRead) {
  std::size_t found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kProfiles)) {
    if (entry.path().extension() != ".toml") continue;
    ++found;
    EXPECT_NO_THROW(read_profile(entry.path().string())) << entry.path();
  }
  EXPECT_GE(found, 8U);
}

TEST_F(ProfileTest, FiguresAreConvertedToNanoseconds) {
  EXPECT_EQ(error_of(with("launch_us", "launch_us = 2.5")), "");
  EXPECT_EQ(read_profile(path_).costs.launch_ns, 2500);
  EXPECT_EQ(error_of(with("to_device_gb_per_s", "to_device_gb_per_s = 50")), "");
  EXPECT_EQ(read_profile(path_).costs.to_device_bytes_per_ns, 50);
}

TEST_F(ProfileTest, AMissingFigureIsNamed) {
  EXPECT_EQ(
      error_of(with("to_device_gb_per_s", "")),
      path_ +
          ": links.to_device_gb_per_s is missing; accepted: a number above 0, at most 1000000000");
}

// Tests each line except those of peak rates, which a machine may lack.
TEST_F(ProfileTest, EveryKeyThatAMachineNeedsIsNamedWhereItIsMissing) {
  std::istringstream lines(text_);
  std::string section;
  int needed = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[")) section = line.substr(1, line.find(']') - 1) + ".";
    const std::size_t end = line.find(" =");
    if (end == std::string::npos || line.starts_with("#") || line.find("_tflops") < end) continue;
    const std::string key = line.substr(0, end);
    ++needed;
    const std::string error = error_of(with(key, ""));
    EXPECT_EQ(error.rfind(path_ + ": " + section + key + " is missing; accepted: ", 0), 0U)
        << key << ": " << error;
  }
  EXPECT_GT(needed, 25);
}

TEST_F(ProfileTest, AFileCutShortAnywhereIsRefusedByItsName) {
  const std::size_t last = text_.find("\ndiscard_block_us =");
  ASSERT_NE(last, std::string::npos);
  for (std::size_t size = 0; size <= last; size += 13) {
    const std::string error = error_of(text_.substr(0, size));
    EXPECT_EQ(error.rfind(path_ + ":", 0), 0U) << "cut at " << size << ": " << error;
    EXPECT_NE(error.find("; accepted: "), std::string::npos) << "cut at " << size << ": " << error;
  }
}

TEST_F(ProfileTest, AFigureThatIsNoneIsNamed) {
  for (const char* value : {"0", "-1", "nan", "inf", "\"fast\"", "1e10"}) {
    EXPECT_EQ(
        error_of(with("fault_batch_us", std::string("fault_batch_us = ") + value)),
        path_ +
            ": driver.fault_batch_us is not usable; accepted: a number above 0, at most 1000000000")
        << value;
  }
}

TEST_F(ProfileTest, ASizeThatIsNoneIsNamed) {
  for (const char* value : {"\"0\"", "\"1MiB\"", "\"much\"", "80"}) {
    EXPECT_EQ(
        error_of(with("capacity", std::string("capacity = ") + value)),
        path_ + ": capacity is not usable; accepted: a size from 2MiB to 64TiB, such as \"80GiB\"")
        << value;
  }
}

TEST_F(ProfileTest, AnUnknownKeyIsNamed) {
  EXPECT_EQ(error_of(with("launch_us", "launch_us = 2\nlunch_us = 3")),
            path_ +
                ": kernels.lunch_us is not a key of a profile; accepted: those of "
                "sim/profiles/README.md");
}

TEST_F(ProfileTest, AnUnknownMemoryIsNamed) {
  EXPECT_EQ(error_of(with("memory", "memory = \"shared\"")),
            path_ + ": memory is \"shared\"; accepted: discrete, integrated, hmm, coherent");
}

TEST_F(ProfileTest, AFileThatIsNoTomlSaysWhichLine) {
  const std::string error = error_of("name = \"x\"\nmemory = = 3\n");
  EXPECT_EQ(error.rfind(path_ + ":2: ", 0), 0U) << error;
}

TEST_F(ProfileTest, AFileThatIsNotThereIsNamed) {
  try {
    read_profile("/nonexistent/machine.toml");
    FAIL();
  } catch (const ProfileError& error) {
    EXPECT_EQ(std::string(error.what()).rfind("/nonexistent/machine.toml", 0), 0U) << error.what();
  }
}

TEST_F(ProfileTest, NamesMeanFilesBesideTheLibraryAndPathsThemselves) {
  EXPECT_TRUE(std::filesystem::exists(profile_path("gb10"))) << profile_path("gb10");
  EXPECT_EQ(profile_path("./mine.toml"), "./mine.toml");
  EXPECT_EQ(profile_path("mine.toml"), "mine.toml");
}

}  // namespace
}  // namespace uvmsim::test
