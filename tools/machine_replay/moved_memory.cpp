#include "tools/machine_replay/moved_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

namespace uvm::machine_replay {
namespace {

using Json = nlohmann::ordered_json;
namespace replay = uvmsim::replay;

struct Life {
  std::uint64_t size_bytes = 0;
  std::uint64_t from_ns = 0;
  std::optional<std::uint64_t> to_ns;
  std::string mark;
};

std::vector<Life> lives_of(const replay::Recording& recording, std::size_t count) {
  std::vector<Life> lives(count);
  auto mark = recording.marks.begin();
  std::string latest;
  for (std::size_t index = 0; index < recording.events.size(); ++index) {
    const replay::Event& event = recording.events[index];
    if (mark != recording.marks.end() && mark->event == index) latest = (mark++)->text;
    if (event.kind == replay::EventKind::kAllocate)
      lives.at(event.block) = {event.amount, event.recorded_ns, std::nullopt, latest};
    if (event.kind == replay::EventKind::kFree) lives.at(event.block).to_ns = event.recorded_ns;
  }
  return lives;
}

bool has_moved(const replay::BlockFigures& figures) {
  return figures.faults != 0 || figures.bytes_to_device != 0;
}

auto moved(const replay::BlockFigures& figures) {
  return std::pair(figures.bytes_to_device + figures.evicted_bytes, figures.faults);
}

Json json_of(const replay::BlockFigures& figures) {
  return {{"touches", figures.touches},
          {"faults", figures.faults},
          {"bytes_to_device", figures.bytes_to_device},
          {"evicted_bytes", figures.evicted_bytes}};
}

struct SiteFigures {
  std::string site;
  std::size_t allocations = 0;
  std::uint64_t allocated_bytes = 0;
  replay::BlockFigures figures;

  void add(std::uint64_t size_bytes, const replay::BlockFigures& more) {
    ++allocations;
    allocated_bytes += size_bytes;
    figures.touches += more.touches;
    figures.faults += more.faults;
    figures.bytes_to_device += more.bytes_to_device;
    figures.evicted_bytes += more.evicted_bytes;
  }
};

}  // namespace

std::vector<std::string> call_sites_of(const Trace& trace) {
  std::vector<std::string> sites;
  std::unordered_map<std::uint64_t, std::size_t> latest;  // newest allocation, by address
  bool any = false;
  for (const ThreadEvent& event : trace.events) {
    if (event.kind == TraceKind::kAllocate && event.size_bytes != 0) {
      latest[event.address] = sites.size();
      sites.emplace_back();
    } else if (event.kind == TraceKind::kSite) {
      const auto found = latest.find(event.address);
      if (found == latest.end()) continue;
      sites[found->second] = trace.text(event);
      any = true;
    }
  }
  if (!any) sites.clear();
  return sites;
}

Json allocations_that_moved_most(const replay::Recording& recording, const replay::Outcome& outcome,
                                 const std::vector<std::string>& sites, std::size_t count) {
  const std::vector<Life> lives = lives_of(recording, outcome.blocks.size());
  std::vector<std::size_t> order;
  for (std::size_t block = 0; block < outcome.blocks.size(); ++block)
    if (has_moved(outcome.blocks[block])) order.push_back(block);
  std::ranges::stable_sort(order, std::greater{},
                           [&](std::size_t block) { return moved(outcome.blocks[block]); });
  Json result = Json::array();
  for (const std::size_t block : std::span(order).first(std::min(count, order.size()))) {
    const Life& life = lives[block];
    Json each = {{"block", block}, {"size_bytes", life.size_bytes}};
    if (!sites.empty()) each["site"] = sites.at(block);
    each["allocated_in"] = life.mark;
    each["from_ns"] = life.from_ns;
    if (life.to_ns) each["to_ns"] = *life.to_ns;
    each.update(json_of(outcome.blocks[block]));
    result.push_back(each);
  }
  return result;
}

Json sites_that_moved_most(const replay::Recording& recording, const replay::Outcome& outcome,
                           const std::vector<std::string>& sites, std::size_t count) {
  const std::vector<Life> lives = lives_of(recording, outcome.blocks.size());
  std::map<std::string, SiteFigures> by_site;
  for (std::size_t block = 0; block < outcome.blocks.size(); ++block)
    by_site[sites.at(block)].add(lives[block].size_bytes, outcome.blocks[block]);
  std::vector<SiteFigures> order;
  for (auto& [site, figures] : by_site) {
    figures.site = site;
    if (has_moved(figures.figures)) order.push_back(figures);
  }
  std::ranges::stable_sort(order, std::greater{},
                           [](const SiteFigures& each) { return moved(each.figures); });
  Json result = Json::array();
  for (const SiteFigures& site : std::span(order).first(std::min(count, order.size()))) {
    Json each = {{"site", site.site},
                 {"allocations", site.allocations},
                 {"allocated_bytes", site.allocated_bytes}};
    each.update(json_of(site.figures));
    result.push_back(each);
  }
  return result;
}

}  // namespace uvm::machine_replay
