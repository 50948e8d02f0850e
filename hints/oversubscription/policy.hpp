// The tuning constants of the live planner, each with its unit, its reason and the benchmark key
// that measures it (docs/internals/benchmarks.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace uvm::policy {

// ---- The log of uses (UseLog)

// Blocks below this many bytes share their page with many other blocks, so the page stays in use.
inline constexpr std::size_t kLeastLoggedBytes = std::size_t{16} << 10;
// The log forgets older kernels and uses. A step with more kernels or uses is not recognised.
inline constexpr std::size_t kMostLoggedKernels = std::size_t{1} << 15;
inline constexpr std::size_t kMostLoggedUses = std::size_t{1} << 18;
// The number of events of each kind that a page keeps (PageHistory). If a page has more events in a
// step, only the end of the step is predicted for it.
inline constexpr std::size_t kMostPageEvents = 4096;
inline constexpr std::size_t kLeastPageEvents = 8;

// ---- Learning the step (StepLearner; docs/internals/oversubscription.md)

// The number of consecutive kernels that may differ from the previous step before the learner loses
// the step. In a step of at least kLeastPart kernels, a kernel that differs outweighs kStrayWeight
// kernels that do not. So the step is also lost if more than one kernel in kStrayWeight differs
// each time.
inline constexpr std::uint64_t kMostStrays = 16;
inline constexpr std::uint64_t kStrayWeight = 8;
// The number of consecutive corresponding kernels before predictions begin.
inline constexpr std::size_t kLeastRun = 16;
// The number of consecutive kernels that are compared before a step is followed.
inline constexpr std::uint64_t kComparedKernels = 8;
// If no block is the same in both steps: the least and the most kernels that are compared.
inline constexpr std::uint64_t kTemporaryRun = 64;
inline constexpr std::uint64_t kMostCompared = 4096;
// The number of blocks of the newest kernel, and of earlier uses of each, at which the search for
// the previous step looks.
inline constexpr std::uint32_t kMostComparedBlocks = 4;
inline constexpr std::size_t kMostUsesBack = 64;
// If a step has fewer kernels than this, one kernel with a counterpart resets the count of kernels
// without one.
inline constexpr std::uint64_t kLeastPart = 32;
// After a step was found, this many of its kernels are linked to their counterparts for each newer
// kernel: at least kComparedKernels, and few, because a program waits.
inline constexpr std::uint64_t kMatchedAtOnce = 32;
// The number of kernels by which the age of a block may differ, because kernels were left out or
// added.
inline constexpr std::uint64_t kAgeSlack = 8;

// ---- Whether a plan is worth its moves (PlanJudge; auto_over_lru_worst)

// A plan may move 1/kMovedMoreParts of the device's chunks more than `lru`, counted after whole
// steps. A plan moves up to 1/kChunksPerCredit of the chunks earlier than `lru`, so a smaller limit
// would end correct plans.
inline constexpr std::uint64_t kMovedMoreParts = 4;
// The time that a plan's steps may take, relative to a step by `lru`: the first timed step, and the
// average of all timed steps.
inline constexpr double kMostOverLruAtFirst = 1.10;
inline constexpr double kMostOverLru = 1.02;
// The number of steps after which the plan is followed even if no step by `lru` was timed; and the
// number of different steps whose times are remembered.
inline constexpr std::uint64_t kStepsToTime = 2;
inline constexpr std::size_t kKnownSteps = 8;
// A step counts as lost soon if it is lost before it was seen kStepsProven times. After n + 1 such
// steps in a row, the next step must be seen 2^n times, at most 2^kMostLostSoon.
inline constexpr std::uint64_t kStepsProven = 2;
inline constexpr int kMostLostSoon = 6;
// Steps whose numbers of kernels differ by at most 1/kSameStepParts share one recorded time.
inline constexpr std::uint64_t kSameStepParts = 8;
// The kernels, and the steps, of a plan's first pause. The next pause is twice as long if the plan
// was trusted for less than kPausesTrusted times the last pause.
inline constexpr std::uint64_t kLeastPauseKernels = 64;
inline constexpr std::uint64_t kStepsOfPause = 4;
inline constexpr std::uint64_t kPausesTrusted = 4;
inline constexpr std::uint64_t kMostPauseKernels = std::uint64_t{1} << 20;

// ---- Pages ahead of their use (LivePlan; hint_calls_ratio)

// The number of kernels ahead of its use that a page is prefetched. The GPT's step has 134 kernels.
// For four workloads that need 1.25 to 3 times the device's memory, 16 and 64 give the same time
// within 1 %.
inline constexpr std::size_t kKernelsAhead = 32;
// At most 1/kChunksPerCredit of the device's chunks hold pages that are prefetched ahead of their
// use. More would take chunks that earlier kernels need.
inline constexpr std::size_t kChunksPerCredit = 4;
inline constexpr std::size_t kLeastCredits = 2;
// A new block larger than 1/kLargeBlockParts of the device is not prefetched; its pages are handled
// at its first kernel. That kernel may need more memory than the device has, and then the pages
// that it reads are prefetched.
inline constexpr std::size_t kLargeBlockParts = 4;
// Moves that may be sent together wait for each other until one of them is needed within this many
// kernels. With 24, the CNN's step takes 1 % less time, and the recommender's 1 % more.
inline constexpr std::uint64_t kSoonKernels = 12;
// The number of chunks that stay free for pages in flight while a step needs more memory than the
// device has, if the device has at least kLeastChunksPerSpare times as many chunks (SpareChunks).
// This is two rounds: with fewer chunks, a prefetch waits for the round of evictions that has just
// begun. On devices with 80 to 220 chunks, 8 free ones make `decayed` 1.5 times as fast, and
// `unet`, `dense` and `evaluation` up to 1.2 times as slow.
inline constexpr std::size_t kSpareChunks = 8;
inline constexpr std::size_t kLeastChunksPerSpare = 32;
// The number of pages that are copied to the device in one round. With 8 pages and kSoonKernels =
// 16, the CNN needs an eighth fewer calls, and its step takes 1 % longer.
inline constexpr std::size_t kRoundPages = 4;

// ---- Evictions (VictimFinder)

// The number of pages at which one search looks. The next search continues after these pages.
inline constexpr std::size_t kMostCandidates = 256;
// The assumed number of kernels of a step while no step is known.
inline constexpr std::uint64_t kUnknownStep = 256;

// ---- Sending moves (MoveLanes)

// The number of streams for evictions, and of streams for prefetches, so that the driver's work for
// one page overlaps the copy of another.
inline constexpr std::size_t kLanesEachWay = 4;
// The number of evictions whose events are kept, because a later prefetch of their pages waits for
// them. Older evictions are over, or the prefetch migrates the page later.
inline constexpr std::size_t kMostEvictions = 64;
// The number of events of kernels that are kept (KernelEvents), and the number of events after a
// kernel that a search looks at. A later event can replace the event of an older kernel.
inline constexpr std::size_t kMostKernelEvents = 512;
inline constexpr std::size_t kMostEventsLookedAt = 16;

// ---- Thrashing (ThrashDetector; docs/internals/oversubscription.md)

// One direction of a PCIe 3 link with 16 lanes. On a faster link the estimate is too high.
inline constexpr double kThrashLinkBytesPerNs = 12.0;
// The number of consecutive stretches that are slower than the limit before thrashing begins, and
// that are fast before it ends.
inline constexpr int kThrashSteps = 3;
// While no step is known, a stretch ends after this many kernels, or when bytes equal to
// 1/kThrashDeviceParts of the device's memory have moved.
inline constexpr std::uint64_t kKernelsWithoutStep = 1024;
inline constexpr std::uint64_t kThrashDeviceParts = 2;
// The least limit: moves that cost a twentieth of a step do not count as thrashing.
inline constexpr double kLeastSlowdownLimit = 1.05;

// ---- The plan of a device (LivePlanner; residency_wrong_pages)

// The plan may end after this many kernels without a move.
inline constexpr std::uint64_t kCalmKernels = 8192;
// The most frees that wait for the next decision. The thread that frees records any further ones
// itself.
inline constexpr std::size_t kMostWaitingFrees = 1024;
// The number of kernels between two reads of the device's limit and the peers' budgets, and between
// two reads of the peers' free memory from the driver.
inline constexpr std::uint64_t kLookKernels = 64;
inline constexpr std::uint64_t kMeasureKernels = 1024;
// The most pages that are compared with the places that the driver reports every kLookKernels, and
// the most driver calls for this.
inline constexpr std::size_t kComparedPages = 512;
inline constexpr int kCompareCalls = 16;
// One in this many expected pages may be missing, because it may be in flight.
inline constexpr std::size_t kMissingParts = 16;
// After pages were lost, the plan tries memory that was lost again if all expected pages were found
// this many times in a row, or earlier.
inline constexpr std::size_t kMostRoundsToTry = 256;
// 1/kPeerParts of another device's free memory may hold this device's pages (PeerRoom).
inline constexpr std::size_t kPeerParts = 2;

}  // namespace uvm::policy
