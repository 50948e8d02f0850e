// Hard instances of dynamic storage allocation with a known best packing: a rectangle of time and
// memory is cut into smaller rectangles, which fill it without a gap. A cut goes through a
// rectangle, or makes a pinwheel of five, which no sequence of straight cuts can make.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "pipelines/packing/pack_problem.hpp"

namespace uvm::testing {

// Returns `count` buffers, or up to four more. At every time the buffers take `height_bytes`, and
// some packing has that height.
inline std::vector<PackBuffer> cut_rectangle(std::uint32_t seed, std::size_t count,
                                             std::int64_t steps, std::int64_t height_bytes) {
  struct Rectangle {
    std::int64_t left, right, bottom, top;
  };
  std::mt19937 random(seed);
  auto between = [&random](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low));
  };
  std::vector<Rectangle> pieces{{0, steps, 0, height_bytes}};
  for (int idle = 0; pieces.size() < count && idle < 10000; ++idle) {
    // Chooses the largest of four random rectangles.
    std::size_t chosen = random() % pieces.size();
    auto area = [&pieces](std::size_t at) {
      return static_cast<double>(pieces[at].right - pieces[at].left) *
             static_cast<double>(pieces[at].top - pieces[at].bottom);
    };
    for (int other = 0; other < 3; ++other) {
      const std::size_t candidate = random() % pieces.size();
      if (area(candidate) > area(chosen)) chosen = candidate;
    }
    const Rectangle piece = pieces[chosen];
    const std::int64_t width = piece.right - piece.left;
    const std::int64_t height = piece.top - piece.bottom;
    if (width >= 3 && height >= 3 && random() % 3 == 0) {
      const std::int64_t x1 = between(piece.left + 1, piece.right - 1);
      const std::int64_t x2 = between(x1 + 1, piece.right);
      const std::int64_t y1 = between(piece.bottom + 1, piece.top - 1);
      const std::int64_t y2 = between(y1 + 1, piece.top);
      pieces[chosen] = {piece.left, x2, piece.bottom, y1};
      pieces.push_back({x2, piece.right, piece.bottom, y2});
      pieces.push_back({x1, piece.right, y2, piece.top});
      pieces.push_back({piece.left, x1, y1, piece.top});
      pieces.push_back({x1, x2, y1, y2});
    } else if (width >= 2 && (random() % 2 == 0 || height < 2)) {
      const std::int64_t x = between(piece.left + 1, piece.right);
      pieces[chosen].right = x;
      pieces.push_back({x, piece.right, piece.bottom, piece.top});
    } else if (height >= 2) {
      const std::int64_t y = between(piece.bottom + 1, piece.top);
      pieces[chosen].top = y;
      pieces.push_back({piece.left, piece.right, y, piece.top});
    }
  }
  std::vector<PackBuffer> buffers;
  for (const Rectangle& piece : pieces) {
    buffers.push_back({piece.left, piece.right, piece.top - piece.bottom});
  }
  return buffers;
}

// Returns buffers like those of a program of layers: short-lived buffers of the steps, some buffers
// that wait for a step much later (skip connections, gradients), and sizes of a few kinds.
inline std::vector<PackBuffer> layers_of_program(std::uint32_t seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<PackBuffer> buffers;
  const auto steps = static_cast<std::int64_t>(count);
  for (std::int64_t step = 0; step < steps; ++step) {
    const std::int64_t most = steps - step;
    std::int64_t length = 1 + static_cast<std::int64_t>(random() % 4);
    if (random() % 5 == 0) length = 1 + static_cast<std::int64_t>(random() % 60);
    if (random() % 20 == 0) length = most;
    const std::int64_t size = (1 + static_cast<std::int64_t>(random() % 12)) << (random() % 8);
    buffers.push_back({step, step + std::min(length, most), size});
  }
  return buffers;
}

}  // namespace uvm::testing
