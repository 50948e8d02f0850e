// The headers that most files include; uvmalloc_parse_headers_once() has them precompiled.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#if defined(FMT_BEGIN_NAMESPACE)  // of targets that link {fmt}
#include <fmt/format.h>
#endif
