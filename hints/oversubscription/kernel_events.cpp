#include "hints/oversubscription/kernel_events.hpp"

#include <algorithm>

#include "hints/oversubscription/policy.hpp"

namespace uvm::live {

EventHandle KernelEvents::add(KernelNumber kernel, const DeviceStream& stream, EventHandle event) {
  events_.push_back({kernel, stream, event});
  return events_.size() > policy::kMostKernelEvents ? take() : nullptr;
}

EventHandle KernelEvents::take() {
  const EventHandle oldest = events_.front().event;
  events_.pop_front();
  return oldest;
}

const KernelEvents::Recorded* KernelEvents::first_after(KernelNumber kernel) const {
  const auto own = std::ranges::lower_bound(events_, kernel, {}, &Recorded::before);
  if (own == events_.end()) return nullptr;
  // The stream of a forgotten kernel is not known.
  if (own == events_.begin() && own->before > kernel) return &*own;
  return first_after(kernel, own->stream);
}

const KernelEvents::Recorded* KernelEvents::first_after(KernelNumber kernel,
                                                        const DeviceStream& stream) const {
  const auto first = std::ranges::upper_bound(events_, kernel, {}, &Recorded::before);
  const auto left = static_cast<std::size_t>(events_.end() - first);
  const auto last =
      first + static_cast<std::ptrdiff_t>(std::min(left, policy::kMostEventsLookedAt));
  const auto found = std::ranges::find(first, last, stream, &Recorded::stream);
  return found == last ? nullptr : &*found;
}

}  // namespace uvm::live
