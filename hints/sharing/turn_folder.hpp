// Finds the folder for the tables of turns (shared_turns.hpp), one for all programs of a user.
#pragma once

#include <string>

namespace uvm::sharing {

// Returns the first usable folder of two: `runtime_dir` (the value of XDG_RUNTIME_DIR, or nullptr),
// and the folder in `logins` that a login makes for this user. Returns /dev/shm if neither is
// usable. A folder is usable if it belongs to this user and no other user may write to it.
std::string turn_folder(const char* runtime_dir, const std::string& logins = "/run/user");

}  // namespace uvm::sharing
