// One request to a measuring program: the workload's name and its parameters, for example "pair
// size=512 milliseconds=20". Values are numbers or paths without blanks. Throws
// std::invalid_argument, which names the error.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace uvm::bench {

class Request {
 public:
  explicit Request(const std::string& line);

  const std::string& workload() const { return workload_; }
  std::uint64_t number(const std::string& key) const;
  std::uint64_t number(const std::string& key, std::uint64_t otherwise) const;
  std::string text(const std::string& key, const std::string& otherwise) const;

  // Returns this request with one more parameter.
  Request with(const std::string& key, std::uint64_t value) const;

 private:
  std::string workload_;
  std::map<std::string, std::string> parameters_;
};

}  // namespace uvm::bench
