#include "hints/oversubscription/kernel_events.hpp"

#include <gtest/gtest.h>

#include "hints/oversubscription/policy.hpp"

namespace uvm::live {
namespace {

EventHandle event(std::uintptr_t number) {
  return reinterpret_cast<EventHandle>(number);
}
constexpr DeviceStream kFirst{0, nullptr};
const DeviceStream kSecond{0, reinterpret_cast<StreamHandle>(16)};

TEST(KernelEventsTest, AfterAKernelIsTheEventBeforeTheNextOneOnItsStream) {
  KernelEvents events;
  EXPECT_EQ(events.after(1), nullptr);
  events.add(1, kFirst, event(1));
  EXPECT_EQ(events.after(1), nullptr) << "nothing has been recorded since";
  events.add(2, kSecond, event(2));
  events.add(3, kFirst, event(3));
  events.add(4, kFirst, event(4));
  EXPECT_EQ(events.after(1), event(3)) << "event 2 is of another stream";
  EXPECT_EQ(events.after(2), nullptr);
  EXPECT_EQ(events.after(3), event(4));
  EXPECT_EQ(events.first_after(1, kSecond)->event, event(2));
  EXPECT_EQ(events.first_after(2, kSecond), nullptr);
}

TEST(KernelEventsTest, OfAForgottenKernelTheOldestEventIsTaken) {
  KernelEvents events;
  for (std::uintptr_t kernel = 1; kernel <= policy::kMostKernelEvents; ++kernel)
    EXPECT_EQ(events.add(kernel, kFirst, event(kernel)), nullptr);
  const KernelNumber next = policy::kMostKernelEvents + 1;
  EXPECT_EQ(events.add(next, kFirst, event(next)), event(1)) << "to be used again";
  EXPECT_EQ(events.after(0), event(2));
  EXPECT_EQ(events.after(1), event(2));
  EXPECT_EQ(events.after(next - 1), event(next));
}

}  // namespace
}  // namespace uvm::live
