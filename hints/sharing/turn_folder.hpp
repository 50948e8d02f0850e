// The folder of the tables of turns (shared_turns.hpp), the same for all programs of a user on a
// machine.
#pragma once

#include <string>

namespace uvm::sharing {

// `runtime_dir` is the value of XDG_RUNTIME_DIR, or nullptr. That folder, else the one that a login
// makes in `logins`, else /dev/shm. One of the first two serves only if it belongs to this user and
// nobody else may write to it.
std::string turn_folder(const char* runtime_dir, const std::string& logins = "/run/user");

}  // namespace uvm::sharing
