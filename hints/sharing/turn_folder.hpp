// The folder of the tables of turns (shared_turns.hpp), the same for all programs of a user on a
// machine.
#pragma once

#include <string>

namespace uvm::sharing {

// The first usable one of `runtime_dir` (the value of XDG_RUNTIME_DIR, or nullptr) and the folder
// that a login makes in `logins`, else /dev/shm. A folder is usable if it belongs to this user and
// nobody else may write to it.
std::string turn_folder(const char* runtime_dir, const std::string& logins = "/run/user");

}  // namespace uvm::sharing
