// Detects the scheduler in the variables of a fixture.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/cluster/core/cluster_plan.h"

namespace ddprun {

using Variables = std::map<std::string, std::string, std::less<>>;

inline Result<std::optional<ClusterPlan>> detect(const Variables& variables,
                                                 bool is_typed = false) {
  const auto lookup = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
  return detect_cluster(lookup, is_typed);
}

inline ClusterPlan plan_of(const Variables& variables) {
  const auto plan = detect(variables);
  EXPECT_TRUE(plan) << (plan ? "" : plan.error().message());
  EXPECT_TRUE(plan && *plan);
  return plan && *plan ? **plan : ClusterPlan{};
}

inline std::string error_of(const Variables& variables) {
  const auto plan = detect(variables);
  EXPECT_FALSE(plan);
  return plan ? "" : plan.error().message();
}

inline Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

inline Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

}  // namespace ddprun
