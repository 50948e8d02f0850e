// The location of a file that uvmalloc writes: an open folder, and a name in that folder. Only this
// user can access a new file. No file is opened through a link that another user could have placed
// (docs/internals/security.md). Functions return -1 or false on failure and set errno.
//
// Not thread-safe. The destructor closes the folder.
#pragma once

#include <string>

namespace uvm {

class OwnFile {
 public:
  // Opens the folder of `path`. Follows links in the path by the rule of the kernel's
  // protected_symlinks: in a folder that everybody may write to, a link must belong to this user or
  // to the folder's owner. If the folder cannot be opened, every function fails with that error.
  explicit OwnFile(const std::string& path);
  ~OwnFile();
  OwnFile(const OwnFile&) = delete;
  OwnFile& operator=(const OwnFile&) = delete;

  // Creates the file and opens it for reading and writing. EEXIST: the file or a link exists.
  int create() const;
  // Creates a file without a name, which ends with its last descriptor and mapping. Only the folder
  // of the given name counts. If the file system has no such files, the file has the name for a
  // moment.
  int create_unnamed() const;
  // Opens the existing file for writing. Does not wait for a pipe or a device. ELOOP: the file is a
  // link.
  int open_existing() const;
  bool remove() const;
  // Writes `text` to a new file and renames the new file over the existing one, if any.
  bool replace(const std::string& text) const;

 private:
  std::string name_;
  int folder_ = -1;
  int error_ = 0;  // errno if the folder could not be opened
};

// Describes an errno of these functions. For ELOOP, explains why links are refused.
std::string own_file_error(int error);

}  // namespace uvm
