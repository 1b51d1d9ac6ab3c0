#include "rendezvous/protocol/json_fields.h"

#include <algorithm>

#include "base/concat.h"

namespace ddprun {

using Json = nlohmann::json;

std::string printable(std::string text) {
  return clipped(in_one_line(std::move(text)), kShownBytes);
}

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void refuse(const Json& json, const std::string& cause) {
  throw Json::other_error::create(501, cause, &json);
}

std::int64_t read_integer(const Json& json, const char* key, Bounds bounds) {
  const Json& field = json.at(key);
  // A conversion by the library would truncate numbers that are too large, and fractions.
  const bool huge = field.is_number_unsigned() &&
                    field.get<std::uint64_t>() > static_cast<std::uint64_t>(bounds.max);
  if (field.is_number_integer() && !huge) {
    const std::int64_t value = field.get<std::int64_t>();
    if (value >= bounds.min && value <= bounds.max) return value;
  }
  refuse(json, concat(key, " is not a number from ", bounds.min, " to ", bounds.max));
}

void read(const Json& json, const char* key, std::uint64_t& value) {
  const Json& field = json.at(key);
  if (!field.is_number_unsigned()) refuse(json, concat(key, " is not a number from 0 on"));
  value = field.get<std::uint64_t>();
}

void read(const Json& json, const char* key, Generation& generation) {
  read(json, key, generation.value, {-1, kMaxGeneration});
}

void read(const Json& json, const char* key, Duration& duration, Duration min) {
  duration = std::chrono::milliseconds(read_integer(json, key, {to_ms(min), to_ms(kMaxTime)}));
}

void read(const Json& json, const char* key, TimePoint& time) {
  constexpr std::int64_t kMaxMs = 4 * to_ms(kMaxTime);  // the year 2096
  time = TimePoint(std::chrono::milliseconds(read_integer(json, key, {0, kMaxMs})));
}

void read(const Json& json, const char* key, std::string& text, std::size_t max_bytes) {
  read(json, key, text);
  if (text.size() > max_bytes) {
    refuse(json, concat(key, " has ", text.size(), " bytes, more than ", max_bytes));
  }
}

void read(const Json& json, const char* key, std::string& name, Name how) {
  read(json, key, name);
  const std::string why = why_no_name(name);
  if (!why.empty()) refuse(json, concat(key, " ", why));
  if (!how.may_be_empty && name.empty()) refuse(json, concat(key, " is empty"));
}

void read(const Json& json, const char* key, std::vector<std::string>& list, Addresses most) {
  read(json, key, list, Most{most.count});
  for (const std::string& address : list) {
    if (address.size() > kMaxNameBytes) refuse(json, concat(key, " has no addresses"));
  }
}

void read(const Json& json, const char* key, std::vector<LocalRank>& ranks) {
  for (const int rank : json.at(key).get<std::vector<int>>()) ranks.emplace_back(rank);
}

void read(const Json& json, const char* key, std::vector<Duration>& times) {
  for (const std::int64_t ms : json.at(key).get<std::vector<std::int64_t>>()) {
    times.push_back(std::chrono::milliseconds(std::clamp<std::int64_t>(ms, 0, to_ms(kMaxTime))));
  }
}

void read(const Json& json, const char* key, std::vector<std::uint32_t>& numbers, Most most) {
  const Json& list = json.at(key);
  if (!list.is_array() || list.size() > most.count) {
    refuse(json, concat(key, " is not a list of at most ", most.count, " ", most.what));
  }
  for (const Json& one : list) {
    const bool is_fitting = one.is_number_unsigned() && one.get<std::uint64_t>() <= UINT32_MAX;
    if (!is_fitting) refuse(json, concat(key, " has no numbers from 0 to ", UINT32_MAX));
    numbers.push_back(one.get<std::uint32_t>());
  }
}

void read(const Json& json, const char* key, CodeRanges& codes) {
  Result<CodeRanges> read = parse_code_ranges(json.at(key).get<std::string>());
  if (!read) refuse(json, concat(key, ": ", read.error().cause));
  codes = std::move(*read);
}

std::vector<int> FieldWriter::form_of(const std::vector<LocalRank>& ranks) {
  std::vector<int> numbers;
  for (const LocalRank rank : ranks) numbers.push_back(rank.value);
  return numbers;
}

std::vector<std::int64_t> FieldWriter::form_of(const std::vector<Duration>& times) {
  std::vector<std::int64_t> ms;
  for (const Duration time : times) ms.push_back(to_ms(time));
  return ms;
}

bool FieldReader::protocol(int& protocol, std::string& version) {
  const Json& number = json_.at("protocol");
  if (number.is_number_integer() && number == kControlProtocol) {
    protocol = kControlProtocol;
    field("version", version, Name());
    return true;
  }
  const bool is_int = number.is_number_integer() && number >= kAnyInt.min && number <= kAnyInt.max;
  protocol = is_int ? number.get<int>() : kUnknownProtocol;
  const auto found = json_.find("version");
  if (found != json_.end() && found->is_string()) version = printable(found->get<std::string>());
  return false;
}

bool FieldWriter::protocol(int protocol, const std::string& version) {
  field("protocol", protocol);
  field("version", version);
  return true;
}

}  // namespace ddprun
