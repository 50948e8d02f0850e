#include "hints/sharing/turn_folder.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "tests/support/temporary_folder.hpp"

namespace uvm::sharing {
namespace {

class TurnFolderTest : public ::testing::Test {
 protected:
  std::string make(const std::string& name, mode_t mode) {
    std::string path = temporary.path() + "/" + name;
    std::filesystem::create_directory(path);
    chmod(path.c_str(), mode);
    return path;
  }

  const testing::TemporaryFolder temporary;
  const std::string& logins = temporary.path();
};

TEST_F(TurnFolderTest, TheVariablesFolderComesBeforeTheOneOfALogin) {
  const std::string login = make(std::to_string(geteuid()), 0700);
  EXPECT_EQ(turn_folder(make("own", 0700).c_str(), logins), logins + "/own");
  EXPECT_EQ(turn_folder(nullptr, logins), login);
  EXPECT_EQ(turn_folder("", logins), login);
}

TEST_F(TurnFolderTest, AFolderThatOthersMayWriteToDoesNotServe) {
  EXPECT_EQ(turn_folder(make("open", 0777).c_str(), logins), "/dev/shm");
  EXPECT_EQ(turn_folder(make("of_a_group", 0770).c_str(), logins), "/dev/shm");
}

TEST_F(TurnFolderTest, OnlyAnAbsolutePathOfAFolderServes) {
  EXPECT_EQ(turn_folder("own", logins), "/dev/shm");
  EXPECT_EQ(turn_folder((logins + "/missing").c_str(), logins), "/dev/shm");
  EXPECT_EQ(turn_folder("/etc/passwd", logins), "/dev/shm");
}

TEST_F(TurnFolderTest, AFolderOfAnotherUserDoesNotServe) {
  // Root gives a folder to another user. For other users, "/" is such a folder.
  const std::string other = geteuid() == 0 ? make("given", 0755) : "/";
  if (geteuid() == 0) {
    ASSERT_EQ(chown(other.c_str(), 65534, 65534), 0);
  }
  EXPECT_EQ(turn_folder(other.c_str(), logins), "/dev/shm");
}

}  // namespace
}  // namespace uvm::sharing
