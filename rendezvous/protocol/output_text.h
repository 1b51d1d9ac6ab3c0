// output_text(): reads the lines of JSON in which agents send what their workers write
// (output_line() in launcher/control/protocol.h). Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ddprun {

// Returns the bytes that a worker wrote. Throws Json::exception if the line has none.
std::string output_text(const nlohmann::json& line);

}  // namespace ddprun
