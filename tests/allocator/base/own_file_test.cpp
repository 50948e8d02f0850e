#include "allocator/base/own_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/temporary_folder.hpp"

namespace uvm {
namespace {

constexpr uid_t kOther = 65534;

class OwnFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(precious) << "precious";
    std::filesystem::create_directory(shared);
    chmod(shared.c_str(), 01777);
  }
  // Makes a link. If this process is root, the link belongs to another user.
  void link(const std::string& target, const std::string& name) {
    std::filesystem::create_symlink(target, name);
    if (geteuid() == 0) {
      ASSERT_EQ(lchown(name.c_str(), kOther, kOther), 0);
    }
  }
  static std::string text_of(const std::string& file) {
    std::stringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }
  static mode_t mode_of(const std::string& file) {
    struct stat found {};
    EXPECT_EQ(lstat(file.c_str(), &found), 0);
    return found.st_mode;
  }

  const testing::TemporaryFolder temporary;
  const std::string folder = temporary.path() + "/";
  const std::string precious = folder + "precious";
  const std::string shared = folder + "shared";
  const std::string file = shared + "/file";
};

TEST_F(OwnFileTest, ANewFileIsOfItsUserAloneWhateverTheMaskSays) {
  const mode_t before = umask(0);
  const int made = OwnFile(file).create();
  umask(before);
  ASSERT_GE(made, 0);
  close(made);
  EXPECT_EQ(mode_of(file), S_IFREG | 0600u);
}

TEST_F(OwnFileTest, AFileWithoutANameIsOfItsUserAloneAndLeavesNothing) {
  const mode_t before = umask(0);
  const int made = OwnFile(file).create_unnamed();
  umask(before);
  ASSERT_GE(made, 0);
  struct stat found {};
  ASSERT_EQ(fstat(made, &found), 0);
  EXPECT_EQ(found.st_mode, S_IFREG | 0600u);
  EXPECT_EQ(found.st_nlink, 0u);
  EXPECT_TRUE(std::filesystem::is_empty(shared));
  const std::string again = "/proc/self/fd/" + std::to_string(made);
  EXPECT_NE(linkat(AT_FDCWD, again.c_str(), AT_FDCWD, file.c_str(), AT_SYMLINK_FOLLOW), 0)
      << "it can get no name";
  close(made);
  EXPECT_EQ(OwnFile(folder + "missing/file").create_unnamed(), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(OwnFileTest, ANameThatIsTakenIsNotCreatedThroughALinkEither) {
  link(folder + "missing", file);
  EXPECT_EQ(OwnFile(file).create(), -1);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_FALSE(std::filesystem::exists(folder + "missing"));
  EXPECT_EQ(OwnFile(file).open_existing(), -1);
  EXPECT_EQ(errno, ELOOP);
}

TEST_F(OwnFileTest, AFileTakesThePlaceOfALinkOrOfAnotherFile) {
  link(precious, file);
  ASSERT_TRUE(OwnFile(file).replace("first"));
  ASSERT_TRUE(OwnFile(file).replace("second"));
  EXPECT_EQ(mode_of(file), S_IFREG | 0600u);
  EXPECT_EQ(text_of(file), "second");
  EXPECT_EQ(text_of(precious), "precious");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(shared), {}), 1);
}

TEST_F(OwnFileTest, AFileThatCannotTakeItsPlaceLeavesNothing) {
  std::filesystem::create_directory(file);
  EXPECT_FALSE(OwnFile(file).replace("text"));
  EXPECT_EQ(errno, EISDIR);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(shared), {}), 1);
}

// Such a link may be any part of the path, not only the last.
TEST_F(OwnFileTest, ALinkOfAnotherUserInASharedFolderIsNotFollowed) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can make a link of another user";
  link(folder, shared + "/way");
  EXPECT_EQ(OwnFile(shared + "/way/new").create(), -1);
  EXPECT_EQ(errno, ELOOP);
  EXPECT_FALSE(OwnFile(shared + "/way/new").replace("text"));
  EXPECT_FALSE(std::filesystem::exists(folder + "new"));
}

TEST_F(OwnFileTest, ALinkOfThisUserOrInAFolderOfItsOwnIsFollowed) {
  std::filesystem::create_symlink("../", shared + "/own");
  EXPECT_TRUE(OwnFile(shared + "/own/first").replace("1"));
  link(folder, folder + "linked");
  EXPECT_TRUE(OwnFile(folder + "linked/./shared/../second").replace("2"));
  EXPECT_EQ(text_of(folder + "first") + text_of(folder + "second"), "12");
}

TEST_F(OwnFileTest, AFolderThatIsNotThereFailsForThatReason) {
  const OwnFile missing(folder + "missing/file");
  EXPECT_EQ(missing.create(), -1);
  EXPECT_EQ(errno, ENOENT);
  EXPECT_FALSE(missing.replace("text"));
  EXPECT_EQ(errno, ENOENT);
  EXPECT_EQ(OwnFile(precious + "/file").create(), -1);
  EXPECT_EQ(errno, ENOTDIR);
  std::filesystem::create_symlink("loop", folder + "loop");
  EXPECT_EQ(OwnFile(folder + "loop/file").create(), -1);
  EXPECT_EQ(errno, ELOOP);
}

}  // namespace
}  // namespace uvm
