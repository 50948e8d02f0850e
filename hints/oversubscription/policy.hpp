// The numbers by which the live planner decides, each with its unit, its reason and the benchmark
// key that judges it (docs/internals/benchmarks.md).
#pragma once

#include <cstddef>
#include <cstdint>

namespace uvm::policy {

// ---- The log of uses (UseLog)

// A block below this many bytes shares its page with so many others that the page stays in use.
inline constexpr std::size_t kLeastLoggedBytes = std::size_t{16} << 10;
// The log forgets older kernels and uses. A step with more of them is not recognised.
inline constexpr std::size_t kMostLoggedKernels = std::size_t{1} << 15;
inline constexpr std::size_t kMostLoggedUses = std::size_t{1} << 18;
// Events of each kind that a page keeps (PageHistory). A page with more of them in a step is
// predicted only for the end of the step.
inline constexpr std::size_t kMostPageEvents = 4096;
inline constexpr std::size_t kLeastPageEvents = 8;

// ---- Learning the step (StepLearner; docs/internals/oversubscription.md)

// Kernels that may differ from the step before, in a row, before the learner is lost. In a step of
// kLeastPart kernels or more, a kernel that differs counts as kStrayWeight kernels that do not, so
// that a step of which more than one kernel in kStrayWeight differs each time is lost too.
inline constexpr std::uint64_t kMostStrays = 16;
inline constexpr std::uint64_t kStrayWeight = 8;
// Corresponding kernels in a row before predictions begin.
inline constexpr std::size_t kLeastRun = 16;
// Kernels in a row that are compared before a step is followed.
inline constexpr std::uint64_t kComparedKernels = 8;
// If no block is the same in both steps: kernels that are compared, at least and at most.
inline constexpr std::uint64_t kTemporaryRun = 64;
inline constexpr std::uint64_t kMostCompared = 4096;
// Blocks of the newest kernel, and earlier uses of each, at which the step before may have been.
inline constexpr std::uint32_t kMostComparedBlocks = 4;
inline constexpr std::size_t kMostUsesBack = 64;
// After a part of a step was taken for the step, longer steps are searched for this many parts. A
// part shorter than kLeastPart kernels is followed again: a loop over experts that the data choose
// has no longer step.
inline constexpr std::uint64_t kPartsOfStep = 16;
inline constexpr std::uint64_t kLeastPart = 32;
// Kernels by which the age of a block may differ, because kernels were left out or added.
inline constexpr std::uint64_t kAgeSlack = 8;

// ---- Whether a plan is worth its moves (PlanJudge; auto_over_lru_worst)

// A plan may move 1/kMovedMoreParts of the device's chunks more than `lru`, counted after whole
// steps. It moves pages up to 1/kChunksPerCredit of the chunks earlier, so less would end plans
// that are right.
inline constexpr std::uint64_t kMovedMoreParts = 4;
// A plan's steps may take this much of the time of a step by `lru`: the first one that is timed,
// and the average of them.
inline constexpr double kMostOverLruAtFirst = 1.10;
inline constexpr double kMostOverLru = 1.02;
// Steps in which one as by `lru` must have been timed, before the plan is followed without; and how
// many different steps of a program are remembered with their times.
inline constexpr std::uint64_t kStepsToTime = 2;
inline constexpr std::size_t kKnownSteps = 8;
// A step is lost soon if it is lost before it was seen kStepsProven times. After n of them in a
// row, but one, the next step must be seen 2^n times, at most 2^kMostLostSoon.
inline constexpr std::uint64_t kStepsProven = 2;
inline constexpr int kMostLostSoon = 6;
// Steps whose kernels differ by 1/kSameStepParts are the same for the times.
inline constexpr std::uint64_t kSameStepParts = 8;
// Kernels, and steps, that a plan pauses at first. It pauses twice as long if it was trusted for
// less than kPausesTrusted times the last pause.
inline constexpr std::uint64_t kLeastPauseKernels = 64;
inline constexpr std::uint64_t kStepsOfPause = 4;
inline constexpr std::uint64_t kPausesTrusted = 4;
inline constexpr std::uint64_t kMostPauseKernels = std::uint64_t{1} << 20;

// ---- Pages ahead of their use (LivePlan; hint_calls_ratio)

// Kernels ahead of its use that a page comes. The GPT's step has 134 kernels. For four workloads at
// 1.25 to 3 times the memory, 16 and 64 take as long within 1 %.
inline constexpr std::size_t kKernelsAhead = 32;
// At most 1/kChunksPerCredit of the device's chunks hold pages that are on their way ahead of their
// use. More of them would hold chunks that kernels before them need.
inline constexpr std::size_t kChunksPerCredit = 4;
inline constexpr std::size_t kLeastCredits = 2;
// A new block larger than 1/kLargeBlockParts of the device is not prefetched: its first kernel
// brings it. That kernel may need more than the device has, and then the pages come that it reads.
inline constexpr std::size_t kLargeBlockParts = 4;
// Moves that may be sent together wait for each other until a kernel within this many needs one of
// them. With 24, the CNN's step takes 1 % less time, and the recommender's 1 % more.
inline constexpr std::uint64_t kSoonKernels = 12;
// Chunks that stay free for pages on their way while a step needs more than the device has, if the
// device has kLeastChunksPerSpare times as many (SpareChunks). Two rounds: with fewer, an arrival
// waits for the round that has just begun to leave. On devices with 80 to 220 chunks, 8 free ones
// make `decayed` 1.5 times as fast, and `unet`, `dense` and `evaluation` up to 1.2 times as slow.
inline constexpr std::size_t kSpareChunks = 8;
inline constexpr std::size_t kLeastChunksPerSpare = 32;
// Pages that are copied to the device in one round. With 8 pages and kSoonKernels = 16, the CNN
// needs an eighth fewer calls, and its step takes 1 % longer.
inline constexpr std::size_t kRoundPages = 4;

// ---- Pages that leave (VictimFinder)

// Pages at which one search looks. The next search goes on behind them.
inline constexpr std::size_t kMostCandidates = 256;
// Kernels of a step while no step is known.
inline constexpr std::uint64_t kUnknownStep = 256;

// ---- Sending moves (MoveLanes)

// Streams for pages that leave, and the same number for pages that come, so that the driver's work
// for one page runs beside the copy of another.
inline constexpr std::size_t kLanesEachWay = 4;
// Evictions whose pages a return waits for. Older ones are over, or the wait costs only time.
inline constexpr std::size_t kMostEvictions = 64;
// Events of kernels that are kept (KernelEvents), and events behind the one of a kernel that are
// looked at. A later event stands for an older kernel's.
inline constexpr std::size_t kMostKernelEvents = 512;
inline constexpr std::size_t kMostEventsLookedAt = 16;

// ---- Thrashing (ThrashDetector; docs/internals/oversubscription.md)

// One direction of a PCIe 3 link with 16 lanes. On a faster link the estimate is too high.
inline constexpr double kThrashLinkBytesPerNs = 12.0;
// Stretches in a row that are slower than the limit before thrashing begins, and faster before it
// ends.
inline constexpr int kThrashSteps = 3;
// While no step is known, a stretch ends after this many kernels, or when as many bytes have moved
// as 1/kThrashDeviceParts of the device has.
inline constexpr std::uint64_t kKernelsWithoutStep = 1024;
inline constexpr std::uint64_t kThrashDeviceParts = 2;
// The least limit: moves that cost a twentieth of a step are no thrashing.
inline constexpr double kLeastSlowdownLimit = 1.05;

// ---- The plan of a device (LivePlanner; residency_wrong_pages)

// The plan may end after this many kernels without a move.
inline constexpr std::uint64_t kCalmKernels = 8192;
// Kernels between two reads of the device's limit and the peers' budgets, and between two reads of
// the peers' free memory from the driver.
inline constexpr std::uint64_t kLookKernels = 64;
inline constexpr std::uint64_t kMeasureKernels = 1024;
// Pages that are compared with the driver's answer every kLookKernels, and the most calls for them.
inline constexpr std::size_t kComparedPages = 512;
inline constexpr int kCompareCalls = 16;
// One in this many of the expected pages may be missing, because it may be on its way.
inline constexpr std::size_t kMissingParts = 16;
// After lost pages, memory is tried again after this many rounds at most.
inline constexpr std::size_t kMostRoundsToTry = 64;
// 1/kPeerParts of another device's free memory may hold this device's pages (PeerRoom).
inline constexpr std::size_t kPeerParts = 2;

}  // namespace uvm::policy
