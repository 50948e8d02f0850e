// A random program of CUDA's virtual memory management: reservations, handles, mappings, access and
// errors on two devices. The program prints each call's result and the values that it finds. The
// output depends only on the seed: it must be the same with and without libuvmalloc_preload.so.
//
//   virtual_memory_fuzz FIRST_SEED SEQUENCES CALLS
//
// The program leaves out calls for which uvmalloc differs from CUDA (see
// docs/reference/any-program.md):
//  * a second mapping of a handle: uvmalloc refuses it;
//  * the use of addresses that have no mapping or no access: uvmalloc allows it;
//  * bytes that were never written.
#include <cuda.h>

#include <compare>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <random>
#include <vector>

namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;
constexpr int kDevices = 2;
constexpr std::size_t kMostPages = 6;
using Handle = CUmemGenericAllocationHandle;

// Its last page is never mapped, so that mappings of two reservations are never adjacent.
struct Reservation {
  CUdeviceptr address;
  std::size_t pages;
  std::size_t number;
};

struct Piece {
  Handle handle;
  int device;
  std::size_t pages;
  int references = 1;
  bool is_mapped = false;
  std::vector<int> words;  // of each page; -1: never written
};

// The order of mappings must not depend on the addresses of reservations.
struct Place {
  std::size_t reservation;
  std::size_t page;
  auto operator<=>(const Place&) const = default;
};

struct Mapping {
  CUdeviceptr address;
  std::size_t pages;
  std::size_t piece;
  unsigned devices = 0;
};

class Sequence {
 public:
  explicit Sequence(std::uint64_t seed) : random_(seed) {
    std::printf("sequence %llu\n", static_cast<unsigned long long>(seed));
  }

  void run(int calls) {
    for (number_ = 0; number_ < calls; ++number_) step();
    end();
  }

 private:
  std::uint64_t below(std::uint64_t most) { return random_() % most; }
  bool one_in(std::uint64_t count) { return below(count) == 0; }
  CUresult say(const char* call, CUresult result, long value = 0) {
    std::printf("%d %s %d %ld\n", number_, call, result, value);
    return result;
  }

  // Sometimes a size that is not a multiple of the granularity, or 0.
  std::size_t size_of(std::size_t pages) {
    if (!one_in(25)) return pages * kPage;
    return one_in(2) ? 0 : pages * kPage - 4096;
  }

  std::map<Place, Mapping>::iterator random_mapping() {
    return std::next(mappings_.begin(), static_cast<long>(below(mappings_.size())));
  }
  Place place_of(CUdeviceptr address) {
    for (const Reservation& each : reservations_) {
      const std::size_t page = (address - each.address) / kPage;
      if (address >= each.address && page < each.pages) return {each.number, page};
    }
    return {SIZE_MAX, 0};
  }
  // Returns an address in a random reservation, or an address that nobody reserved.
  CUdeviceptr random_address(std::size_t* pages_left) {
    *pages_left = 1 + below(kMostPages);
    if (reservations_.empty() || one_in(40)) return 0x7000000 + below(8) * kPage;
    const Reservation& in = reservations_[below(reservations_.size())];
    const std::size_t page = below(in.pages);
    *pages_left = in.pages - page;
    return in.address + page * kPage + (one_in(40) ? 512 : 0);
  }

  void step() {
    switch (below(20)) {
      case 0:
        return reserve();
      case 1:
        return free_addresses();
      case 2:
      case 3:
        return create();
      case 4:
        return one_in(2) ? release() : use();
      case 5:
      case 6:
      case 7:
        return map();
      case 8:
        return unmap();
      case 10:
      case 11:
        return set_access();
      case 12:
        return ask();
      case 13:
        return retain();
      default:
        return use();
    }
  }

  void reserve() {
    if (reservations_.size() > 4) return;
    const std::size_t pages = 1 + below(2 * kMostPages);
    const std::size_t bytes = size_of(pages);
    const std::size_t alignments[] = {0, 0, 0, 4096, kPage, 3000, 4 * kPage};
    CUdeviceptr address = 0;
    const unsigned flags = one_in(30) ? 1 : 0;
    const CUresult result = cuMemAddressReserve(&address, bytes, alignments[below(7)], 0, flags);
    say("reserve", result, static_cast<long>(address % kPage));
    if (result == CUDA_SUCCESS) reservations_.push_back({address, pages, reserved_++});
  }

  void free_addresses() {
    std::size_t left = 0;
    const bool is_known = !reservations_.empty() && !one_in(5);
    const std::size_t index = is_known ? below(reservations_.size()) : 0;
    const CUdeviceptr address = is_known ? reservations_[index].address : random_address(&left);
    const std::size_t bytes = is_known ? size_of(reservations_[index].pages) : left * kPage;
    if (say("free", cuMemAddressFree(address, bytes)) != CUDA_SUCCESS) return;
    std::erase_if(reservations_, [&](const auto& each) { return each.address == address; });
  }

  void create() {
    if (pieces_.size() > 200) return;
    CUmemAllocationProp properties{};
    properties.type = one_in(40) ? CU_MEM_ALLOCATION_TYPE_INVALID : CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type =
        one_in(40) ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = one_in(40) ? 7 : static_cast<int>(below(kDevices));
    if (one_in(3)) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const std::size_t pages = 1 + below(kMostPages);
    Handle handle = 0;
    const CUresult result = cuMemCreate(&handle, size_of(pages), &properties, one_in(40) ? 1 : 0);
    say("create", result);
    if (result != CUDA_SUCCESS) return;
    pieces_.push_back(
        {handle, properties.location.id, pages, 1, false, std::vector<int>(pages, -1)});
  }

  void release() {
    if (pieces_.empty()) return;
    Piece& piece = pieces_[below(pieces_.size())];
    if (piece.references == 0 && !one_in(4)) return;
    const CUresult result = cuMemRelease(piece.handle);
    say("release", result, piece.references);
    if (result == CUDA_SUCCESS) --piece.references;
  }

  void map() {
    if (pieces_.empty()) return;
    const std::size_t index = below(pieces_.size());
    Piece& piece = pieces_[index];
    if (piece.is_mapped) return;
    std::size_t left = 0;
    const CUdeviceptr address = random_address(&left);
    const std::size_t pages = one_in(4) ? 1 + below(piece.pages + 1) : piece.pages;
    const std::size_t bytes = size_of(pages);
    const std::size_t offset = one_in(40) ? kPage : 0;
    if (pages == left) return;
    const CUresult result = cuMemMap(address, bytes, offset, piece.handle, one_in(40) ? 1 : 0);
    say("map", result, static_cast<long>(pages));
    if (result != CUDA_SUCCESS) return;
    piece.is_mapped = true;
    mappings_[place_of(address)] = {address, pages, index, 0};
    if (!one_in(4)) grant(address, pages, one_in(4) ? 1 : 0, true);
    use();
  }

  // Chooses whole mappings, or with a small chance any range.
  CUdeviceptr random_range(std::size_t* pages) {
    if (mappings_.empty() || one_in(8)) return random_address(pages);
    auto mapping = random_mapping();
    const CUdeviceptr address = mapping->second.address;
    *pages = mapping->second.pages;
    for (++mapping; mapping != mappings_.end() &&
                    mapping->second.address == address + *pages * kPage && one_in(2);
         ++mapping) {
      *pages += mapping->second.pages;
    }
    if (one_in(12)) ++*pages;
    return address;
  }

  bool is_before(std::map<Place, Mapping>::iterator mapping, CUdeviceptr end) {
    return mapping != mappings_.end() &&
           mapping->first.reservation == place_of(end - 1).reservation &&
           mapping->second.address < end;
  }

  void unmap() {
    std::size_t pages = 0;
    const CUdeviceptr address = random_range(&pages);
    if (one_in(20)) pages = 0;
    const CUresult result = cuMemUnmap(address, pages * kPage);
    say("unmap", result, static_cast<long>(pages));
    if (result != CUDA_SUCCESS) return;
    for (auto at = mappings_.find(place_of(address)); is_before(at, address + pages * kPage);
         at = mappings_.erase(at)) {
      pieces_[at->second.piece].is_mapped = false;
    }
  }

  void grant(CUdeviceptr address, std::size_t pages, int device, bool may_use) {
    CUmemAccessDesc description{};
    description.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    description.location.id = device;
    description.flags =
        may_use ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    if (one_in(40)) description.location.type = CU_MEM_LOCATION_TYPE_HOST;
    if (one_in(30)) pages = 0;
    const CUresult result = cuMemSetAccess(address, pages * kPage, &description, 1);
    say("access", result, may_use);
    if (result != CUDA_SUCCESS) return;
    for (auto at = mappings_.find(place_of(address)); is_before(at, address + pages * kPage);
         ++at) {
      const unsigned bit = 1u << static_cast<unsigned>(device);
      at->second.devices = may_use ? at->second.devices | bit : at->second.devices & ~bit;
    }
  }

  void set_access() {
    std::size_t pages = 0;
    const CUdeviceptr address = random_range(&pages);
    grant(address, pages, one_in(30) ? 9 : static_cast<int>(below(kDevices)), !one_in(8));
  }

  void ask() {
    std::size_t left = 0;
    const CUdeviceptr address = random_address(&left) + below(kPage);
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = static_cast<int>(below(kDevices));
    unsigned long long flags = 99;
    say("get access", cuMemGetAccess(&flags, &location, address), static_cast<long>(flags));
    CUdeviceptr base = 0;
    std::size_t bytes = 0;
    const CUresult result = cuMemGetAddressRange_v2(&base, &bytes, address);
    say("range", result, result == CUDA_SUCCESS ? static_cast<long>(address - base) : 0);
    say("range bytes", result, static_cast<long>(bytes / kPage));
    CUmemorytype type{};
    say("type", cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), type);
    int ordinal = -1;
    say("device", cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address),
        ordinal);
    const CUresult is_mapped =
        cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address);
    say("mapping", is_mapped, is_mapped == CUDA_SUCCESS ? static_cast<long>(address - base) : 0);
    say("mapping bytes", cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address),
        static_cast<long>(bytes / kPage));
    if (pieces_.empty()) return;
    const Piece& piece = pieces_[below(pieces_.size())];
    CUmemAllocationProp properties{};
    const CUresult known = cuMemGetAllocationPropertiesFromHandle(&properties, piece.handle);
    say("properties", known, properties.location.id);
    std::size_t granularity = 0;
    const CUresult status =
        cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    say("granularity", status, static_cast<long>(granularity));
  }

  void retain() {
    std::size_t left = 0;
    const CUdeviceptr address = random_address(&left);
    Handle handle = 0;
    const CUresult result = cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(address));
    long index = -1;
    for (std::size_t i = 0; i < pieces_.size() && result == CUDA_SUCCESS; ++i) {
      if (pieces_[i].handle == handle && pieces_[i].is_mapped) index = static_cast<long>(i);
    }
    say("retain", result, index);
    if (index >= 0) ++pieces_[static_cast<std::size_t>(index)].references;
  }

  // Writes and reads pages of device 0's mappings, also over the border of two mappings.
  void use() {
    if (mappings_.empty()) return;
    const auto first = random_mapping();
    std::vector<int*> words;
    auto at = first;
    CUdeviceptr end = first->second.address;
    const int device = pieces_[first->second.piece].device;
    while (at != mappings_.end() && at->second.address == end && (at->second.devices & 1) != 0 &&
           at->second.devices == first->second.devices &&
           pieces_[at->second.piece].device == device) {
      for (std::size_t page = 0; page < at->second.pages; ++page)
        words.push_back(&pieces_[at->second.piece].words[page]);
      end += at->second.pages * kPage;
      ++at;
    }
    if (words.empty()) return;
    const std::size_t begin = below(words.size());
    const std::size_t count = 1 + below(words.size() - begin);
    const CUdeviceptr address = first->second.address + begin * kPage;
    if (one_in(2)) {
      const int word = static_cast<int>(below(1 << 30));
      say("write", cuMemsetD32_v2(address, static_cast<unsigned>(word), count * kPage / 4));
      for (std::size_t i = 0; i < count; ++i) *words[begin + i] = word;
      return;
    }
    std::vector<int> read(count * kPage / 4);
    say("read", cuMemcpyDtoH_v2(read.data(), address, count * kPage));
    for (std::size_t i = 0; i < count; ++i) {
      const int word = *words[begin + i];
      if (word < 0) continue;
      const std::size_t from = i * kPage / 4;
      const bool is_right = read[from] == word && read[from + kPage / 8] == word &&
                            read[from + kPage / 4 - 1] == word;
      std::printf("%d page %zu %d %d\n", number_, i, read[from], is_right);
    }
  }

  void end() {
    while (!mappings_.empty()) {
      const auto mapping = mappings_.begin();
      say("end", cuMemUnmap(mapping->second.address, mapping->second.pages * kPage));
      mappings_.erase(mapping);
    }
    for (const Piece& piece : pieces_) {
      for (int i = 0; i < piece.references; ++i) say("end", cuMemRelease(piece.handle));
    }
    for (const Reservation& each : reservations_)
      say("end", cuMemAddressFree(each.address, each.pages * kPage));
  }

  std::mt19937_64 random_;
  int number_ = 0;
  std::vector<Reservation> reservations_;
  std::vector<Piece> pieces_;
  std::size_t reserved_ = 0;
  std::map<Place, Mapping> mappings_;
};

}  // namespace

int main(int, char** arguments) {
  const auto first = std::strtoull(arguments[1], nullptr, 10);
  const auto sequences = std::strtoull(arguments[2], nullptr, 10);
  CUcontext context = nullptr;
  cuInit(0);
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
  for (std::uint64_t i = 0; i < sequences; ++i) Sequence(first + i).run(std::atoi(arguments[3]));
}
