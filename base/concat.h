// concat(): makes a text of parts: texts, whole numbers, and all that to_text() takes, such as ids
// and durations. Pure; any thread.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/clock.h"
#include "base/ids.h"

namespace ddprun {

// Returns the parts as one text: concat("rank ", Rank(3), " of ", size) is "rank 3 of 8".
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::string text;
  const auto add = [&text](const auto& part) {
    using Part = std::remove_cvref_t<decltype(part)>;
    static_assert(!std::same_as<Part, char> && !std::same_as<Part, bool>, "would become a number");
    if constexpr (std::integral<Part>) {
      text += std::to_string(part);
    } else if constexpr (requires { to_text(part); }) {
      text += to_text(part);
    } else {
      text += std::string_view(part);
    }
  };
  (add(parts), ...);
  return text;
}

}  // namespace ddprun
