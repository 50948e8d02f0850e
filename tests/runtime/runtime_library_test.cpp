// Runtimes by the path of a shared object: which are opened, and what the error says of others.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <math.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include <uvmalloc/uvmalloc_runtime.h>
#include <uvmalloc/registry.hpp>

#include "tests/support/temporary_folder.hpp"

namespace uvm {
namespace {

class RuntimeLibrary : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("UVM_TEST_TABLE"); }

  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  // Returns the path of a copy of the object that answers by `table`.
  std::string object(const std::string& table) const {
    setenv("UVM_TEST_TABLE", table.c_str(), 1);
    std::filesystem::copy_file(UVM_REGISTERED_RUNTIME, path(table + ".so"));
    return path(table + ".so");
  }
  static std::string reason(const std::string& name) {
    RuntimeChoice choice = open_runtime(name);
    EXPECT_EQ(choice.runtime, nullptr);
    return choice.reason;
  }
  static std::string cannot_be_used(const std::string& name, const std::string& why) {
    return fmt::format("the runtime '{}' cannot be used: {}", name, why);
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST_F(RuntimeLibrary, AFileThatIsNotThereIsNamed) {
  const std::string name = path("absent.so");
  EXPECT_EQ(reason(name),
            cannot_be_used(name, name + ": cannot open shared object file: No such file or "
                                        "directory"));
  EXPECT_FALSE(is_runtime_present(name));
  EXPECT_FALSE(is_runtime_initialized(name));
}

TEST_F(RuntimeLibrary, AFileThatIsNoSharedObjectIsNamed) {
  const std::string name = path("text.so");
  std::ofstream(name) << "no shared object, whatever its name";
  EXPECT_EQ(reason(name), cannot_be_used(name, name + ": file too short"));
}

TEST_F(RuntimeLibrary, AnObjectWithoutTheFunctionIsNoRuntime) {
  Dl_info library{};
  ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, "cos"), &library), 0);
  EXPECT_EQ(reason(library.dli_fname), cannot_be_used(library.dli_fname,
                                                      "it exports no uvmalloc_runtime(), which "
                                                      "uvmalloc_runtime.h declares"));
}

TEST_F(RuntimeLibrary, AnObjectThatServesNoVersionOfOursSaysSo) {
  const std::string name = object("unreadable version");
  EXPECT_EQ(reason(name),
            cannot_be_used(name, "its uvmalloc_runtime() returns NULL for version 1"));
}

TEST_F(RuntimeLibrary, AnUnusableRegistrationSaysWhatIsAccepted) {
  std::string name = object("name");
  EXPECT_EQ(reason(name), cannot_be_used(name,
                                         "the runtime's name is ''; accepted: a name that is "
                                         "not empty, not 'auto', and has no slash"));
  name = object("taken");
  EXPECT_EQ(reason(name), cannot_be_used(name,
                                         "the runtime's name 'cuda' is taken; accepted: any "
                                         "other than " +
                                             fmt::format("{}", fmt::join(runtime_names(), ", "))));
  name = object("table");
  EXPECT_EQ(reason(name),
            cannot_be_used(name,
                           "the operations table of the runtime 'no devices' is NULL; "
                           "accepted: a uvmalloc_runtime_operations"));
  name = object("newer");
  EXPECT_EQ(reason(name), cannot_be_used(name,
                                         "the operations table of the runtime 'no devices' "
                                         "has version 2; accepted: 1 to 1"));
}

TEST_F(RuntimeLibrary, AnObjectIsOpenedOnceByWhateverPath) {
  const std::string name = object("good");
  EXPECT_TRUE(is_runtime_present(name)) << "it has no questions";
  EXPECT_TRUE(is_runtime_initialized(name)) << "it is named";
  EXPECT_EQ(reason(name), "no devices: it has no device");
  const std::string other = path("link.so");
  std::filesystem::create_symlink(name, other);
  EXPECT_EQ(reason(other), "no devices: it has no device");
  EXPECT_EQ(reason("no devices"), "no devices: it has no device") << "by its name from then on";
  std::filesystem::remove(name);
  EXPECT_EQ(reason(name), "no devices: it has no device");
}

}  // namespace
}  // namespace uvm
