#include "rendezvous/protocol/output_text.h"

#include <nlohmann/json.hpp>

namespace ddprun {

std::string output_text(const nlohmann::json& line) {
  const auto hex = line.find("hex");  // of bytes that are not UTF-8
  if (hex == line.end()) return line.at("text").get<std::string>();
  const auto& digits = hex->get_ref<const std::string&>();
  const auto value = [](char digit) { return digit <= '9' ? digit - '0' : digit - 'a' + 10; };
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes += static_cast<char>(value(digits[i]) * 16 + value(digits[i + 1]));
  }
  return bytes;
}

}  // namespace ddprun
