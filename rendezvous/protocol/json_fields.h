// Lists the fields of a value once, for writing and for reading it as a JSON object.
//
//   template <class F>
//   void fields(F& at, Of<F, Leave>& leave) {
//     at.field("signal", leave.signal, kSignal);
//     at.optional("late", leave.late, leave.late);
//   }
//
// A FieldWriter or a FieldReader visits the list. What follows the value says how it is read:
// Bounds, a limit in bytes, Name, Most, Addresses, or the words of an enumeration. Durations are in
// milliseconds, ids are plain numbers, enumerators are strings. A reader's error names the key
// that is missing, of another type or out of bounds.
//
// Only codecs include this header. Pure; any thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/seconds.h"
#include "rendezvous/protocol/control_json.h"

namespace ddprun {

// A number from min to max.
struct Bounds {
  std::int64_t min;
  std::int64_t max;
};
inline constexpr std::int64_t kMaxInt = std::numeric_limits<int>::max();
inline constexpr Bounds kAnyInt{std::numeric_limits<int>::min(), kMaxInt};
inline constexpr Bounds kCount{0, kMaxInt};

// An id, host, address or version, which is shown within other text.
struct Name {
  bool may_be_empty = true;
};

// A list with at most this many entries.
struct Most {
  std::size_t count;
  const char* what = "entries";
};

// A list of at most this many addresses.
struct Addresses {
  std::size_t count;
};

// Makes text of any origin fit for one line.
std::string printable(std::string text);

// Read the field `key`, which exists.
std::int64_t read_integer(const nlohmann::json& json, const char* key, Bounds bounds);
void read(const nlohmann::json& json, const char* key, std::uint64_t& value);
void read(const nlohmann::json& json, const char* key, Generation& generation);
void read(const nlohmann::json& json, const char* key, Duration& duration,
          Duration min = Duration::zero());
// Reads milliseconds since the epoch of the clock, which may be that of the calendar.
void read(const nlohmann::json& json, const char* key, TimePoint& time);
void read(const nlohmann::json& json, const char* key, std::string& text, std::size_t max_bytes);
void read(const nlohmann::json& json, const char* key, std::string& name, Name how);
void read(const nlohmann::json& json, const char* key, std::vector<std::string>& list,
          Addresses most);
void read(const nlohmann::json& json, const char* key, std::vector<LocalRank>& ranks);
// Clamps times that are out of bounds.
void read(const nlohmann::json& json, const char* key, std::vector<Duration>& times);
void read(const nlohmann::json& json, const char* key, std::vector<std::uint32_t>& numbers,
          Most most);
void read(const nlohmann::json& json, const char* key, CodeRanges& codes);

template <class T>
void read(const nlohmann::json& json, const char* key, T& value) {
  json.at(key).get_to(value);
}

template <std::integral Integer>
void read(const nlohmann::json& json, const char* key, Integer& value, Bounds bounds) {
  value = static_cast<Integer>(read_integer(json, key, bounds));
}

template <class Tag, class Number, class... How>
void read(const nlohmann::json& json, const char* key, Id<Tag, Number>& id, How... how) {
  read(json, key, id.value, how...);
}

template <class T>
void read(const nlohmann::json& json, const char* key, std::vector<T>& list, Most most) {
  read(json, key, list);
  if (list.size() > most.count) refuse(json, std::string(key) + " has too many " + most.what);
}

template <class Enum, std::size_t N>
void read(const nlohmann::json& json, const char* key, Enum& value,
          const EnumNames<Enum, N>& words) {
  value = value_in(words, json.at(key));
}

class FieldReader {
 public:
  static constexpr bool kReads = true;
  template <class T>
  using Of = T;

  explicit FieldReader(const nlohmann::json& json) : json_(json) {}

  bool has(const char* key) const { return json_.contains(key); }
  template <class T, class... How>
  void field(const char* key, T& value, const How&... how) {
    read(json_, key, value, how...);
  }
  // Reads the field. A missing one leaves the value as it is.
  template <class T, class... How>
  void optional(const char* key, bool /*is_written*/, T& value, const How&... how) {
    if (json_.contains(key)) read(json_, key, value, how...);
  }
  template <class T, class... How>
  void optional(const char* key, std::optional<T>& value, const How&... how) {
    if (json_.contains(key)) read(json_, key, value.emplace(), how...);
  }
  // Reads the version, and returns true if the protocol is ours. Of another protocol, only the
  // protocol's number is sure to exist, and it may have any value.
  bool protocol(int& protocol, std::string& version);

 private:
  const nlohmann::json& json_;
};

class FieldWriter {
 public:
  static constexpr bool kReads = false;
  template <class T>
  using Of = const T;

  explicit FieldWriter(nlohmann::json& json) : json_(json) {}

  template <class T, class... How>
  void field(const char* key, const T& value, const How&... how) {
    json_[key] = form_of(value, how...);
  }
  template <class T, class... How>
  void optional(const char* key, bool is_written, const T& value, const How&... how) {
    if (is_written) field(key, value, how...);
  }
  template <class T, class... How>
  void optional(const char* key, const std::optional<T>& value, const How&... how) {
    if (value) field(key, *value, how...);
  }
  bool protocol(int protocol, const std::string& version);

 private:
  template <class T, class... How>
  static const T& form_of(const T& value, const How&...) {
    return value;
  }
  template <class Tag, class Number, class... How>
  static Number form_of(Id<Tag, Number> id, const How&...) {
    return id.value;
  }
  template <class... How>
  static std::int64_t form_of(Duration duration, const How&...) {
    return to_ms(duration);
  }
  template <class... How>
  static std::int64_t form_of(TimePoint time, const How&...) {
    return to_ms(time.time_since_epoch());
  }
  template <class Enum, std::size_t N>
  static std::string_view form_of(Enum value, const EnumNames<Enum, N>& words) {
    return enum_name(words, value);
  }
  static std::vector<int> form_of(const std::vector<LocalRank>& ranks);
  static std::vector<std::int64_t> form_of(const std::vector<Duration>& times);
  static std::string form_of(const CodeRanges& codes) { return to_text(codes); }

  nlohmann::json& json_;
};

// The value as `Fields` visits it: constant for a writer.
template <class Fields, class T>
using Of = typename Fields::template Of<T>;

template <class T>
concept HasFields = requires(FieldWriter& at, const T& value) {
  fields(at, value);
};

template <HasFields T>
void to_json(nlohmann::json& json, const T& value) {
  json = nlohmann::json::object();
  FieldWriter at(json);
  fields(at, value);
}
template <HasFields T>
void from_json(const nlohmann::json& json, T& value) {
  FieldReader at(json);
  fields(at, value);
}

}  // namespace ddprun
