#include <uvmalloc/configuration.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <optional>
#include "runtime/log.hpp"

namespace uvm {
namespace {

ParsedConfiguration parse(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> names;
  for (const auto& [name, value] : variables) names.push_back(name);
  return parse_configuration(
      [&](const char* name) {
        auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
      },
      names);
}

TEST(Configuration, NothingSetIsOffAndWithoutErrors) {
  ParsedConfiguration parsed = parse({});
  EXPECT_FALSE(parsed.configuration.enabled);
  EXPECT_TRUE(parsed.errors.empty());
  EXPECT_EQ(parsed.effective.size(), known_settings().size());
}

TEST(Configuration, TheSwitchUnderstandsTheUsualWords) {
  for (const char* on : {"1", "on", "ON", "true", "yes"}) {
    EXPECT_TRUE(parse({{"PYTORCH_ENABLE_UNIFIED_MEMORY", on}}).configuration.enabled) << on;
  }
  for (const char* off : {"", "0", "off", "Off", "false", "no"}) {
    ParsedConfiguration parsed = parse({{"PYTORCH_ENABLE_UNIFIED_MEMORY", off}});
    EXPECT_FALSE(parsed.configuration.enabled) << off;
    EXPECT_TRUE(parsed.errors.empty()) << off;
  }
}

TEST(Configuration, ReportsTracesAndDecayUnderstandTheWordsForOff) {
  for (const char* off : {"", "0", "off", "OFF", "false", "no"}) {
    ParsedConfiguration parsed = parse({{"UVMALLOC_TRACE", off},
                                        {"UVMALLOC_REPORT", off},
                                        {"UVMALLOC_REPORT_DIR", off},
                                        {"UVMALLOC_DECAY", off}});
    EXPECT_TRUE(parsed.errors.empty()) << off;
    EXPECT_EQ(parsed.configuration.trace_file, "") << off;
    EXPECT_EQ(parsed.configuration.report, "") << off;
    EXPECT_EQ(parsed.configuration.report_directory, "") << off;
    EXPECT_EQ(parsed.configuration.decay_seconds, 0) << off;
  }
  EXPECT_EQ(parse({{"UVMALLOC_TRACE", "./off"}}).configuration.trace_file, "./off");
  EXPECT_EQ(parse({{"UVMALLOC_LOG", "off"}}).configuration.log, LogLevel::kOff);
}

TEST(Configuration, SettingsOfGroupsAreChecked) {
  const char* accepted =
      "saver/a:b:priority=-2,floor=4GiB,idle=1.5;image:idle=5s,copies=kept,pinned=1";
  EXPECT_EQ(parse({{"UVMALLOC_GROUPS", accepted}}).configuration.groups, accepted);
  for (const char* refused :
       {"llm", "llm:", "llm:priority", "llm:priority=", "llm:priority=two", "llm:color=red",
        "llm:limit=1MiB", "llm:idle=-1", "llm:idle=5x", "llm:idle=1e300", "llm:floor=x",
        "llm:floor=1,floor=2", "llm:pinned=yes", "llm:copies=all", "two words:idle=1", ":idle=1",
        "a:idle=1;a:idle=2", "a:idle=1;", "a:idle=1,"}) {
    const ParsedConfiguration parsed = parse({{"UVMALLOC_GROUPS", refused}});
    EXPECT_EQ(parsed.configuration.groups, "") << refused;
    ASSERT_EQ(parsed.errors.size(), 1u) << refused;
    EXPECT_TRUE(parsed.errors[0].starts_with("UVMALLOC_GROUPS='")) << parsed.errors[0];
  }
}

TEST(Configuration, AnEmptyValueIsTheDefault) {
  const ParsedConfiguration nothing = parse({});
  for (const SettingDescription& setting : known_settings()) {
    ParsedConfiguration parsed = parse({{std::string(setting.name), ""}});
    EXPECT_TRUE(parsed.errors.empty()) << setting.name;
    for (std::size_t i = 0; i < parsed.effective.size(); ++i) {
      EXPECT_EQ(parsed.effective[i].value, nothing.effective[i].value) << setting.name;
    }
  }
}

TEST(Configuration, ValuesAreReadAndTheirSourceIsKept) {
  ParsedConfiguration parsed = parse({{"UVMALLOC_POLICY", "driver"},
                                      {"UVMALLOC_BUDGET", "1.5GiB"},
                                      {"UVMALLOC_DEVICE_BUDGET", "512MiB"},
                                      {"UVMALLOC_HOST_THRESHOLD", "64K"},
                                      {"UVMALLOC_LOG", "debug"},
                                      {"UVMALLOC_MOVE", "alias"},
                                      {"UVMALLOC_CPU", "Managed"},
                                      {"UVMALLOC_TRACE", "run.%p.trace"},
                                      {"UVMALLOC_CALL_SITES", "yes"}});
  EXPECT_TRUE(parsed.errors.empty());
  EXPECT_TRUE(parsed.configuration.call_sites);
  EXPECT_EQ(parsed.configuration.cpu_tensors, CpuTensors::kManaged);
  EXPECT_EQ(parsed.configuration.policy, Policy::kDriver);
  EXPECT_EQ(parsed.configuration.budget_bytes, std::size_t{3} << 29);
  EXPECT_EQ(parsed.configuration.device_budget_bytes, std::size_t{1} << 29);
  EXPECT_EQ(parsed.configuration.host_threshold_bytes, 65536u);
  EXPECT_EQ(parsed.configuration.log, LogLevel::kDebug);
  EXPECT_EQ(parsed.configuration.move, MoveMode::kAlias);
  EXPECT_EQ(parsed.configuration.trace_file, "run.%p.trace");
  for (const EffectiveSetting& setting : parsed.effective) {
    if (setting.description.name == "UVMALLOC_BUDGET") {
      EXPECT_TRUE(setting.from_environment);
      EXPECT_EQ(setting.value, "1.50 GiB");
    }
    if (setting.description.name == "UVMALLOC_RESERVE") {
      EXPECT_FALSE(setting.from_environment);
      EXPECT_EQ(setting.value, "auto");
    }
  }
}

TEST(Configuration, TheLimitOfSpillingIsAFactorOrNone) {
  const auto slowdown = [](const char* text) {
    const ParsedConfiguration parsed = parse({{"UVMALLOC_SPILL", text}});
    EXPECT_TRUE(parsed.errors.empty()) << text;
    return parsed.configuration.most_slowdown;
  };
  EXPECT_EQ(slowdown("auto"), std::nullopt);
  EXPECT_EQ(slowdown("1x"), 1.0);
  EXPECT_EQ(slowdown("1.5X"), 1.5);
  EXPECT_EQ(slowdown("2"), 2.0);
  EXPECT_EQ(slowdown("none"), std::numeric_limits<double>::infinity());
  EXPECT_EQ(slowdown("None"), std::numeric_limits<double>::infinity());
}

TEST(Configuration, AMalformedValueNamesVariableValueAndWhatIsAccepted) {
  struct Case {
    const char* name;
    const char* value;
  };
  for (const Case& each : {Case{"PYTORCH_ENABLE_UNIFIED_MEMORY", "maybe"},
                           Case{"UVMALLOC_POLICY", "magic"},
                           Case{"UVMALLOC_BUDGET", "lots"},
                           Case{"UVMALLOC_BUDGET", "-1"},
                           Case{"UVMALLOC_BUDGET", "0"},
                           Case{"UVMALLOC_DEVICE_BUDGET", "1MiB"},
                           Case{"UVMALLOC_SPAN_SIZE", "4K"},
                           Case{"UVMALLOC_LOG", "loud"},
                           Case{"UVMALLOC_MOVE", "steal"},
                           Case{"UVMALLOC_CPU", "malloc"},
                           Case{"UVMALLOC_HOST_THRESHOLD", "1 pound"},
                           Case{"UVMALLOC_REPORT", "printer"},
                           Case{"UVMALLOC_SPILL", "0.5x"},
                           Case{"UVMALLOC_SPILL", "2xx"},
                           Case{"UVMALLOC_SPILL", "x"},
                           Case{"UVMALLOC_SPILL", "inf"},
                           Case{"UVMALLOC_DECAY", "soon"},
                           Case{"UVMALLOC_DECAY", "-1"},
                           Case{"UVMALLOC_DECAY", "inf"},
                           Case{"UVMALLOC_DECAY", "nan"},
                           Case{"UVMALLOC_DECAY", "0x10"},
                           Case{"UVMALLOC_DECAY", " 3"},
                           Case{"UVMALLOC_DECAY", "3 "},
                           Case{"UVMALLOC_DECAY", "+3"},
                           Case{"UVMALLOC_DECAY", "2,5"},
                           Case{"LOCAL_WORLD_SIZE", "1025"},
                           Case{"LOCAL_WORLD_SIZE", "4294967295"},
                           Case{"LOCAL_WORLD_SIZE", "4x"},
                           Case{"LOCAL_WORLD_SIZE", "many"},
                           Case{"LOCAL_WORLD_SIZE", "0"}}) {
    ParsedConfiguration parsed = parse({{each.name, each.value}});
    ASSERT_EQ(parsed.errors.size(), 1u) << each.name;
    const std::string& error = parsed.errors[0];
    EXPECT_NE(error.find(each.name), std::string::npos) << error;
    EXPECT_NE(error.find(each.value), std::string::npos) << error;
    EXPECT_NE(error.find("accepted"), std::string::npos) << error;
    EXPECT_FALSE(parsed.configuration.enabled);
    EXPECT_EQ(parsed.configuration.policy, Policy::kAuto) << "the default stays";
    EXPECT_FALSE(parsed.configuration.budget_bytes);
    EXPECT_EQ(parsed.configuration.decay_seconds, 0);
    EXPECT_EQ(parsed.configuration.local_ranks, 1u);
  }
}

TEST(Configuration, NumbersAreReadAsTheyAreWritten) {
  EXPECT_EQ(parse({{"UVMALLOC_DECAY", "2.5"}}).configuration.decay_seconds, 2.5);
  EXPECT_EQ(parse({{"UVMALLOC_DECAY", "1e3"}}).configuration.decay_seconds, 1000);
  EXPECT_EQ(parse({{"LOCAL_WORLD_SIZE", "1024"}}).configuration.local_ranks, 1024u);
}

TEST(Configuration, WhatIsAcceptedNamesTheLeastSizeAndWhatIsUsedInstead) {
  EXPECT_EQ(parse({{"UVMALLOC_BUDGET", "1MiB"}}).errors,
            std::vector<std::string>{
                "UVMALLOC_BUDGET='1MiB' is not understood; accepted: auto, or a size of at least "
                "2MiB, such as 512MiB or 8G; the default, auto, is used"});
  EXPECT_EQ(parse({{"UVMALLOC_REPORT", "printer"}}).errors,
            std::vector<std::string>{"UVMALLOC_REPORT='printer' is not understood; accepted: "
                                     "stderr, or off; the default, off, is used"});
}

TEST(Configuration, AMisspeltNameIsAnError) {
  ParsedConfiguration parsed =
      parse({{"UVMALLOC_BUGDET", "1G"}, {"UVMALLOC_CACHE", "x"}, {"UVMALLOC_JEMALLOC_DIR", "x"}});
  ASSERT_EQ(parsed.errors.size(), 1u);
  EXPECT_NE(parsed.errors[0].find("UVMALLOC_BUGDET"), std::string::npos);
}

TEST(Configuration, WithRaisedRightsNothingOfTheEnvironmentIsUsedAndOneLineSaysSo) {
  setenv("UVMALLOC_TRACE", "/nowhere/trace", 1);
  setenv("LOCAL_WORLD_SIZE", "7", 1);
  EXPECT_EQ(parse_environment(false).configuration.trace_file, "/nowhere/trace");
  const ParsedConfiguration parsed = parse_environment(true);
  unsetenv("UVMALLOC_TRACE");
  unsetenv("LOCAL_WORLD_SIZE");
  EXPECT_EQ(parsed.configuration.trace_file, "");
  EXPECT_EQ(parsed.configuration.local_ranks, 1u);
  ASSERT_EQ(parsed.errors.size(), 1u);
  EXPECT_NE(parsed.errors[0].find("raised rights"), std::string::npos);
  for (const EffectiveSetting& setting : parsed.effective) {
    EXPECT_FALSE(setting.from_environment) << setting.description.name;
  }
}

TEST(Configuration, Sizes) {
  EXPECT_EQ(parse_size("0"), 0u);
  EXPECT_EQ(parse_size("4096"), 4096u);
  EXPECT_EQ(parse_size("2MiB"), 2u << 20);
  EXPECT_EQ(parse_size("2mb"), 2u << 20);
  EXPECT_EQ(parse_size("1.5 GiB"), std::size_t{3} << 29);
  EXPECT_EQ(parse_size("1T"), std::size_t{1} << 40);
  for (const char* bad :
       {"", "G", "1X", "1GiBs", "-5", "1iB", "0x10", "nan", "inf", "9999999T", "1 2"}) {
    EXPECT_EQ(parse_size(bad), std::nullopt) << bad;
  }
  EXPECT_EQ(format_size(512), "512 B");
  EXPECT_EQ(format_size(std::size_t{3} << 29), "1.50 GiB");
}

TEST(Configuration, AutoIsUnderstoodInUpperCaseToo) {
  for (const char* name :
       {"UVMALLOC_BUDGET", "UVMALLOC_DEVICE_BUDGET", "UVMALLOC_RESERVE", "UVMALLOC_FORK_LIMIT"}) {
    EXPECT_TRUE(parse({{name, "AUTO"}}).errors.empty()) << name;
  }
}

}  // namespace
}  // namespace uvm
