// Uses uvmalloc from C++: blocks move between host and device without being copied, and together
// they are larger than the device's memory. The runtime is the one that UVMALLOC_RUNTIME names, or
// the first that finds a device; the program names no vendor.
//
//   moves [MIB_OF_EACH_BLOCK [BLOCKS [STEPS]]]
//
// Prints what was moved and whether every byte is right. Ends with 1 where one is not, and with 2
// where no runtime is usable.
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <uvmalloc/allocator.hpp>
#include <uvmalloc/configuration.hpp>
#include <uvmalloc/inspection.hpp>
#include <uvmalloc/registry.hpp>
#include <uvmalloc/statistics.hpp>

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct Work {
  std::size_t block_mib = 16;
  std::size_t blocks = 24;
  std::size_t steps = 5;
};

bool read_number(const char* text, std::size_t* out) {
  const std::string_view view = text;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), *out);
  return error == std::errc{} && end == view.data() + view.size() && *out > 0;
}

bool read_arguments(int count, char** arguments, Work* out) {
  std::size_t* const numbers[] = {&out->block_mib, &out->blocks, &out->steps};
  if (count > 4) return false;
  for (int i = 1; i < count; ++i) {
    if (!read_number(arguments[i], numbers[i - 1])) return false;
  }
  return true;
}

// A byte that each block has at each step.
unsigned char pattern(std::size_t block, std::size_t step) {
  return static_cast<unsigned char>(1 + block * 7 + step * 31);
}

bool holds(const unsigned char* block, std::size_t bytes, unsigned char value) {
  return block[0] == value && std::memcmp(block, block + 1, bytes - 1) == 0;
}

class Moves {
 public:
  Moves(std::unique_ptr<uvm::DeviceRuntime> runtime, const Work& work)
      : allocator_(std::move(runtime), uvm::Configuration{}),
        work_(work),
        bytes_(work.block_mib * kMiB) {}

  // How many blocks held a wrong byte.
  std::size_t run() {
    for (std::size_t block = 0; block < work_.blocks; ++block) {
      blocks_.push_back(
          static_cast<unsigned char*>(allocator_.allocate(uvm::Facade::kHost, 0, bytes_)));
      std::memset(blocks_[block], pattern(block, 0), bytes_);
    }
    std::size_t wrong = 0;
    for (std::size_t step = 0; step < work_.steps; ++step) wrong += run_step(step);
    for (unsigned char* block : blocks_) allocator_.free(block);
    return wrong;
  }

  std::uint64_t calls(const char* name) const {
    const auto all = allocator_.inspection().runtime_calls();
    const auto found = all.find(name);
    return found == all.end() ? 0 : found->second;
  }
  const uvm::CachingManagedAllocator& allocator() const { return allocator_; }

 private:
  bool move(unsigned char* block, uvm::Place from, uvm::Place to) {
    return allocator_.move(block, {from, to, 0, nullptr, true}) != nullptr;
  }

  std::size_t run_step(std::size_t step) {
    std::size_t wrong = 0;
    for (std::size_t block = 0; block < work_.blocks; ++block) {
      unsigned char* bytes = blocks_[block];
      const bool moved = move(bytes, uvm::Place::host(), uvm::Place::device(0)) &&
                         move(bytes, uvm::Place::device(0), uvm::Place::host());
      allocator_.inspection().runtime().synchronize_device(0);
      if (!moved || !holds(bytes, bytes_, pattern(block, step))) ++wrong;
      std::memset(bytes, pattern(block, step + 1), bytes_);
      allocator_.free(allocator_.allocate(uvm::Facade::kDevice, 0, bytes_));  // memory for a result
    }
    return wrong;
  }

  uvm::CachingManagedAllocator allocator_;
  const Work work_;
  const std::size_t bytes_;
  std::vector<unsigned char*> blocks_;
};

int run(const Work& work) {
  const char* wanted = std::getenv("UVMALLOC_RUNTIME");
  uvm::RuntimeChoice choice = uvm::open_runtime(wanted != nullptr ? wanted : "auto");
  if (choice.runtime == nullptr) {
    std::fprintf(stderr, "moves: no usable device: %s\n", choice.reason.c_str());
    return 2;
  }
  const std::string name(choice.runtime->name());
  Moves moves(std::move(choice.runtime), work);
  const std::size_t wrong = moves.run();
  const uvm::DeviceDescription& device = moves.allocator().inspection().devices()[0];
  std::printf("runtime %s: %s, %zu MiB\n", name.c_str(), device.name.c_str(),
              device.total_bytes / kMiB);
  std::printf("%zu blocks of %zu MiB, %zu moves, %llu bytes copied by them\n", work.blocks,
              work.block_mib, 2 * work.blocks * work.steps,
              static_cast<unsigned long long>(moves.calls("copy")));
  std::printf("blocks with a wrong byte: %zu\n", wrong);
  return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  Work work;
  if (!read_arguments(count, arguments, &work)) {
    std::fprintf(stderr,
                 "usage: moves [MIB_OF_EACH_BLOCK [BLOCKS [STEPS]]], whole numbers from 1\n");
    return 64;
  }
  try {
    return run(work);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moves: %s\n", error.what());
    return 2;
  }
}
