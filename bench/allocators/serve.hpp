// The protocol of a measuring program: a request per line on standard input, an answer per line on
// standard output, until the input ends. One program per allocator stays open, so measure.py can
// alternate between them at every measurement. An answer is {"values": {...}} or {"error": "..."}.
#pragma once

#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "workloads.hpp"

namespace uvm::bench {

template <class Adapter>
void serve() {
  for (std::string line; std::getline(std::cin, line);) {
    Json answer;
    try {
      answer["values"] = Workloads<Adapter>::run(Request(line));
    } catch (const std::exception& failure) {
      answer = {{"error", failure.what()}};
    }
    std::puts(answer.dump().c_str());
    std::fflush(stdout);
  }
}

}  // namespace uvm::bench
