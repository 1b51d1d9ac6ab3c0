// The file of --config: a JSON object with any of ddprun's options.
//
//   {"nproc-per-node": 8, "max_restarts": 3, "standalone": true,
//    "program": "train.py", "args": ["--epochs", "10"]}
//
// Names as on the command line, with - or _; values are texts, numbers, or true and false, or a list of
// them for an option that may be repeated. Any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddprun {

struct ConfigFile {
  std::string path;                                       // as given
  std::map<std::string, std::vector<std::string>> texts;  // by the option's name, with dashes
  std::string program;                                    // empty: none
  std::vector<std::string> args;
};

// The text of a config file. kInvalidArgument names what is wrong with it, and where.
Result<ConfigFile> parse_config_file(const std::string& path, const std::string& text);

// Reads the file. Beside the above: kSystem where it cannot be read, kCorrupt where it is larger
// than a config file can be.
Result<ConfigFile> read_config_file(const std::string& path);

}  // namespace ddprun
