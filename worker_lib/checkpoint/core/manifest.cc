#include "worker_lib/checkpoint/core/manifest.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/assert.h"
#include "base/concat.h"
#include "base/parse_number.h"
#include "worker_lib/serialization/core/temporary_name.h"

namespace ddprun {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kManifestSuffix = ".json";
constexpr std::string_view kDataSuffix = ".pt";
constexpr std::string_view kShardInfix = ".shard-";
constexpr std::size_t kShardDigits = 4;
constexpr std::size_t kStepDigits = 12;  // so that names sort like steps

std::string stem(std::int64_t step) {
  DDPRUN_ASSERT(step >= 0, "steps are counted from 0");
  char text[64];
  std::snprintf(text, sizeof text, "%s%0*lld", kPrefix.data(), static_cast<int>(kStepDigits),
                static_cast<long long>(step));
  return text;
}

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

// Parses decimal digits and nothing else.
std::optional<std::int64_t> number(std::string_view text) {
  return text.starts_with('-') ? std::nullopt : parse_number<std::int64_t>(text);
}

}  // namespace

std::string step_name(std::int64_t step) { return stem(step); }

std::string manifest_name(std::int64_t step) { return concat(stem(step), kManifestSuffix); }

std::string data_name(std::int64_t step, const std::set<std::string>& taken) {
  std::string base = stem(step);
  const auto is_taken = [&] {
    const auto shard = taken.lower_bound(concat(base, kShardInfix));
    return taken.contains(concat(base, kDataSuffix)) ||
           (shard != taken.end() && shard->starts_with(concat(base, kShardInfix)));
  };
  for (int attempt = 2; is_taken(); ++attempt) base = concat(stem(step), "-", attempt);
  return concat(base, kDataSuffix);
}

std::string shard_name(std::string_view data_name, int shard) {
  DDPRUN_ASSERT(take_suffix(data_name, kDataSuffix), "it is the name of a data file");
  std::string number = std::to_string(shard);
  if (number.size() < kShardDigits) number.insert(0, kShardDigits - number.size(), '0');
  return concat(data_name, kShardInfix, number, kDataSuffix);
}

std::optional<CheckpointFileName> parse_file_name(std::string_view name) {
  using Kind = CheckpointFileName::Kind;
  const bool temporary = take_suffix(name, kTemporarySuffix);
  if (temporary) name = name.substr(0, name.rfind('.'));  // drops the unique part; npos keeps all
  const bool manifest = take_suffix(name, kManifestSuffix);
  if (!manifest && !take_suffix(name, kDataSuffix)) return std::nullopt;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::optional<int> shard;
  if (const std::size_t infix = name.find(kShardInfix); infix != std::string_view::npos) {
    const std::string_view digits = name.substr(infix + kShardInfix.size());
    shard = parse_number<int>(digits);
    if (manifest || !shard || *shard < 0 || digits.size() < kShardDigits) return std::nullopt;
    name = name.substr(0, infix);
  }
  const std::size_t dash = name.find('-');
  if (dash != std::string_view::npos) {
    if (manifest || !number(name.substr(dash + 1))) return std::nullopt;
    name = name.substr(0, dash);
  }
  const std::optional<std::int64_t> step = number(name);
  const bool canonical =
      name.size() == kStepDigits || (name.size() > kStepDigits && name[0] != '0');
  if (!step || !canonical) return std::nullopt;
  return CheckpointFileName{
      temporary ? Kind::kTemporary : (manifest ? Kind::kManifest : Kind::kData), *step, shard};
}

bool names_data_files(const CheckpointManifest& manifest) {
  using Kind = CheckpointFileName::Kind;
  if (manifest.files.empty()) return false;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const auto name = parse_file_name(manifest.files[i].name);
    if (!name || name->kind != Kind::kData || name->step != manifest.step) return false;
    if (name->shard ? *name->shard != static_cast<int>(i) : manifest.files.size() > 1) return false;
  }
  return true;
}

bool is_sharded(const CheckpointManifest& manifest) {
  const auto name = parse_file_name(manifest.files.front().name);
  return name && name->shard;
}

namespace {

// Returns the steps of the manifests whose names have this suffix.
std::vector<std::int64_t> steps_of_manifests(std::span<const std::string> names,
                                             std::string_view suffix = "") {
  std::vector<std::int64_t> steps;
  for (std::string_view name : names)
    if (take_suffix(name, suffix))
      if (const auto file = parse_file_name(name);
          file && file->kind == CheckpointFileName::Kind::kManifest)
        steps.push_back(file->step);
  return steps;
}

}  // namespace

std::vector<std::int64_t> announced_steps(std::span<const std::string> names) {
  std::vector<std::int64_t> steps = steps_of_manifests(names);
  std::ranges::sort(steps, std::greater<>());
  return steps;
}

std::vector<std::string> leftovers(std::span<const std::string> names,
                                   const std::map<std::int64_t, std::set<std::string>>& named_by) {
  using Kind = CheckpointFileName::Kind;
  const std::vector<std::int64_t> announced = announced_steps(names);
  const std::vector<std::int64_t> set_aside = steps_of_manifests(names, kUnreadSuffix);
  std::vector<std::string> result;
  for (const std::string& name : names) {
    const auto file = parse_file_name(name);
    if (!file || file->kind == Kind::kManifest) continue;
    if (file->kind == Kind::kData) {
      const auto named = named_by.find(file->step);
      const bool unreadable =
          named == named_by.end() && std::ranges::count(announced, file->step) > 0;
      const bool is_named = named != named_by.end() && named->second.contains(name);
      if (unreadable || is_named || std::ranges::count(set_aside, file->step) > 0) continue;
    }
    result.push_back(name);
  }
  return result;
}

namespace {

// Returns the steps with a metric, best first; equal ones newest first.
std::vector<RatedStep> by_metric(std::span<const RatedStep> steps, Better better) {
  std::vector<RatedStep> rated;
  for (const RatedStep& step : steps)
    if (step.metric && !std::isnan(*step.metric)) rated.push_back(step);
  std::ranges::sort(rated, [&](const RatedStep& a, const RatedStep& b) {
    if (*a.metric != *b.metric)
      return better == Better::kLower ? *a.metric < *b.metric : *a.metric > *b.metric;
    return a.step > b.step;
  });
  return rated;
}

}  // namespace

std::optional<std::int64_t> best_step(std::span<const RatedStep> steps, Better better) {
  const std::vector<RatedStep> rated = by_metric(steps, better);
  return rated.empty() ? std::nullopt : std::optional(rated.front().step);
}

std::vector<std::int64_t> steps_to_forget(std::span<const RatedStep> newest_first, int keep_last,
                                          int keep_best, Better better) {
  DDPRUN_ASSERT(keep_last >= 1, "the newest checkpoint is never forgotten");
  std::set<std::int64_t> kept;
  // No std::views: clang 14, which builds the fuzz targets, does not take those of libstdc++ 12.
  const auto keep_first = [&kept](std::span<const RatedStep> steps, int count) {
    for (const RatedStep& step : steps.first(std::min<std::size_t>(count, steps.size())))
      kept.insert(step.step);
  };
  keep_first(newest_first, keep_last);
  keep_first(by_metric(newest_first, better), keep_best);
  std::vector<std::int64_t> forgotten;
  for (auto step = newest_first.rbegin(); step != newest_first.rend(); ++step)
    if (!kept.contains(step->step)) forgotten.push_back(step->step);
  return forgotten;
}

RestoreRound agree_on_step(std::span<const RestoreCandidate> by_rank) {
  const auto lowest = std::ranges::min_element(by_rank, {}, &RestoreCandidate::step);
  const bool same_step = std::ranges::all_of(
      by_rank, [&](const RestoreCandidate& candidate) { return candidate.step == lowest->step; });
  if (lowest->step < 0)
    return {.done = true, .step = -1, .rank = static_cast<int>(lowest - by_rank.begin())};
  if (!same_step)
    return {.bound = lowest->step, .rank = static_cast<int>(lowest - by_rank.begin())};
  const auto other = std::ranges::find_if(
      by_rank, [&](const RestoreCandidate& candidate) { return candidate != by_rank.front(); });
  if (other == by_rank.end()) return {.done = true, .step = lowest->step};
  return {.bound = lowest->step - 1,
          .rank = static_cast<int>(other - by_rank.begin()),
          .differs = true};
}

}  // namespace ddprun
