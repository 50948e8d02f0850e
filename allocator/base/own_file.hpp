// Where a file that uvmalloc writes lies: a folder that is held open, and a name in it. The file is
// made anew, for this user alone, and never through a link that another user could have put there
// (docs/security.md). Functions return -1 or false on failure, with the reason in errno.
//
// Not thread-safe. The folder is closed by the destructor.
#pragma once

#include <string>

namespace uvm {

class OwnFile {
 public:
  // Opens the folder of `path`. A link on the way is followed as the kernel's protected_symlinks
  // has it: in a folder that everybody may write to, only a link of this user or of the folder's
  // owner. If the folder cannot be opened, every function fails for that reason.
  explicit OwnFile(const std::string& path);
  ~OwnFile();
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;

  // A new file that only this user may read and write, open for both. EEXIST: the name is taken,
  // by a link too.
  int create() const;
  // What has the name, open for writing. ELOOP: a link. A pipe or a device makes nobody wait.
  int open_existing() const;
  bool remove() const;
  // Writes `text` to a new file, which then takes the name from whatever has it.
  bool replace(const std::string& text) const;

 private:
  std::string name_;
  int folder_ = -1;
  int error_ = 0;  // why there is no folder
};

// What errno says of such a file: a link is explained.
std::string own_file_error(int error);

}  // namespace uvm
