// Compares classes of two builds of torch without loading either. A plugin derives from torch's
// classes, so their virtual functions have to be those that the plugin was compiled with. A
// snapshot, or a vendor's build, may have the version string of a release but other functions. Pure
// functions; any thread may call them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace uvm::interpose {

// Returns the size of a symbol in a shared object of this processor's kind, from its tables of
// symbols; 0 if the file cannot be read, is damaged, or does not name the symbol.
std::size_t symbol_bytes(const std::string& file, std::string_view symbol) noexcept;

// Returns why a plugin must not be loaded beside this torch, in one line; empty if it may.
// `version` is torch's version string. A torch without symbols is trusted if it is a release.
std::string why_classes_differ(const std::string& plugin, const std::string& library_dir,
                               const std::string& version);

}  // namespace uvm::interpose
