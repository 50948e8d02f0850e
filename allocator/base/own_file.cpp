#include "allocator/base/own_file.hpp"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "allocator/base/descriptor.hpp"

namespace uvm {
namespace {

constexpr int kMostLinks = 40;  // the kernel's own limit
constexpr int kMostNames = 100;
constexpr mode_t kOwnOnly = 0600;

// Returns whether this user may follow `link`, a link in the open `folder` (see OwnFile::OwnFile).
bool is_trusted(const struct stat& link, int folder) {
  struct stat found {};
  if (fstat(folder, &found) != 0) return false;
  return (found.st_mode & S_IWOTH) == 0 || link.st_uid == geteuid() || link.st_uid == found.st_uid;
}

// Removes the first part of a path and returns this part.
std::string next_part(std::string* path) {
  const std::size_t begin = std::min(path->find_first_not_of('/'), path->size());
  const std::size_t end = std::min(path->find('/', begin), path->size());
  std::string part = path->substr(begin, end - begin);
  path->erase(0, end);
  return part;
}

// Returns a descriptor of the folder, or -1 if the folder cannot be opened.
int open_folder(std::string path) {
  constexpr int kFlags = O_PATH | O_CLOEXEC;
  Descriptor folder(open(path.starts_with('/') ? "/" : ".", kFlags | O_DIRECTORY));
  for (int links = 0; folder.is_open();) {
    const std::string part = next_part(&path);
    if (part.empty()) return folder.release();
    Descriptor next(openat(folder.get(), part.c_str(), kFlags | O_NOFOLLOW));
    struct stat found {};
    if (!next.is_open() || fstat(next.get(), &found) != 0) return -1;
    if (S_ISLNK(found.st_mode)) {
      std::array<char, PATH_MAX> target{};
      const ssize_t length = readlinkat(next.get(), "", target.data(), target.size());
      if (length < 0) return -1;
      if (++links > kMostLinks || !is_trusted(found, folder.get())) {
        errno = ELOOP;
        return -1;
      }
      path = std::string(target.data(), static_cast<std::size_t>(length)) + "/" + path;
      if (path.starts_with('/')) folder = Descriptor(open("/", kFlags | O_DIRECTORY));
      continue;
    }
    if (!S_ISDIR(found.st_mode)) {
      errno = ENOTDIR;
      return -1;
    }
    folder = std::move(next);
  }
  return -1;
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

}  // namespace

OwnFile::OwnFile(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  name_ = path.substr(slash + 1);  // npos + 1 is 0
  folder_ = open_folder(path.substr(0, slash == std::string::npos ? 0 : slash + 1));
  error_ = folder_ < 0 ? errno : 0;
}

OwnFile::~OwnFile() {
  if (folder_ >= 0) close(folder_);
}

int OwnFile::create() const {
  if (folder_ < 0) {
    errno = error_;
    return -1;
  }
  return openat(folder_, name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                kOwnOnly);
}

int OwnFile::create_unnamed() const {
  if (folder_ < 0) {
    errno = error_;
    return -1;
  }
  const int file = openat(folder_, ".", O_RDWR | O_TMPFILE | O_EXCL | O_CLOEXEC, kOwnOnly);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  const int named = create();
  if (named >= 0) remove();
  return named;
}

int OwnFile::open_existing() const {
  if (folder_ < 0) {
    errno = error_;
    return -1;
  }
  return openat(folder_, name_.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

bool OwnFile::remove() const {
  return unlinkat(folder_, name_.c_str(), 0) == 0;
}

bool OwnFile::replace(const std::string& text) const {
  if (folder_ < 0) {
    errno = error_;
    return false;
  }
  for (int number = 0; number < kMostNames; ++number) {
    const std::string unfinished = fmt::format(".{}.{}", name_, number);
    const Descriptor file(openat(folder_, unfinished.c_str(),
                                 O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kOwnOnly));
    if (!file.is_open() && errno == EEXIST) continue;
    if (!file.is_open()) return false;
    if (write_all(file.get(), text) &&
        renameat(folder_, unfinished.c_str(), folder_, name_.c_str()) == 0) {
      return true;
    }
    const int error = errno;
    unlinkat(folder_, unfinished.c_str(), 0);
    errno = error;
    return false;
  }
  return false;
}

std::string own_file_error(int error) {
  if (error == ELOOP) return "a link leads there, which is not followed; name the file itself";
  return std::strerror(error);
}

}  // namespace uvm
