// Facts about this build. The strings are static.
#pragma once

namespace uvm {

struct BuildFacts {
  const char* commit;    // 40 digits, then "-dirty" if files differed; or "unknown"
  const char* compiler;  // name and version
};

BuildFacts build_facts();

}  // namespace uvm
